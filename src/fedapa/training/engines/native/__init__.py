"""Optional compiled kernel for LeNet-5-shaped networks; `available()` says whether it can be used."""

from fedapa.training.engines.native.arguments import Mixed, MixingCall, Trained, TrainingCall
from fedapa.training.engines.native.kernel import Features, Kernel
from fedapa.training.engines.native.libraries import available
from fedapa.training.engines.native.network_shape import Shape
from fedapa.training.engines.native.recognition import shape_of
from fedapa.training.engines.native.terms import ClassPull, MeanPull, Mixture, Mmd, SoftLabels, Terms

__all__ = [
    "ClassPull",
    "Features",
    "Kernel",
    "MeanPull",
    "Mixed",
    "MixingCall",
    "Mixture",
    "Mmd",
    "Shape",
    "SoftLabels",
    "Terms",
    "Trained",
    "TrainingCall",
    "available",
    "shape_of",
]
