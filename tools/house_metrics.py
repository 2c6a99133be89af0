"""Print facts about the source: its import graph, its functions and files, and what stands where it should not.

    python tools/house_metrics.py                          # the tree around this file
    python tools/house_metrics.py b7cdbb5 HEAD             # commits of this repository, side by side
    python tools/house_metrics.py --format json b7cdbb5

A commit is read by `git archive` into a temporary folder; the working tree is not touched.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "fedapa"
LONG_FILE = 300
SQL = re.compile(
    r"^\s*(SELECT\b.*\bFROM|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|CREATE TABLE|ALTER TABLE|PRAGMA)\b",
    re.DOTALL,
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, frozenset[str]]  # module: the modules that it imports


class Module(NamedTuple):
    path: str  # relative to the package, with slashes
    name: str  # dotted
    text: str
    tree: ast.Module


@dataclass(frozen=True)
class Facts:
    """Of one source tree; the names of fields are the keys of the JSON output."""

    modules: int
    lines: int
    import_edges: int
    import_cycles: list[list[str]]  # of modules that import each other when they are loaded
    hidden_cycles: list[list[str]]  # also through imports inside functions, and those for type checkers
    longest_import_chain: int  # modules
    functions: int
    body_lines_median: float
    body_lines_p90: float
    body_lines_max: int
    longest_function: str
    parameters_max: int
    most_parameters: str
    files_over_300_lines: list[str]
    duplicate_module_names: list[str]
    fmt_skip: int
    sql_outside_store: list[str]
    flwr_outside_transport: list[str]


def facts(source: Path) -> Facts:
    """Facts of the package below ``source``, the folder that holds it."""
    modules = read(source / PACKAGE)
    loaded, hidden = import_graph(modules, hidden=False), import_graph(modules, hidden=True)
    bodies = [(body_lines(f), f"{m.path}:{f.name}", f) for m in modules for f in functions(m.tree)]
    lengths = [length for length, _, _ in bodies]
    names = Counter(Path(m.path).name for m in modules if not m.path.endswith("__init__.py"))
    longest = max(bodies, key=lambda body: body[0])
    widest = max(bodies, key=lambda body: parameters(body[2]))
    return Facts(
        modules=len(modules),
        lines=sum(line_count(m) for m in modules),
        import_edges=sum(map(len, loaded.values())),
        import_cycles=cycles(loaded),
        hidden_cycles=cycles(hidden),
        longest_import_chain=longest_chain(loaded),
        functions=len(bodies),
        body_lines_median=float(np.median(lengths)),
        body_lines_p90=float(np.percentile(lengths, 90)),
        body_lines_max=longest[0],
        longest_function=longest[1],
        parameters_max=parameters(widest[2]),
        most_parameters=widest[1],
        files_over_300_lines=[m.path for m in sorted(modules, key=line_count) if line_count(m) > LONG_FILE][::-1],
        duplicate_module_names=sorted(name for name, count in names.items() if count > 1),
        fmt_skip=sum(m.text.count("# fmt: skip") for m in modules),
        sql_outside_store=[m.path for m in modules if not m.path.startswith("store/") and holds_sql(m.tree)],
        flwr_outside_transport=[
            m.path for m in modules if not m.path.startswith("transports/flower/") and imports(m.tree, "flwr")
        ],
    )


def read(package: Path) -> list[Module]:
    found = []
    for path in sorted(package.rglob("*.py")):
        inside, text = path.relative_to(package), path.read_text(encoding="utf-8")
        parts = [package.name, *inside.with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(inside.as_posix(), name, text, ast.parse(text)))
    return found


def line_count(module: Module) -> int:
    return module.text.count("\n")


# --- imports --------------------------------------------------------------------------------------


def import_graph(modules: Sequence[Module], hidden: bool) -> Graph:
    """Which module imports which of the package; ``hidden`` counts imports that loading it does not execute."""
    known = {m.name for m in modules}
    return {m.name: frozenset(_targets(m, known, hidden)) - {m.name} for m in modules}


def _targets(module: Module, known: set[str], hidden: bool) -> Iterator[str]:
    for node in import_nodes(module.tree, hidden):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif node.module is not None and node.level == 0:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner & known or {node.module} & known  # a module from a package, or names from a module


def import_nodes(tree: ast.AST, hidden: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports of a module; unless ``hidden``, not those inside functions or for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif hidden or not (isinstance(node, Function) or _for_type_checkers(node)):
            yield from import_nodes(node, hidden)


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(tree: ast.AST, package: str) -> bool:
    """Does any line of a module import this package?"""
    for node in import_nodes(tree, hidden=True):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        if any(name.split(".")[0] == package for name in names):
            return True
    return False


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which reaches the others."""
    order = sorted(graph)
    place = {name: i for i, name in enumerate(order)}
    edges = [(place[a], place[b]) for a, targets in graph.items() for b in targets]
    rows, columns = np.array(edges, dtype=int).reshape(-1, 2).T
    matrix = csr_array((np.ones(len(edges)), (rows, columns)), shape=(len(order), len(order)))
    _, groups = connected_components(matrix, connection="strong")
    members: dict[int, list[str]] = {}
    for name, group in zip(order, groups.tolist(), strict=True):
        members.setdefault(group, []).append(name)
    return [found for found in members.values() if len(found) > 1]


