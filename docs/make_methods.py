"""Write docs/methods.md and docs/methods/NAME.md from the methods themselves: python docs/make_methods.py

Every page is the method's own docstring, its catalogue line, its hyper-parameters and the states and messages that
the code really has on LeNet-5, CIFAR-10 and 20 clients.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from fedapa.core.hyper_parameters import describe
from fedapa.core.tree import Tree, count_bytes
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make, method_class
from fedapa.methods.method import Method
from fedapa.methods.papers import PAPERS
from fedapa.methods.recipes import AUTHORS, recipe
from fedapa.simulation import wire
from fedapa.training.model import build_model
from fedapa.training.task import Task

HERE = Path(__file__).parent
INTRO = """# Methods

Every method with a page of its own: the update rule, what goes down and up, the state on both sides, which model is
evaluated, every deviation between the paper, public code and ours, hyper-parameters, citation. Made by
`python docs/make_methods.py` from the code.

`fedapa cite METHOD` prints the BibTeX entry, `fedapa verify METHOD` runs the laws on it. To write one of your own:
[add a method](add-a-method.md).
"""
NOTES = """
## How to read the pages

Shapes and bytes are counted on LeNet-5, CIFAR-10 and 20 clients (P = 61,156 shared, Q = 850 private parameters,
d = 84 features, C = 10 classes, M = 20 clients).

Clients that are not sampled keep their state. What they would receive now and their last models are evaluated in
every round. A round in which nobody answers changes nothing. Runs record the score **before** local training (what
arrived) and **after** it for every method and client; "evaluated" names the one that the method's paper reports.

A client that joins a run that is going, or a finished one (`fedapa onboard`), starts with the same
local state as all others. The last row of every table is what the server adds for it; the others' parts do not change.

Every method has two recipes. The common one is the FedAPA paper's local training (SGD with rate 0.01, momentum 0.9,
batch 64, two epochs) for everybody; momentum is kept from visit to visit only where a client goes on with its own
weights. `METHOD@authors` trains as the method's own paper or released code does. `METHOD+ema` uses the running mean of
a client's own models, which changes neither messages nor training.
"""


def pages() -> dict[str, str]:
    """Every page by its path under docs."""
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 100))
    rows = [
        f"| [{e.title}](methods/{name}.md) | `{name}` | {e.year} | {e.up} | {e.stays} |" for name, e in METHODS.items()
    ]
    head = ["| method | name | year | leaves a client | stays there |", "|---|---|---|---|---|"]
    index = "\n".join([INTRO, *head, *rows, NOTES])
    return {"methods.md": index, **{f"methods/{name}.md": entry_of(name, task) for name in METHODS}}


def entry_of(name: str, task: Task) -> str:
    entry, method = METHODS[name], make(name)
    lines = [f"# {entry.title}", "", _gets(name), ""]
    same = next(other for other, found in METHODS.items() if found.where == entry.where)
    if same != name:
        return "\n".join([*lines, f"The method [{METHODS[same].title}]({same}.md) with {settings(name)}.", ""])
    document = sys.modules[method_class(name).__module__].__doc__ or ""
    rule = ["## Rule", "", "```text", document.strip(), "```", ""]
    used = ["## Use it", "", "```console", f"$ fedapa run cifar10-dirichlet --method local,{name}", "```", ""]
    return "\n".join([*lines, *rule, *facts(method, task), *trained(name), *used, *paper(name)]).rstrip() + "\n"


def _gets(name: str) -> str:
    """The first line: what this is, where its code is, and what leaves a client."""
    entry = METHODS[name]
    source = method_class(name).__module__.replace(".", "/")
    code = f"[{source.rpartition('/')[2]}.py](../../src/{source}.py)"
    leaves = "Nothing leaves a client" if entry.up == "–" else f"Leaves a client: {entry.up}"
    seen = "[who sees it](../what-leaves-the-building.md)"
    return (
        f"`{name}`, {entry.year}. {leaves} ({seen}); stays: {entry.stays}. Code: {code}. [All methods](../methods.md)."
    )


def settings(name: str) -> str:
    return ", ".join(f"`{key} = {value!r}`" for key, value in METHODS[name].preset.items())


def facts(method: Method, task: Task) -> list[str]:
    server, client = method.init(task, 0)
    down, up = wire(method, task, torch.zeros(3, 32, 32))
    kib = (count_bytes(down) + count_bytes(up)) / 1024
    rows = [("server keeps", shapes(server)), ("client keeps", shapes(client))]
    rows += [("down", shapes(down)), ("up", shapes(up))]
    rows += [("per client and round", f"{kib:.1f} KiB"), ("evaluated", f"{method.evaluated} local training")]
    rows += [("schedule", method.schedule), ("a client that joins later", joins(method, task))]
    table = ["| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows), ""]
    return ["## State and messages", "", *table, *hypers(type(method))]


def trained(name: str) -> list[str]:
    """How the authors train it, beside the common recipe."""
    found = recipe(name, AUTHORS)
    values = {**found.training, **found.settings}
    said = ", ".join(f"`{key} = {value!r}`" for key, value in values.items())
    return [f"Recipe `{name}@{AUTHORS}`: {found.source}{f' ({said})' if said else ''}.", ""]


def joins(method: Method, task: Task) -> str:
    """What the server's state gets for one more client, seen from what ``admit`` makes of clients that differ."""
    noise = torch.Generator().manual_seed(0)
    server = {
        name: leaf if name == "A" or leaf.ndim == 1 else leaf + torch.rand(leaf.shape, generator=noise)
        for name, leaf in method.init(task, 0)[0].items()
    }
    try:
        larger = method.admit(task.with_client("", 100), server)
    except InputError as error:
        return f"refused: {error.message}"
    new = [f"{name}: {entry(leaf, server[name])}" for name, leaf in larger.items() if leaf.shape != server[name].shape]
    return "; ".join(new) or "gets what all get"


