"""A small Transformer encoder for token ids (Vaswani et al., NeurIPS 2017), with the norms before the layers.

Id 0 is padding: it is not attended to and does not count in the mean over time that the head gets.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedapa.errors import InputError

PADDING = 0


def transformer(
    shape: tuple[int, ...], classes: int, vocabulary: int = 0, width: int = 64, heads: int = 4, depth: int = 2
) -> nn.Module:
    """``depth`` layers of ``width`` with learned positions, for ids 0 to ``vocabulary`` - 1. [steps]"""
    if len(shape) != 1:
        raise InputError(f"model transformer needs token ids [steps], the data has shape {list(shape)}", 'use "cnn1d"')
    if vocabulary < 1:
        hint = "--set model.settings.vocabulary=5000, the largest id plus 1"
        raise InputError("model transformer needs its number of tokens", hint)
    if width % heads:
        raise InputError(f"model transformer: width {width} is not a multiple of heads {heads}", "change one of them")
    return Encoder(vocabulary, shape[0], width, heads, depth, classes)


class Encoder(nn.Module):
    def __init__(self, vocabulary: int, steps: int, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(steps, width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids.long()
        real = ids != PADDING
        z = self._embedded(ids) + self.positions
        for layer in self.layers:
            z = layer(z, real)
        z, weight = self.norm(z), real[..., None].float()
        found: Tensor = self.head((z * weight).sum(1) / weight.sum(1).clamp(min=1.0))
        return found

    def _embedded(self, ids: Tensor) -> Tensor:
        try:
            found: Tensor = self.tokens(ids)
        except IndexError:
            last, wrong = self.tokens.num_embeddings - 1, int(ids.max() if ids.min() >= 0 else ids.min())
            hint = f"--set model.settings.vocabulary={wrong + 1}" if wrong > last else "ids count from 0"
            raise InputError(
                f"model transformer knows the token ids 0 to {last}, the data have {wrong}", hint
            ) from None
        return found


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, z: Tensor, real: Tensor) -> Tensor:
        z = z + self.out(self._attended(self.norm1(z), real))
        found: Tensor = z + self.down(F.gelu(self.up(self.norm2(z))))
        return found

    def _attended(self, z: Tensor, real: Tensor) -> Tensor:
        """Softmax attention in plain operations, which the vmap engine can vectorise."""
        n, steps, width = z.shape
        q, k, v = self.qkv(z).view(n, steps, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        scores = torch.where(real[:, None, None, :], scores, -1e9)  # finite: a row of padding alone has no NaN
        found: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, steps, width)
        return found
