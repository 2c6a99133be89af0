"""Personalized federated learning: FedAPA and the methods it is compared with.

>>> import fedapa as fa
>>> data = fa.load("digits", "dirichlet", clients=8, alpha=0.3, min_train=40, min_test=5)
>>> result = fa.fit(fa.FedAPA(), data, model="cnn8", rounds=10, lr=0.05, batch=16)
>>> result.curve("after")[-1].pooled > 90
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapa.api import fit, from_files, load
    from fedapa.core.scores import Score
    from fedapa.data.federated import Federated, from_arrays, from_datasets
    from fedapa.errors import FedapaError, InputError, RunError
    from fedapa.methods.catalogue import make
    from fedapa.methods.fedapa import FedAPA
    from fedapa.methods.fedavg import FedAvg
    from fedapa.methods.local_only import LocalOnly
    from fedapa.methods.method import Claims, Method, Role, hyper
    from fedapa.training.local import Local
    from fedapa.training.objective import Classification, Objective, Regression
    from fedapa.training.settings import Training
    from fedapa.training.task import Batch, Task, proximal, task_loss

# Names are looked up on first use, so that `import fedapa` costs nothing and the command line starts fast.
_HOMES = {
    "fedapa.api": ("fit", "from_files", "load"),
    "fedapa.data.federated": ("Federated", "from_arrays", "from_datasets"),
    "fedapa.errors": ("FedapaError", "InputError", "RunError"),
    "fedapa.methods.catalogue": ("make",),
    "fedapa.methods.fedapa": ("FedAPA",),
    "fedapa.methods.fedavg": ("FedAvg",),
    "fedapa.methods.local_only": ("LocalOnly",),
    "fedapa.methods.method": ("Claims", "Method", "Role", "hyper"),
    "fedapa.core.scores": ("Score",),
    "fedapa.training.local": ("Local",),
    "fedapa.training.objective": ("Classification", "Objective", "Regression"),
    "fedapa.training.settings": ("Training",),
    "fedapa.training.task": ("Batch", "Task", "proximal", "task_loss"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Batch",
    "Claims",
    "Classification",
    "FedAPA",
    "FedAvg",
    "FedapaError",
    "Federated",
    "InputError",
    "Local",
    "LocalOnly",
    "Method",
    "Objective",
    "Regression",
    "Role",
    "RunError",
    "Score",
    "Task",
    "Training",
    "fit",
    "from_arrays",
    "from_datasets",
    "from_files",
    "hyper",
    "load",
    "make",
    "proximal",
    "task_loss",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'fedapa' has no attribute {name!r}")