def entry(larger: Tensor, leaf: Tensor) -> str:
    """The newcomer's part of one tensor, in words."""
    axis = next(k for k in range(leaf.ndim) if larger.shape[k] != leaf.shape[k])
    row = larger.select(axis, -1)
    if not row.any():
        return "0"
    if row.ndim > axis and larger.shape[axis + 1 :] == larger.shape[axis : axis + 1]:
        alone = torch.zeros_like(row)
        alone[..., -1] = 1.0
        return "itself alone" if torch.equal(row, alone) else "as the others', newly computed"
    return "mean of all" if torch.allclose(row, leaf.mean(axis), atol=1e-5) else "its own start"


def hypers(cls: type[Method]) -> list[str]:
    rows = [
        f"| `{row['name']}` | {row['default']!r} | {row['type'].replace('|', '/')} | {row['help']} | {row['source']} |"
        for row in describe(cls)
    ]
    head = ["| hyper-parameter | default | values | meaning | source of the default |", "|---|---|---|---|---|"]
    return ["## Hyper-parameters", "", *head, *rows, ""] if rows else []


def shapes(tree: Tree) -> str:
    return ", ".join(f"{name} {list(leaf.shape)}" for name, leaf in tree.items()) or "nothing"


def paper(name: str) -> list[str]:
    found = PAPERS.get(METHODS[name].paper)
    if found is None:
        return []
    authors = found.authors.replace(" and ", ", ").replace('{\\"u}', "ü").replace("{\\'e}", "é")
    title = found.title.replace("{", "").replace("}", "")
    return ["## Paper", "", f"{authors}: *{title}*. {found.venue}, {found.year}.", ""]


if __name__ == "__main__":
    (HERE / "methods").mkdir(exist_ok=True)
    for where, text in pages().items():
        (HERE / where).write_text(text, encoding="utf-8")
