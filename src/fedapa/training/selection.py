"""Which tensors of a module a list of patterns chooses, and which of its layers are frozen.

A pattern is a glob over the whole name (``*.lora_A.*``), the beginning of one (``layer4`` stands for ``layer4.*``), or
a regular expression after ``re:``, found anywhere in it. ``!`` before a pattern takes out what earlier ones put in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedapa.errors import InputError, did_you_mean

Patterns = str | Sequence[str]


def as_list(patterns: Patterns) -> tuple[str, ...]:
    """One pattern or several, as a tuple without empty ones."""
    return tuple(p for p in ((patterns,) if isinstance(patterns, str) else patterns) if p)


def is_chosen(name: str, patterns: Iterable[str]) -> bool:
    """Whether the last pattern that matches puts the name in."""
    found = False
    for pattern in patterns:
        if matches(name, pattern.removeprefix("!")):
            found = not pattern.startswith("!")
    return found


def matches(name: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.search(pattern[3:], name) is not None
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def check_patterns(key: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Every pattern is legal and matches something: one that does not is a typing error."""
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        try:
            used = any(matches(name, bare) for name in names)
        except re.error as error:
            raise InputError(f"{key}: {pattern!r} is no regular expression: {error}", "escape its signs") from None
        if not used:
            roots = sorted({name.partition(".")[0] for name in names})
            hint = did_you_mean(bare, [*names, *roots], f"parameters begin with {', '.join(roots[:20])}")
            raise InputError(f"{key}: {pattern!r} matches no parameter of the model", hint)


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """No gradient for the parameters that the patterns choose."""
    check_patterns("model.frozen", patterns, [name for name, _ in module.named_parameters()])
    for name, parameter in module.named_parameters():
        if is_chosen(name, patterns):
            parameter.requires_grad_(False)


def frozen_layers(module: nn.Module) -> list[str]:
    """The submodules that hold statistics and lie in a part without trainable parameters: they stay as they are."""
    resting = [name for name, layer in module.named_modules() if _is_at_rest(layer)]
    return [
        name
        for name, layer in module.named_modules()
        if any(True for _ in layer.buffers(recurse=False)) and any(_lies_in(name, other) for other in resting)
    ]


def _is_at_rest(layer: nn.Module) -> bool:
    parameters = list(layer.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _lies_in(name: str, other: str) -> bool:
    return name == other or other == "" or name.startswith(f"{other}.")
