"""The compiled libraries of the kernel: find, load and choose one for this processor."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from fedapa.training.engines.native.network_shape import Shape

ABI = 3
OK, NO_MEMORY, BAD_INDEX, BAD_LABEL, NOT_FINITE = 0, 1, 2, 3, 4  # what the kernel's functions return


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    p, i, n, f = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "fedapa_abi": (i, []),
        "fedapa_cpu_has_avx2": (i, []),
        "fedapa_plan_new": (p, [i, i, i, p, i, p, i, p, p]),
        "fedapa_plan_free": (None, [p]),
        "fedapa_workspace_new": (p, []),
        "fedapa_workspace_free": (None, [p]),
        "fedapa_tape_new": (p, []),
        "fedapa_tape_free": (None, [p]),
        "fedapa_features": (i, [p, p, p, p, p, i, n, p, n, n, p]),
        "fedapa_backward": (i, [p, p, p, p, p, i, n, p, n, n, p, p]),
        "fedapa_train": (
            i,
            [p, p, p, p, p, p, p, i, p, n, p, p, n, f, f, p, p, p, f, i, i, n, p, p, p],
        ),
        "fedapa_mix_head": (i, [p, p, p, p, p, p, p, p, n, p, p, n, f, f, f, p, p]),
        "fedapa_evaluate": (i, [p, p, p, p, p, i, p, n, p, n, n, p, p, p, p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


def open_library(name: str) -> tuple[ctypes.CDLL | None, str]:
    """The library `name` ("avx2" or "portable"), or None and the reason."""
    folder = Path(os.environ.get("FEDAPA_NATIVE_PATH") or Path(__file__).parent)
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_{name}{suffix}"
        if not path.is_file():
            continue
        try:
            lib = _declare(ctypes.CDLL(str(path)))
        except (OSError, AttributeError) as error:
            return None, f"{path.name} cannot be loaded: {error}"
        if lib.fedapa_abi() != ABI:
            return None, f"{path.name} is from another version of fedapa; install again"
        return lib, "loaded"
    return None, f"_{name} was not built (no C++ compiler at install?)"


@functools.cache
def choose(wish: str) -> tuple[ctypes.CDLL | None, str]:
    if wish not in ("", "auto", "avx2", "portable", "off"):
        return None, f"FEDAPA_NATIVE={wish} is not one of auto, avx2, portable, off"
    if wish == "off":
        return None, "switched off by FEDAPA_NATIVE=off"
    portable, why_not = open_library("portable")
    if wish == "portable":
        return portable, "portable: asked for by FEDAPA_NATIVE" if portable is not None else why_not
    if portable is None:
        return None, why_not
    if not portable.fedapa_cpu_has_avx2():
        if wish == "avx2":
            return None, "FEDAPA_NATIVE=avx2, but this processor lacks AVX2 or FMA"
        return portable, "portable: this processor lacks AVX2 or FMA"
    fast, why_not = open_library("avx2")
    if fast is not None:
        return fast, "avx2: this processor has AVX2 and FMA"
    return (None, why_not) if wish == "avx2" else (portable, f"portable: {why_not}")


def available() -> tuple[bool, str]:
    """Whether the kernel can be used here, and which library was chosen or why there is none.

    FEDAPA_NATIVE = auto | avx2 | portable | off overrides the choice.
    """
    lib, why = choose(os.environ.get("FEDAPA_NATIVE", ""))
    return lib is not None, why


class Handle:
    """A pointer made by the library, freed with its last owner."""

    def __init__(self, pointer: int | None, free: Callable[[int], None]) -> None:
        if not pointer:
            raise MemoryError("the native kernel ran out of memory")
        self.pointer = pointer
        self._free = free

    def __del__(self) -> None:
        pointer, self.pointer = getattr(self, "pointer", None), 0
        if pointer:
            self._free(pointer)


def new_plan(
    lib: ctypes.CDLL, shape: Shape, classes: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Handle:
    """The plan of a network: sizes and statistics as the library keeps them."""

    def array(kind: Any, values: Sequence[Any] | None) -> Any:
        return None if values is None else (kind * len(values))(*values)

    plan = lib.fedapa_plan_new(
        shape.channels,
        shape.size,
        len(shape.convs),
        array(ctypes.c_int, shape.convs),
        len(shape.hidden),
        array(ctypes.c_int, shape.hidden),
        classes,
        array(ctypes.c_float, mean),
        array(ctypes.c_float, std),
    )
    return Handle(plan, lib.fedapa_plan_free)
