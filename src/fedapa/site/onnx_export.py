"""A site's model as ONNX: from prepared inputs to probabilities."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from fedapa.errors import InputError
from fedapa.site.site_model import SiteModel, read_model


def check_onnx() -> None:
    if find_spec("onnxscript") is None or find_spec("onnx") is None:
        raise InputError("writing ONNX needs onnxscript", "pip install 'fedapa[onnx]'")


class Network(nn.Module):
    """The personalized model as one module: prepared inputs in, probabilities or numbers out."""

    def __init__(self, found: SiteModel) -> None:
        super().__init__()
        self.found = found
        for name, leaf in found.state.items():
            self.register_buffer(name, leaf)

    def forward(self, x: Tensor) -> Tensor:
        state = {name: getattr(self, name) for name in self.found.state}
        return self.found.task.objective.predictions(self.found.method.predict(self.found.task, state, x))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's own messages."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def write_onnx(folder: Path) -> Path:
    """model.onnx beside the other files; inputs are those of preprocessing.json, any number of rows."""
    check_onnx()
    found, path = read_model(folder), folder / "model.onnx"
    shape = found.schema.shape or (len(found.schema.inputs),)
    with _quiet():
        torch.onnx.export(
            Network(found).eval(),
            (torch.zeros(2, *shape),),
            str(path),
            input_names=["inputs"],
            output_names=["probabilities"],
            dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return path
