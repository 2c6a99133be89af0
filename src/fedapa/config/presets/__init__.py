"""The shipped configs; reading them needs neither pydantic nor torch."""

from __future__ import annotations

from importlib import resources


def names() -> list[str]:
    return sorted(f.name.removesuffix(".toml") for f in resources.files(__name__).iterdir() if f.name.endswith(".toml"))


def text(name: str) -> str:
    return (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")


def title(name: str) -> str:
    """The first comment line of a preset says what it is."""
    return text(name).splitlines()[0].lstrip("# ")
