"""Optional compiled kernel for LeNet-5-shaped networks; `available()` says whether it can be used."""

from fedapa.training.engines.native.binding import Features, Kernel, Shape, Trained, available, shape_of

__all__ = ["Features", "Kernel", "Shape", "Trained", "available", "shape_of"]
