"""Look at a partition: a table of the clients, a bubble plot of classes per client."""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedapa.data.partitions.partition import Partition, check_fits, label_counts
from fedapa.errors import InputError, RunError

if TYPE_CHECKING:
    from fedapa.data.federated import Federated

Index = npt.NDArray[np.int64]
FORMATS = (".svg", ".pdf", ".png")


def table(
    data: "Federated | Partition",
    y_train: npt.ArrayLike | None = None,
    y_test: npt.ArrayLike | None = None,
) -> list[dict[str, Any]]:
    """One row per client, plain values only. A Partition needs the labels, a Federated brings its own."""
    if isinstance(data, Partition):
        if y_train is None or y_test is None:
            raise InputError("a partition holds no labels", hint="pass y_train and y_test as well")
        counts = label_counts(data, y_train, y_test)
        names = data.rule.get("names", range(data.clients))
        assert isinstance(names, list | range)
        rows = zip(names, counts.train, counts.test, strict=True)
    else:
        rows = zip((c.name for c in data.clients), *_counts(data), strict=True)
    return [_row(str(name), train, test) for name, train, test in rows]


def _counts(fed: "Federated") -> tuple[list[Index], list[Index]]:
    train = [np.bincount(client.train.y.numpy(), minlength=fed.classes) for client in fed.clients]
    test = [np.bincount(client.test.y.numpy(), minlength=fed.classes) for client in fed.clients]
    return train, test


def _row(name: str, train: Index, test: Index) -> dict[str, Any]:
    return {
        "client": name,
        "train": int(train.sum()),
        "test": int(test.sum()),
        "classes": int((train > 0).sum()),
        "largest_class": int(train.argmax()),
        "largest_share": float(train.max() / max(1, train.sum())),
        "untested_classes": int(((train > 0) & (test == 0)).sum()),
        "unseen_test": int(test[train == 0].sum()),
    }


def bubble_plot(
    partition: Partition,
    y_train: npt.ArrayLike,
    path: Path,
    class_names: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Clients from left to right, classes from bottom to top, area of a bubble = number of train samples."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: figures are {', '.join(FORMATS)}", hint="choose one of these endings")
    labels = np.asarray(y_train)
    check_fits(partition, labels.size, sys.maxsize)  # the test set is not drawn
    classes = int(labels.max()) + 1
    seen = zip(partition.train, partition.views, strict=True)
    counts = np.stack([np.bincount(view.label(labels[index]), minlength=classes) for index, view in seen])
    figure = _bubbles(counts, class_names or [str(k) for k in range(classes)], title)
    save_figure(figure, path)


def _bubbles(counts: Index, class_names: Sequence[str], title: str | None) -> Any:
    # A Figure of its own, without pyplot: no global state, no window, nothing to close.
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    width, height = np.clip(0.28 * clients + 1.8, 4, 16), np.clip(0.28 * classes + 1.1, 3, 16)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    draw_bubbles(axes, counts, class_names, "#3b6fa0")
    axes.set_title(title or f"train samples per client and class (largest bubble: {counts.max():,})", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_bubbles(axes: Any, counts: Index, class_names: Sequence[str], colour: str) -> None:
    """Clients [rows] from left to right, classes [columns] from bottom to top."""
    clients, classes = counts.shape
    width, height = axes.figure.get_size_inches()
    i, k = np.nonzero(counts)
    side = min(_points(width - 1.8, clients), _points(height - 1.1, classes))
    # The largest may touch its neighbours; one point square keeps the smallest visible.
    areas = np.maximum((1.2 * side) ** 2 * counts[i, k] / max(1, counts.max()), 1.0)
    axes.scatter(i, k, s=areas, color=colour, alpha=0.85, linewidths=0)
    axes.set(xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3), xlabel="client", ylabel="class")
    axes.set_xticks(ticks(clients))
    axes.set_yticks(ticks(classes), [class_names[k] for k in ticks(classes)])


def _points(inches: float, cells: int) -> float:
    """The side of one cell in points, the unit of marker sizes."""
    return 72 * float(inches) / (cells + 0.4)


def ticks(n: int) -> list[int]:
    """All of them while there is room, then every fifth, every tenth, then a dozen."""
    return list(range(0, n, 1 if n <= 25 else 5 if n <= 60 else 10 if n <= 200 else n // 12))


def save_figure(figure: Any, path: Path) -> None:
    """Draw into a neighbour and rename, so that a failed drawing leaves nothing behind."""
    try:
        with tempfile.TemporaryDirectory(prefix=".figure-", dir=path.parent) as scratch:
            draft = Path(scratch, path.name)
            figure.savefig(draft, dpi=150)
            os.replace(draft, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}", hint="check the folder") from error