def longest_chain(graph: Graph) -> int:
    """Modules on the longest path; of a graph with cycles, a lower bound."""
    inside: set[str] = set()

    @cache
    def depth(name: str) -> int:
        inside.add(name)
        found = 1 + max((depth(other) for other in sorted(graph[name]) if other not in inside), default=0)
        inside.discard(name)
        return found

    return max(map(depth, sorted(graph)), default=0)


# --- functions ------------------------------------------------------------------------------------


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Lines from the first statement to the last, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameters(function: Function) -> int:
    """Without ``self`` and ``cls``."""
    found = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in found if argument.arg not in ("self", "cls")])


def holds_sql(tree: ast.Module) -> bool:
    """Is a statement of SQL among the texts of a module? Docstrings do not begin like one."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(SQL.match(text) for text in texts)


# --- commits and output ---------------------------------------------------------------------------


def facts_of_commit(commit: str, repository: Path = ROOT) -> Facts:
    command = ["git", "-C", str(repository), "archive", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: git cannot read {commit}: {done.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
        return facts(Path(folder) / "src")


def shown(value: Any) -> str:
    """A list by its length, and its first members where they fit a line."""
    if not isinstance(value, list):
        return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
    words = [" <-> ".join(one) if isinstance(one, list) else one for one in value]
    return f"{len(value)}: {', '.join(words[:3])}{', ...' if len(words) > 3 else ''}" if value else "0"


def counted(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else shown(value)


def table(found: Mapping[str, Facts]) -> str:
    """One row per fact and one column per tree, as Markdown; a list is shown by its length."""
    rows = [["", *found], ["---"] * (len(found) + 1)]
    for name in Facts.__dataclass_fields__:
        rows.append([name.replace("_", " "), *(counted(getattr(one, name)) for one in found.values())])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_text(found: Mapping[str, Facts]) -> str:
    lines = []
    for label, one in found.items():
        lines += [label, *(f"  {name.replace('_', ' '):24} {shown(value)}" for name, value in asdict(one).items())]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commits", nargs="*", help="commits of this repository; without any, the working tree")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="folder of the package, without commits")
    parser.add_argument("--format", choices=["text", "table", "json"], default="text")
    given = parser.parse_args()
    found = {commit: facts_of_commit(commit) for commit in given.commits} or {"working tree": facts(given.source)}
    if given.format == "json":
        print(json.dumps({label: asdict(one) for label, one in found.items()}, indent=2))
    else:
        print(table(found) if given.format == "table" else as_text(found))


if __name__ == "__main__":
    main()
