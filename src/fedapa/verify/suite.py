"""Run every law on a method, and find the methods in a user's file."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fedapa.errors import InputError
from fedapa.methods.method import Claims, Method, Schedule
from fedapa.plugins import import_file
from fedapa.training.objective import Classification, Objective
from fedapa.training.settings import HEAD
from fedapa.verify import laws
from fedapa.verify.case import Broken, Case

LAWS: dict[str, Callable[[Case], str]] = {
    "engines-agree": laws.engines_agree,
    "resume-is-exact": laws.resume_is_exact,
    "functions-are-pure": laws.functions_are_pure,
    "order-is-irrelevant": laws.order_of_replies_is_irrelevant,
    "trainables-move": laws.everything_trainable_moves,
    "server-step-descends": laws.server_step_descends,
    "sent-arrives": laws.what_was_sent_arrives,
    "limits-are-met": laws.limits_are_met,
    "bytes-are-true": laws.bytes_are_what_is_said,
    "bad-uploads-refused": laws.bad_uploads_change_nothing,
}


SCHEDULES: tuple[Schedule, ...] = ("parallel", "sequential")


class Finding(NamedTuple):
    law: str
    schedule: str
    holds: bool
    detail: str
    seconds: float


def verify(
    method: Method,
    objective: Objective | None = None,
    model: str = "",
    head: str = HEAD,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Finding]:
    """Every law under both schedules, with cross-entropy or another objective, on a small model or the user's own.

    ``settings`` are arguments of the function that makes the user's model.
    """
    words = {"model": model, "head": head, "settings": tuple((settings or {}).items())}
    for schedule in SCHEDULES:
        case = Case(method, schedule, objective=objective or Classification(), **words).fitting()  # type: ignore[arg-type]
        for name, law in LAWS.items():
            begin = time.perf_counter()
            try:
                holds, detail = True, law(case)
            except Broken as broken:
                holds, detail = False, str(broken)
            except Exception as error:  # a user's method may fail in any way; that breaks the law too
                holds, detail = False, f"{type(error).__name__}: {error}"
            yield Finding(name, schedule, holds, detail, time.perf_counter() - begin)


def load_method(path: Path) -> dict[str, Method]:
    """The methods that a Python file defines, each with its default hyper-parameters."""
    if not path.is_file():
        raise InputError(f"{path} does not exist", "name a Python file that defines a subclass of fedapa.Method")
    if path.suffix != ".py":
        raise InputError(f"{path} is not a Python file", "its name must end in .py")
    try:
        module = import_file(path, f"user_method_{path.stem}")
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be imported: {what}", "run it with python first") from error
    classes = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if issubclass(cls, Method)]
    found = [cls for cls in classes if cls.__module__ == module.__name__]
    if not found:
        raise InputError(f"{path} defines no subclass of fedapa.Method", "see docs/add-a-method.md")
    return {cls.__name__: _default(cls, path) for cls in found}


def _default(cls: type[Method], path: Path) -> Method:
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise InputError(f"{path}: {cls.__name__} lacks {missing}", "a method is six functions: docs/add-a-method.md")
    _refuse_bare_claims(cls, path)
    try:
        return cls()
    except TypeError as error:
        raise InputError(f"{path}: {cls.__name__}() fails: {error}", "give every hyper-parameter a default") from error


def _refuse_bare_claims(cls: type[Method], path: Path) -> None:
    """A claim beside ``claims`` would be read by nobody, and its law would hold without having been checked."""
    beside = {f.name for f in fields(Claims)} & set(dir(cls)) - {f.name for f in fields(cls)}
    if beside:
        raise InputError(f"{path}: {cls.__name__}.{min(beside)} is read by no law", "return it from claims()")
