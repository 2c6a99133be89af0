"""What a method with one global model shares: the whole model, or the extractor alone with private heads.

A comparison of ways to share is one of heads unless both sides keep the same part at home.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedapa.core.tree import Tree
from fedapa.methods.fedavg import sample_mean
from fedapa.methods.sharing import Shared as Shared
from fedapa.training.task import Task

SHARED = "what is sent and averaged: all (paper), or the extractor with private heads"


def common_part(task: Task, model: Tree, shared: Shared) -> Tree:
    """The part of theta and phi that travels."""
    if shared == "extractor":
        return {"theta": model["theta"]}
    return {"omega": task.join(model["theta"], model["phi"])}


def with_common_part(task: Task, model: Tree, down: Tree) -> Tree:
    """theta and phi of ``model``, with what arrived in its place."""
    if "theta" in down:
        return {"theta": down["theta"], "phi": model["phi"]}
    return task.parts(down["omega"])


def mean_part(ups: Sequence[Tree]) -> Tree:
    """The sample-weighted mean of what was uploaded."""
    name = "theta" if "theta" in ups[0] else "omega"
    return {name: sample_mean(ups, name)}
