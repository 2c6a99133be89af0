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
    from fedapa.analysis.opened_run import OpenedRun
    from fedapa.analysis.opened_run import open as open
    from fedapa.api import fit, from_files, load
    from fedapa.core.scores import Score
    from fedapa.core.tree import Tree
    from fedapa.data.federated import Federated, from_arrays, from_datasets
    from fedapa.data.samples import Fields, Lazy
    from fedapa.errors import FedapaError, InputError, RunError
    from fedapa.methods.apfl import APFL
    from fedapa.methods.apple import APPLE
    from fedapa.methods.catalogue import make
    from fedapa.methods.cfl import CFL
    from fedapa.methods.dbe import DBE
    from fedapa.methods.ditto import Ditto
    from fedapa.methods.fedala import FedALA
    from fedapa.methods.fedamp import FedAMP
    from fedapa.methods.fedapa import FedAPA
    from fedapa.methods.fedapa_exact import FedAPAExact
    from fedapa.methods.fedapa_scored import FedAPAScored
    from fedapa.methods.fedavg import FedAvg
    from fedapa.methods.fedbabu import FedBABU
    from fedapa.methods.fedbn import FedBN
    from fedapa.methods.fedem import FedEM
    from fedapa.methods.fedfomo import FedFomo
    from fedapa.methods.fedgh import FedGH
    from fedapa.methods.fedpac import FedPAC
    from fedapa.methods.fedper import FedPer
    from fedapa.methods.fedphp import FedPHP
    from fedapa.methods.fedproto import FedProto
    from fedapa.methods.fedprox import FedProx
    from fedapa.methods.fedrep import FedRep
    from fedapa.methods.fedrod import FedRoD
    from fedapa.methods.ifca import IFCA
    from fedapa.methods.knnper import KNNPer
    from fedapa.methods.lg_fedavg import LGFedAvg
    from fedapa.methods.local_only import LocalOnly
    from fedapa.methods.method import Claims, Method, Role, hyper
    from fedapa.methods.moon import MOON
    from fedapa.methods.perfedavg import PerFedAvg
    from fedapa.methods.pfedgraph import PFedGraph
    from fedapa.methods.pfedhn import PFedHN
    from fedapa.methods.pfedla import PFedLA
    from fedapa.methods.pfedme import PFedMe
    from fedapa.methods.robust import Bounded, Krum, Median, Trimmed
    from fedapa.methods.scaffold import Scaffold
    from fedapa.methods.wrappers import Ema, Noised, Quantised, Top
    from fedapa.simulation import Result
    from fedapa.sinks import Sink
    from fedapa.training.local import Local
    from fedapa.training.objective import Classification, Objective, Regression, Survival
    from fedapa.training.settings import Training
    from fedapa.training.task import Batch, Task, proximal, task_loss

# Names are looked up on first use, so that `import fedapa` costs nothing and the command line starts fast.
_HOMES = {
    "fedapa.analysis.opened_run": ("OpenedRun", "open"),
    "fedapa.api": ("fit", "from_files", "load"),
    "fedapa.core.scores": ("Score",),
    "fedapa.core.tree": ("Tree",),
    "fedapa.data.federated": ("Federated", "from_arrays", "from_datasets"),
    "fedapa.data.samples": ("Fields", "Lazy"),
    "fedapa.errors": ("FedapaError", "InputError", "RunError"),
    "fedapa.methods.apfl": ("APFL",),
    "fedapa.methods.apple": ("APPLE",),
    "fedapa.methods.catalogue": ("make",),
    "fedapa.methods.cfl": ("CFL",),
    "fedapa.methods.dbe": ("DBE",),
    "fedapa.methods.ditto": ("Ditto",),
    "fedapa.methods.fedala": ("FedALA",),
    "fedapa.methods.fedamp": ("FedAMP",),
    "fedapa.methods.fedapa": ("FedAPA",),
    "fedapa.methods.fedapa_exact": ("FedAPAExact",),
    "fedapa.methods.fedapa_scored": ("FedAPAScored",),
    "fedapa.methods.fedavg": ("FedAvg",),
    "fedapa.methods.fedbabu": ("FedBABU",),
    "fedapa.methods.fedbn": ("FedBN",),
    "fedapa.methods.fedem": ("FedEM",),
    "fedapa.methods.fedfomo": ("FedFomo",),
    "fedapa.methods.fedgh": ("FedGH",),
    "fedapa.methods.fedpac": ("FedPAC",),
    "fedapa.methods.fedper": ("FedPer",),
    "fedapa.methods.fedphp": ("FedPHP",),
    "fedapa.methods.fedproto": ("FedProto",),
    "fedapa.methods.fedprox": ("FedProx",),
    "fedapa.methods.fedrep": ("FedRep",),
    "fedapa.methods.fedrod": ("FedRoD",),
    "fedapa.methods.ifca": ("IFCA",),
    "fedapa.methods.knnper": ("KNNPer",),
    "fedapa.methods.lg_fedavg": ("LGFedAvg",),
    "fedapa.methods.local_only": ("LocalOnly",),
    "fedapa.methods.method": ("Claims", "Method", "Role", "hyper"),
    "fedapa.methods.moon": ("MOON",),
    "fedapa.methods.perfedavg": ("PerFedAvg",),
    "fedapa.methods.pfedgraph": ("PFedGraph",),
    "fedapa.methods.pfedhn": ("PFedHN",),
    "fedapa.methods.pfedla": ("PFedLA",),
    "fedapa.methods.pfedme": ("PFedMe",),
    "fedapa.methods.robust": ("Bounded", "Krum", "Median", "Trimmed"),
    "fedapa.methods.scaffold": ("Scaffold",),
    "fedapa.methods.wrappers": ("Ema", "Noised", "Quantised", "Top"),
    "fedapa.simulation": ("Result",),
    "fedapa.sinks": ("Sink",),
    "fedapa.training.local": ("Local",),
    "fedapa.training.objective": ("Classification", "Objective", "Regression", "Survival"),
    "fedapa.training.settings": ("Training",),
    "fedapa.training.task": ("Batch", "Task", "proximal", "task_loss"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

# ``open`` is left out: an import of everything must not hide Python's own.
__all__ = [
    "APFL",
    "APPLE",
    "CFL",
    "DBE",
    "IFCA",
    "MOON",
    "Batch",
    "Bounded",
    "Claims",
    "Classification",
    "Ditto",
    "Ema",
    "FedALA",
    "FedAMP",
    "FedAPA",
    "FedAPAExact",
    "FedAPAScored",
    "FedAvg",
    "FedBABU",
    "FedBN",
    "FedEM",
    "FedFomo",
    "FedGH",
    "FedPAC",
    "FedPHP",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedapaError",
    "Federated",
    "Fields",
    "InputError",
    "KNNPer",
    "Krum",
    "LGFedAvg",
    "Lazy",
    "Local",
    "LocalOnly",
    "Median",
    "Method",
    "Noised",
    "Objective",
    "OpenedRun",
    "PFedGraph",
    "PFedHN",
    "PFedLA",
    "PFedMe",
    "PerFedAvg",
    "Quantised",
    "Regression",
    "Result",
    "Role",
    "RunError",
    "Scaffold",
    "Score",
    "Sink",
    "Survival",
    "Task",
    "Top",
    "Training",
    "Tree",
    "Trimmed",
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


def __dir__() -> list[str]:
    """What there is to use, without what this file itself imports."""
    return sorted({*_HOME, *(name for name in globals() if name.startswith("__"))})
