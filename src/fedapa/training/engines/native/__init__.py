"""Optional compiled kernel for LeNet-5-shaped networks; `available()` says whether it can be used."""

from fedapa.training.engines.native.arguments import Trained, TrainingCall
from fedapa.training.engines.native.kernel import Features, Kernel
from fedapa.training.engines.native.libraries import available
from fedapa.training.engines.native.network_shape import Shape
from fedapa.training.engines.native.recognition import shape_of

__all__ = ["Features", "Kernel", "Shape", "Trained", "TrainingCall", "available", "shape_of"]
