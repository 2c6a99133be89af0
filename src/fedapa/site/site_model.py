"""site-model/: one site's model as files that need no run, no other site and no pickle.

model.safetensors     the tensors of the model
model.json            architecture, method, classes, threshold between two of them, and the digest of the tensors
preprocessing.json    how a row becomes numbers
MODEL_CARD.md         for people; MODEL_CARD.html is the same in a browser
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedapa.analysis.personalized_model import predictions
from fedapa.core.tree import Tree, digest
from fedapa.data import schema as schemas
from fedapa.data.arrays_file import read_npz
from fedapa.data.cell_format import CellFormat
from fedapa.data.schema import Schema
from fedapa.data.site_description import Sites
from fedapa.data.site_images import KINDS, paths_beside, read_images
from fedapa.data.tables import Table, read_table
from fedapa.errors import InputError
from fedapa.federation.kit import KIT
from fedapa.methods.catalogue import make
from fedapa.methods.method import Method
from fedapa.site.card_page import card_page
from fedapa.store.atomic_io import make_folder, write_atomically, write_json
from fedapa.training.model import build_model
from fedapa.training.objective import make_objective
from fedapa.training.task import Task

FORMAT = "fedapa-site-model-1"
TENSORS, ABOUT, PREPARATION, CARD = "model.safetensors", "model.json", "preprocessing.json", "MODEL_CARD.md"
PAGE = "MODEL_CARD.html"
WRITTEN = ("missing", "missing_values", "header", "encoding", "decimal", "thousands", "dates", "booleans")
READING = (*WRITTEN, "image_column", "image_size", "label")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SiteModel:
    site: str
    method: Method
    task: Task
    state: Tree
    schema: Schema
    reading: Mapping[str, Any]  # how this site's files are written
    threshold: float | None = None  # of two classes: the probability from which a row counts as the last one

    def predict(self, path: Path) -> tuple[Floats, list[str], list[str]]:
        """Probabilities [rows, classes], or numbers [rows, 1], of a file (or a folder of images), the rows' names, and
        what is odd."""
        x, names, odd = self._inputs(path)
        if tuple(x.shape[1:]) != (self.schema.shape or (len(self.schema.inputs),)):
            shape = list(self.schema.shape)
            raise InputError(f"{path}: samples of shape {list(x.shape[1:])}, the model takes {shape}", "resize them")
        tensor = torch.tensor(x) if x.dtype == np.uint8 else torch.tensor(x, dtype=torch.float32)
        return predictions(self.method, self.task, self.state, tensor), names, odd

    def _inputs(self, path: Path) -> tuple[npt.NDArray[Any], list[str], list[str]]:
        if self.schema.columns:
            table = self._table(path)
            return schemas.transform(self.schema, table), _lines(table), schemas.strangers(self.schema, table)
        if path.suffix.lower() == ".npz":
            x = read_npz(path, "numpy.savez(file, x=...)").get("x")
            if x is None or x.ndim < 1:
                raise InputError(f"{path}: it holds no array x", "numpy.savez(file, x=...)")
            return x, [str(k) for k in range(len(x))], []
        files = self._files(path)
        size = self.reading.get("image_size")
        return read_images(files, self.schema.mode, tuple(size) if size else None), [str(f) for f in files], []

    def _files(self, path: Path) -> list[Path]:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix.lower() in KINDS)
        elif path.suffix.lower() in KINDS:
            files = [path]
        else:
            column = self.reading.get("image_column") or "image"
            files = list(paths_beside(path, list(self._table(path).column(column, "image column"))))
        if not files:
            raise InputError(f"{path} holds no images", f"known are {', '.join(KINDS)}")
        return files

    def _table(self, path: Path) -> Table:
        """As this site's files are written; a file without the label may leave its name out of the header."""
        kept = {k: v for k, v in self.reading.items() if k in ("missing", "header", "encoding")}
        wanted = {column.name for column in self.schema.columns}
        special, dates = (
            {k: v for k, v in dict(self.reading.get(key, {})).items() if k in wanted}
            for key in ("missing_values", "dates")
        )
        written = {key: self.reading[key] for key in ("decimal", "thousands") if key in self.reading}
        booleans = [name for name in self.reading.get("booleans", ()) if name in wanted]
        cells = CellFormat(**written, dates=dates, booleans=booleans)
        return read_table(path, **kept, missing_values=special, cells=cells)


