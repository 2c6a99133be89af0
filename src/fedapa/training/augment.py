"""Augmentation: the samples of a train batch, changed at random when they are drawn, never when they are loaded."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedapa.errors import InputError
from fedapa.plugins import failed, file_of, is_own, load_object
from fedapa.training.task import Augment

MARGIN = 8  # a crop moves an image by up to this part of its width: 4 pixels of 32


def augmentation(spec: str) -> Augment | None:
    """By name (``flip+crop``), or the user's own ``function(x, random) -> x`` as ``file.py:function``."""
    if not spec:
        return None
    if is_own(spec):
        return partial(_checked, spec, load_object(spec, "augmentation"))
    names = spec.split("+")
    if unknown := [name for name in names if name not in AUGMENTATIONS]:
        hint = f"choose from {', '.join(AUGMENTATIONS)}, join them by +, or name your own: file.py:function"
        raise InputError(f"training.augment names {unknown[0]!r}", hint)
    return partial(_all, [AUGMENTATIONS[name] for name in names])


def flip(x: Tensor, random: np.random.Generator) -> Tensor:
    """Half of the images, left to right."""
    chosen = torch.from_numpy(random.random(len(x)) < 0.5).to(x.device)
    return torch.where(chosen.view(-1, 1, 1, 1), _images(x).flip(-1), x)


def crop(x: Tensor, random: np.random.Generator) -> Tensor:
    """Every image moved by some pixels down and to the right; what comes in at the edges is 0, black in bytes."""
    n, _, height, width = _images(x).shape
    pad = max(1, width // MARGIN)
    padded = F.pad(x, (pad, pad, pad, pad))
    down, right = (torch.from_numpy(random.integers(0, 2 * pad + 1, n)).to(x.device) for _ in range(2))
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = right[:, None] + torch.arange(width, device=x.device)
    first = torch.arange(n, device=x.device)[:, None, None]
    return padded.movedim(1, -1)[first, rows[:, :, None], columns[:, None, :]].movedim(-1, 1).contiguous()


AUGMENTATIONS: dict[str, Augment] = {"flip": flip, "crop": crop}


def _images(x: Any) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim != 4 or x.dtype == torch.int64:
        hint = "it is for images; write your own as file.py:function"
        raise InputError("training.augment: flip and crop need samples of [channels, height, width]", hint)
    return x


def _all(steps: list[Augment], x: Any, random: np.random.Generator) -> Any:
    return reduce(lambda batch, step: step(batch, random), steps, x)


def _checked(spec: str, own: Augment, x: Any, random: np.random.Generator) -> Any:
    """A function of the user's own may change everything but the type and the number of samples."""
    try:
        found = own(x, random)
    except Exception as error:  # the user's code may fail in any way
        raise failed(f"augmentation {spec!r}", error, file_of(own)) from error
    if type(found) is not type(x) or len(found) != len(x):
        said = f"{type(found).__name__} of {len(found) if hasattr(found, '__len__') else '?'}"
        raise InputError(f"augmentation {spec!r} made {said} of {type(x).__name__} of {len(x)}", "keep both")
    return found
