"""The family of networks that the kernel knows: 5x5 convolutions, then hidden layers."""

from __future__ import annotations

from dataclasses import dataclass

from fedapa.errors import InputError

MAX_BLOCKS = 3
MAX_HIDDEN = 8
KERNEL = 5

# Beyond this many input values per sample or parameters the 32-bit offsets of the kernel might not suffice.
_LIMIT = 1 << 28


@dataclass(frozen=True)
class Shape:
    """Blocks of [5x5 convolution, ReLU, 2x2 max-pool] (`convs` channels), then ReLU layers (`hidden`)."""

    channels: int
    size: int
    convs: tuple[int, ...]
    hidden: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.convs) <= MAX_BLOCKS:
            raise InputError(f"the native kernel takes 1 to {MAX_BLOCKS} convolutions, not {len(self.convs)}")
        if len(self.hidden) > MAX_HIDDEN:
            raise InputError(f"the native kernel takes at most {MAX_HIDDEN} hidden layers, not {len(self.hidden)}")
        if min(self.channels, self.size, *self.convs, *self.hidden) < 1:
            raise InputError(f"every size of a network must be positive: {self}")
        if any(side < KERNEL + 1 for side in self.sides[:-1]):
            raise InputError(f"an input of side {self.size} is too small for {len(self.convs)} blocks")
        if max(self.channels * self.size**2, self.theta_size, *self._lane_sizes()) > _LIMIT:
            raise InputError(f"too large for the native kernel: {self}")

    def _lane_sizes(self) -> list[int]:
        return [c * s * s for c, s in zip(self.convs, self.sides[1:], strict=True)]

    @property
    def sides(self) -> tuple[int, ...]:
        """Side of the input and after each block."""
        sides = [self.size]
        for _ in self.convs:
            sides.append(max(sides[-1] - KERNEL + 1, 0) // 2)
        return tuple(sides)

    @property
    def flat(self) -> int:
        """Width after the last block."""
        return self.convs[-1] * self.sides[-1] ** 2

    @property
    def features(self) -> int:
        return self.hidden[-1] if self.hidden else self.flat

    @property
    def theta_size(self) -> int:
        total, channels = 0, self.channels
        for out in self.convs:
            total += out * channels * KERNEL * KERNEL + out
            channels = out
        width = self.flat
        for out in self.hidden:
            total += out * width + out
            width = out
        return total

    def phi_size(self, classes: int) -> int:
        return classes * self.features + classes