def _lines(table: Table) -> list[str]:
    return [str(line) for line in table.lines]


def write_model(
    folder: Path,
    site: str,
    base: str,
    settings: Mapping[str, Any],
    model: Mapping[str, Any],
    task: Task,
    state: Tree,
    schema: Schema,
    sites: Sites,
    card: str,
    facts: Mapping[str, Any],
) -> Path:
    """All files; what is there already is replaced."""
    make_folder(folder)
    kept = {name: leaf.contiguous().clone() for name, leaf in state.items()}
    save_file(kept, folder / TENSORS)
    about = {
        "format": FORMAT,
        "site": site,
        "method": {"name": base, "settings": dict(settings)},
        "model": dict(model),
        "classes": list(schema.class_names),
        "shape": list(schema.shape or (len(schema.inputs),)),
        "mean": list(task.mean),
        "std": list(task.std),
        "digest": digest(kept),
        "objective": _objective(task),
        **facts,
    }
    write_json(folder / ABOUT, about)
    reading = {key: value for key in READING if (value := getattr(sites, key)) is not None}
    write_json(folder / PREPARATION, {"schema": schemas.to_json(schema), "reading": _plain(reading)})
    write_atomically(folder / CARD, card.encode())
    write_atomically(folder / PAGE, card_page(card).encode())
    return folder


def _objective(task: Task) -> dict[str, Any]:
    return {"name": task.objective.spec, "settings": asdict(task.objective)}


def model_folder(folder: Path) -> Path:
    """The folder itself, or site-model/ in it."""
    inner = folder / "site-model"
    if (folder / ABOUT).is_file() or not folder.is_dir():
        return folder
    if (folder / KIT).is_file() and not inner.is_dir():
        raise InputError(f"{folder} is a kit without a site-model/", f"fedapa site export {folder} makes it")
    return inner if inner.is_dir() else folder


def read_model(folder: Path) -> SiteModel:
    """A site's model, checked to be as it was written."""
    about, preparation = (_json(folder / name) for name in (ABOUT, PREPARATION))
    try:
        state = {name: leaf.clone() for name, leaf in load_file(folder / TENSORS).items()}
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {folder / TENSORS}: {error}", "take the folder as it was written") from None
    try:
        if about["format"] != FORMAT:
            raise InputError(f"{folder / ABOUT}: format {about['format']} is not known", "update fedapa")
        if about["digest"] != digest(state):
            raise InputError(f"{folder / TENSORS} is not the file that was written here", "take the original")
        schema = schemas.from_json(preparation["schema"], str(folder / PREPARATION))
        model, method = about["model"], about["method"]
        aim = about.get("objective") or {"name": "classification", "settings": {}}
        objective = make_objective(aim["name"], **aim["settings"])
        outputs = objective.outputs(len(schema.classes))
        options = {key: value for key, value in model.items() if key != "name"}
        split = build_model(model["name"], tuple(about["shape"]), outputs, **options)
        mean, std = tuple(about["mean"]), tuple(about["std"])
        task = Task(split, len(schema.classes), torch.ones(1), mean=mean, std=std, objective=objective)
        made = make(method["name"], **method["settings"])
        return SiteModel(about["site"], made, task, state, schema, preparation["reading"], about.get("threshold"))
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder} is not a site-model ({error!r})", "take the folder as it was written") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(f"{path} does not exist", "name a folder site-model/, as `fedapa silo run` makes it") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error})", "take the folder as it was written") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple | list) else value
