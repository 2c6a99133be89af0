"""Write docs/methods.md and docs/methods/NAME.md from the methods themselves: python docs/make_methods.py

Every page is the method's own docstring, its catalogue line, its hyper-parameters and the states and messages that
the code really has on LeNet-5, CIFAR-10 and 20 clients.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

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
    found = {"methods.md": "\n".join([INTRO, *head, *rows, NOTES])}
    for name in METHODS:
        exchanged = exchange(make(name), task)
        found[f"methods/{name}.md"] = entry_of(name, task, exchanged)
        if _same(name) == name:
            found[f"methods/{name}.svg"] = picture(METHODS[name].title, exchanged)
    return found


class Exchange(NamedTuple):
    """What the two sides keep, and what goes between them."""

    server: Tree
    client: Tree
    down: Tree
    up: Tree

    @property
    def kib(self) -> float:
        return (count_bytes(self.down) + count_bytes(self.up)) / 1024


def exchange(method: Method, task: Task) -> Exchange:
    return Exchange(*method.init(task, 0), *wire(method, task, torch.zeros(3, 32, 32)))


def _same(name: str) -> str:
    """The first method with the same code."""
    return next(other for other, found in METHODS.items() if found.where == METHODS[name].where)


def entry_of(name: str, task: Task, exchanged: Exchange) -> str:
    entry, method = METHODS[name], make(name)
    lines = [f"# {entry.title}", "", _gets(name), ""]
    if (same := _same(name)) != name:
        return "\n".join([*lines, f"The method [{METHODS[same].title}]({same}.md) with {settings(name)}.", ""])
    document = sys.modules[method_class(name).__module__].__doc__ or ""
    rule = ["## Rule", "", "```text", document.strip(), "```", ""]
    beside = name if name == "local" else f"local,{name}"
    used = ["## Use it", "", "```console", f"$ fedapa run cifar10-dirichlet --method {beside}", "```", ""]
    told = [*lines, *rule, *facts(name, method, task, exchanged), *trained(name), *used, *paper(name)]
    return "\n".join(told).rstrip() + "\n"


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


def facts(name: str, method: Method, task: Task, found: Exchange) -> list[str]:
    figure = f"![{METHODS[name].title}: what the server and a client keep and send]({name}.svg)"
    rows = [("server keeps", shapes(found.server)), ("client keeps", shapes(found.client))]
    rows += [("down", shapes(found.down)), ("up", shapes(found.up))]
    rows += [("per client and round", f"{found.kib:.1f} KiB"), ("evaluated", f"{method.evaluated} local training")]
    rows += [("schedule", method.schedule), ("a client that joins later", joins(method, task))]
    table = ["| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows), ""]
    return ["## State and messages", "", figure, "", *table, *hypers(type(method))]


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


# ------------------------------------------------------------------------------------------------------------- figure

BOX, GAP, LINE, MOST_LINES = 260, 240, 19, 6  # pixels; more tensors than fit are counted
STYLE = "text{font:13px system-ui,sans-serif;fill:#1f2328}.t{font-weight:600}.q{fill:#5c636c}.m{text-anchor:middle}"


def picture(title: str, found: Exchange) -> str:
    """The server left, a client right, what each keeps in its box and what is sent along the arrows between."""
    server, client = (["server keeps", *listed(found.server)], ["each client keeps", *listed(found.client)])
    down, up = listed(found.down), listed(found.up)
    needed = max(LINE * max(len(server), len(client)), LINE * (len(down) + len(up)) + 48)
    width, height = 2 * BOX + GAP + 40, needed + 48
    middle, end = 20 + BOX + GAP / 2, 20 + BOX + GAP
    first = 34 + LINE * len(down)
    second = first + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<title>{escape(title)}: what the server and a client keep and send</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        *_box(20, height, server),
        *_box(end, height, client),
        *(_text(middle, 34 + LINE * k, line, "m") for k, line in enumerate(down)),
        *(_arrow(20 + BOX + 8, end - 8, first, "#0067a8") if found.down else ()),
        *(_arrow(end - 8, 20 + BOX + 8, second, "#c4500a") if found.up else ()),
        *(_text(middle, second + 20 + LINE * k, line, "m") for k, line in enumerate(up)),
        _text(middle, height - 12, f"{found.kib:,.1f} KiB per client and round", "m q"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def listed(tree: Tree) -> list[str]:
    lines = [f"{name} {' × '.join(f'{n:,}' for n in leaf.shape)}".strip() for name, leaf in tree.items()]
    if len(lines) > MOST_LINES:
        return [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more"]
    return lines or ["nothing"]


def _box(x: float, height: int, lines: list[str]) -> list[str]:
    outline = f'<rect x="{x}" y="12" width="{BOX}" height="{height - 24}" rx="8" fill="#f6f7f9" stroke="#d9dde2"/>'
    texts = [_text(x + 14, 34 + LINE * k, line, "" if k else "t") for k, line in enumerate(lines)]
    return [outline, *texts]


def _text(x: float, y: float, words: str, kind: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(words)}</text>'


def _arrow(start: float, end: float, y: float, colour: str) -> list[str]:
    back = 9 if end < start else -9
    return [
        f'<path d="M{start:g} {y:g}H{end + back:g}" stroke="{colour}" stroke-width="2"/>',
        f'<path d="M{end:g} {y:g}l{back} -5v10z" fill="{colour}"/>',
    ]


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
