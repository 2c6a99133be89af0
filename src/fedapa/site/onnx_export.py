"""A site's model as ONNX with its preprocessing inside: one input per column, probabilities or numbers out.

Of a table, every column is an input of its own name and of shape [rows, 1]: numbers as float64, NaN where there is no
value; categories as text, "" where there is none, written as `fedapa predict` reads them (1.0 is 1). Of samples, the
input is `inputs`, as `fedapa predict` reads them from an .npz file. Of classes, a second output names the class of
every row as `fedapa predict` does: the likeliest, or by the model's threshold, which is among the metadata.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedapa.data.schema import Column, Schema
from fedapa.errors import InputError
from fedapa.site.site_model import SiteModel, read_model

ML = "ai.onnx.ml"  # the operators of ONNX for tables
ML_VERSION = 3
INNER, OUTPUT, CLASS = "fedapa/", "probabilities", "predicted_class"  # beginning of names inside; the outputs
PREPARED = f"{INNER}prepared"


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
    """model.onnx beside the other files; it takes any number of rows."""
    check_onnx()
    import onnx

    found, path = read_model(folder), folder / "model.onnx"
    shape, is_table = found.schema.shape or (len(found.schema.inputs),), bool(found.schema.columns)
    with _quiet():
        torch.onnx.export(
            Network(found).eval(),
            (torch.zeros(2, *shape),),
            str(path),
            input_names=[PREPARED if is_table else "inputs"],
            output_names=[OUTPUT],
            dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    if is_table:
        model = _with_preparation(model, found.schema)
    if found.schema.classes:
        _add_class(model.graph, found.schema.class_names, found.threshold)
    about = {"classes": json.dumps(found.schema.class_names), "site": found.site}
    if found.threshold is not None:
        about["threshold"] = repr(found.threshold)
    onnx.helper.set_model_props(model, about)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _with_preparation(model: Any, schema: Schema) -> Any:
    from onnx import compose

    if odd := [c.name for c in schema.columns if c.name in (OUTPUT, CLASS) or c.name.startswith(INNER)]:
        raise InputError(f"a column called {odd[0]!r} cannot be an input of ONNX", "rename it and train again")
    model = compose.add_prefix(model, f"{INNER}model/", rename_inputs=False, rename_outputs=False)
    prepared = _preparation(schema, model)
    return compose.merge_models(prepared, model, io_map=[(PREPARED, PREPARED)])


def _preparation(schema: Schema, model: Any) -> Any:
    """The arithmetic of ``data.schema.transform``: in float64, cast at the end."""
    from onnx import TensorProto, helper

    nodes, constants, inputs, parts = [], [], [], []
    for k, column in enumerate(schema.columns):
        kind = TensorProto.DOUBLE if column.kind == "number" else TensorProto.STRING
        inputs.append(helper.make_tensor_value_info(column.name, kind, ["rows", 1]))
        made = _number(column, k) if column.kind == "number" else _category(column, k)
        nodes += made[0]
        constants += made[1]
        parts += made[2]
    nodes.append(helper.make_node("Concat", parts, [PREPARED], axis=1, name="together"))
    out = helper.make_tensor_value_info(PREPARED, TensorProto.FLOAT, ["rows", len(schema.inputs)])
    graph = helper.make_graph(nodes, "preparation", inputs, [out], constants)
    versions = {one.domain: one.version for one in model.opset_import}
    opsets = [helper.make_opsetid("", versions.get("", 18)), helper.make_opsetid(ML, versions.get(ML, ML_VERSION))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version)


def _add_class(graph: Any, names: Sequence[str], threshold: float | None) -> None:
    """The name of the class of every row as another output."""
    from onnx import TensorProto, helper

    listed, place, last, cut, over = (f"{INNER}class/{word}" for word in ("names", "place", "last", "cut", "over"))
    texts: list[Any] = [name.encode() for name in names]
    constants = [helper.make_tensor(listed, TensorProto.STRING, [len(names)], texts)]
    if threshold is None or len(names) != 2:
        nodes = [helper.make_node("ArgMax", [OUTPUT], [place], axis=1, keepdims=0)]
    else:
        constants += [
            helper.make_tensor(last, TensorProto.INT64, [], [1]),
            helper.make_tensor(cut, TensorProto.FLOAT, [], [threshold]),
        ]
        nodes = [
            helper.make_node("Gather", [OUTPUT, last], [f"{last}/p"], axis=1),
            helper.make_node("GreaterOrEqual", [f"{last}/p", cut], [over]),
            helper.make_node("Cast", [over], [place], to=TensorProto.INT64),
        ]
    graph.node.extend([*nodes, helper.make_node("Gather", [listed, place], [CLASS])])
    graph.initializer.extend(constants)
    graph.output.append(helper.make_tensor_value_info(CLASS, TensorProto.STRING, ["rows"]))


def _number(column: Column, k: int) -> tuple[list[Any], list[Any], list[str]]:
    """(x - mean) / scale, 0 where there is no value, and where it has one the flag of that."""
    from onnx import TensorProto, helper

    assert column.mean is not None
    assert column.scale is not None
    names = {
        word: f"{INNER}{word}/{k}"
        for word in ("mean", "scale", "zero", "gap", "off", "ratio", "filled", "value", "flag")
    }
    constants = [
        helper.make_tensor(names[word], TensorProto.DOUBLE, [1], [value])
        for word, value in (("mean", column.mean), ("scale", column.scale), ("zero", 0.0))
    ]
    nodes = [
        helper.make_node("IsNaN", [column.name], [names["gap"]]),
        helper.make_node("Sub", [column.name, names["mean"]], [names["off"]]),
        helper.make_node("Div", [names["off"], names["scale"]], [names["ratio"]]),
        helper.make_node("Where", [names["gap"], names["zero"], names["ratio"]], [names["filled"]]),
        helper.make_node("Cast", [names["filled"]], [names["value"]], to=TensorProto.FLOAT),
    ]
    if not column.indicator:
        return nodes, constants, [names["value"]]
    nodes.append(helper.make_node("Cast", [names["gap"]], [names["flag"]], to=TensorProto.FLOAT))
    return nodes, constants, [names["value"], names["flag"]]


def _category(column: Column, k: int) -> tuple[list[Any], list[Any], list[str]]:
    """One input per level; none of them for a text that was never seen."""
    from onnx import TensorProto, helper

    coded, flat, shape = (f"{INNER}{word}/{k}" for word in ("coded", "flat", "shape"))
    nodes = [
        helper.make_node("OneHotEncoder", [column.name], [coded], domain=ML, cats_strings=list(column.levels), zeros=1),
        helper.make_node("Reshape", [coded, shape], [flat]),
    ]
    return nodes, [helper.make_tensor(shape, TensorProto.INT64, [2], [-1, len(column.levels)])], [flat]
