"""Data sets and how they are partitioned over clients.

`load` a data set, `split` it, `federate` both; or bring your own with `from_arrays`. Names are looked up on
first use, so that importing this package loads neither torch nor scikit-learn nor matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapa.data.dataset import Dataset, SourceInfo
    from fedapa.data.federated import ClientData, Federated, Split, federate, from_arrays, warnings
    from fedapa.data.fetching import fetch
    from fedapa.data.inspect import bubble_plot, table
    from fedapa.data.partitions.partition import Partition, fingerprint, label_counts
    from fedapa.data.partitions.rules import RULES, split
    from fedapa.data.sources import SOURCES, data_folder, is_present, load

__all__ = [
    "RULES",
    "SOURCES",
    "ClientData",
    "Dataset",
    "Federated",
    "Partition",
    "SourceInfo",
    "Split",
    "bubble_plot",
    "data_folder",
    "federate",
    "fetch",
    "fingerprint",
    "from_arrays",
    "is_present",
    "label_counts",
    "load",
    "split",
    "table",
    "warnings",
]

_HOME = {
    "dataset": ("Dataset", "SourceInfo"),
    "federated": ("ClientData", "Federated", "Split", "federate", "from_arrays", "warnings"),
    "fetching": ("fetch",),
    "inspect": ("bubble_plot", "table"),
    "partitions.partition": ("Partition", "fingerprint", "label_counts"),
    "partitions.rules": ("RULES", "split"),
    "sources": ("SOURCES", "data_folder", "is_present", "load"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"fedapa.data.{module}"), name)
    raise AttributeError(f"module 'fedapa.data' has no attribute '{name}'")
