"""Does a site's data fit the layout that was agreed on? What differs is named at the site, and only there.

Columns are compared by name and order, and by kind, unit and codes; classes by name and order; numbers to predict by
their range. Columns that a site has beyond the agreed ones are not read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from fedapa.data.cell_format import as_number, canonical
from fedapa.data.schema import MOST_LEVELS, Column, Schema, in_order, some
from fedapa.data.site_description import Sites
from fedapa.data.site_layout import Layout, LayoutColumn
from fedapa.data.tables import Cells, Table
from fedapa.errors import InputError, closest

MOST = 5  # differences in one message
HINT = "correct the file or its [sites], or ask the coordinator for another layout"


class Differs(InputError):
    """A site's data do not fit the agreed layout. The text names columns and cells: it stays at the site."""


def layout_of(schema: Schema) -> Layout:
    """What of a schema all sites must share: everything but the scaling and the texts behind a class."""
    columns = [LayoutColumn(c.name, c.kind, c.levels, c.indicator, c.unit) for c in schema.columns]
    return Layout(schema.label, schema.class_names, schema.target_range, schema.shape, schema.mode, tuple(columns))


def schema_of(layout: Layout) -> Schema:
    """Unscaled; a class is meant by its own name."""
    columns = [Column(c.name, c.kind, tuple(c.levels), c.indicator, unit=c.unit) for c in layout.columns]
    classes = {name: (canonical(name),) for name in layout.classes}
    return Schema(tuple(columns), layout.label, classes, tuple(layout.shape), layout.mode, layout.target_range)


def fingerprint(schema: Schema) -> str:
    """The same at two sites if and only if their layouts are."""
    return hashlib.sha256(json.dumps(asdict(layout_of(schema)), sort_keys=True).encode()).hexdigest()


# --- one layout from several proposals -----------------------------------------------------------


def merged(
    proposals: Mapping[str, Schema], common: bool = False, unlike: Sequence[str] = ()
) -> tuple[Schema, list[str]]:
    """The unscaled schema that fits what all sites propose, by their names; and what some of them should know.

    Codes and classes are those of all sites, in one order. Sites whose codes or classes have nothing in common may
    write the same things in two ways: an error, but for the columns ``unlike``. Columns that a site lacks are an error,
    or with ``common`` left out.
    """
    (first, start), *others = proposals.items()
    for name, other in others:
        for what in ("label", "shape", "mode"):
            one, two = getattr(start, what), getattr(other, what)
            if one != two:
                raise InputError(f"{first} and {name} differ: {what} is {one!r} and {two!r}", "they must be equal")
    columns, notes = _merged_columns(proposals, common, unlike)
    classes = _merged_classes(proposals)
    for name, other in proposals.items():
        if lacking := [c for c in classes if c not in other.classes]:
            notes.append(f"{name} has no row of class {some(lacking)}")
    limits = [p.target_range for p in proposals.values() if p.target_range is not None]
    target = (min(low for low, _ in limits), max(high for _, high in limits)) if limits else None
    return replace(start, columns=columns, classes=classes, target_range=target), notes


def _merged_columns(
    proposals: Mapping[str, Schema], common: bool, unlike: Sequence[str]
) -> tuple[tuple[Column, ...], list[str]]:
    by_site = {name: {column.name: column for column in found.columns} for name, found in proposals.items()}
    first, notes = next(iter(by_site)), []
    everywhere = [name for name in by_site[first] if all(name in columns for columns in by_site.values())]
    rest = dict.fromkeys(name for columns in by_site.values() for name in columns if name not in everywhere)
    if rest and not common:
        name = next(iter(rest))
        without = [site for site, columns in by_site.items() if name not in columns]
        raise InputError(
            f"{some(list(rest))}: not in every proposal; {without[0]} has no column '{name}'",
            "add what is missing there (empty if never measured; look under drop), or leave out with --common",
        )
    if rest:
        notes.append(f"left out, as not in every proposal: {some(list(rest))}")
    if any(by_site.values()) and not everywhere:
        raise InputError("the proposals have no column in common", "are these files of one study?")
    columns = tuple(_merged_column({site: c[name] for site, c in by_site.items()}, unlike) for name in everywhere)
    for site, found in by_site.items():
        if [name for name in found if name in everywhere] != everywhere:
            notes.append(
                f"{site} has the columns in another order than {first}: there, `fedapa site schema` makes a schema.json"
                " of the new config, which the site names as its schema_file"
            )
    return columns, notes


def _merged_column(found: Mapping[str, Column], unlike: Sequence[str]) -> Column:
    (first, start), *others = found.items()
    for site, column in others:
        if column.kind != start.kind:
            code, number = (site, first) if column.kind == "category" else (first, site)
            hint = f'at {number} say categories = ["{start.name}"], or at {code} write numbers'
            raise InputError(f"column '{start.name}' is a number at {number} and a code or text at {code}", hint)
    units = {column.unit: site for site, column in found.items() if column.unit}
    if len(units) > 1:
        (one, here), (two, there) = list(units.items())[:2]
        raise InputError(f"column '{start.name}' is in {one} at {here} and in {two} at {there}", "convert one of them")
    levels = sorted({level for column in found.values() for level in column.levels}, key=in_order)
    if start.kind == "category" and start.name not in unlike:
        _check_alike(f"column '{start.name}'", "codes", {site: c.levels for site, c in found.items()}, start.name)
    if len(levels) > MOST_LEVELS:
        hint = f"leave the column out at every site, or write fewer codes; at most {MOST_LEVELS}"
        raise InputError(f"column '{start.name}' has {len(levels)} codes at all sites together", hint)
    is_missing = any(column.indicator for column in found.values())
    return Column(start.name, start.kind, tuple(levels), is_missing, unit=next(iter(units), ""))


def _check_alike(what: str, things: str, found: Mapping[str, Sequence[str]], column: str = "") -> None:
    """Refuse a site that has nothing in common with any other one."""
    for site, mine in found.items():
        others = {name: theirs for name, theirs in found.items() if name != site and theirs}
        if mine and others and not any(set(mine) & set(theirs) for theirs in others.values()):
            name, theirs = next(iter(others.items()))
            here, there = some(mine, 4), some(theirs, 4)
            hint = "write the same thing in the same way at all sites"
            hint += f"; if these are different things: --unlike {column}" if column else ""
            raise InputError(f"{what} has other {things} at {site} ({here}) than at {name} ({there})", hint)


def _merged_classes(proposals: Mapping[str, Schema]) -> dict[str, tuple[str, ...]]:
    """All classes, in an order that every proposal has: that of the longest one, or of numbers and letters."""
    found = {site: list(schema.class_names) for site, schema in proposals.items()}
    kinds = {bool(names): site for site, names in found.items()}
    if len(kinds) > 1:
        raise InputError(f"{kinds[True]} predicts classes and {kinds[False]} numbers", "they must have one target")
    _check_alike("the label", "classes", found)
    known = {name for names in found.values() for name in names}
    for order in (max(found.values(), key=len), sorted(known, key=in_order)):
        if known == set(order) and all([n for n in order if n in names] == names for names in found.values()):
            return {name: (canonical(name),) for name in order}
    first, *_ = found
    other = next(site for site in found if found[site] != found[first])
    here, there = (f"{', '.join(found[site])} at {site}" for site in (first, other))
    raise InputError(
        f"the classes are {here} and {there}: in which order?",
        "declare the classes in one order at every site: classes = [...] in [sites]",
    )


# --- one site beside the layout ------------------------------------------------------------------


def fitting(
    layout: Layout, sites: Sites, name: str, table: Table | None, labels: Cells, shape: Sequence[int] = ()
) -> Schema:
    """The schema by which this site's data are read; ``Differs`` if they do not fit it."""
    agreed = schema_of(layout)
    if found := list(differences(agreed, sites, table, labels, shape)):
        more = f"; and {len(found) - MOST} more differences" if len(found) > MOST else ""
        raise Differs(f"site {name} differs from the agreed layout: {'; '.join(found[:MOST])}{more}", HINT)
    if sites.classes is None or not agreed.classes:
        return agreed
    return replace(agreed, classes={name: tuple(map(canonical, texts)) for name, texts in sites.classes.items()})


def differences(
    agreed: Schema, sites: Sites, table: Table | None, labels: Cells, shape: Sequence[int] = ()
) -> Iterator[str]:
    if sites.predicted != agreed.label:
        yield f"the label is '{sites.predicted}' here and '{agreed.label}' there"
    if (table is not None) != bool(agreed.columns):
        yield "this is a table, agreed are samples" if table is not None else "these are samples, agreed is a table"
    elif table is not None:
        yield from _columns(agreed, sites, table)
    elif tuple(shape) != agreed.shape:
        yield f"samples have the shape {list(shape)} here and {list(agreed.shape)} there"
    yield from _classes(agreed, sites, labels) if agreed.classes else _numbers(agreed, labels)


def between(agreed: Schema, mine: Schema) -> Iterator[str]:
    """What differs between two schemas, such as a site's schema_file and the run's layout."""
    one, other = asdict(layout_of(agreed)), asdict(layout_of(mine))
    there, here = ({c["name"]: c for c in side.pop("columns")} for side in (one, other))
    yield from (f"{key} is {other[key]!r} here and {one[key]!r} there" for key in one if one[key] != other[key])
    yield from (f"column '{name}' is not in the schema_file" for name in there if name not in here)
    yield from (f"column '{name}' is not agreed" for name in here if name not in there)
    yield from (f"column '{name}' differs" for name in there if name in here and here[name] != there[name])
    if there.keys() == here.keys() and list(there) != list(here):
        yield "the columns are in another order"


def _columns(agreed: Schema, sites: Sites, table: Table) -> Iterator[str]:
    names = [column.name for column in agreed.columns]
    extra = [name for name in table.columns if name not in names]
    for column in agreed.columns:
        if column.name in table.columns:
            yield from _column(column, sites, table)
        elif column.name in sites.drop:
            yield f"column '{column.name}' is agreed, but under drop here: take it from that list"
        else:
            like = closest(column.name, extra)
            yield f"there is no column '{column.name}'{f', but one called {like!r}' if like else ''}"
    ordered = [name for name in names if name in table.columns]
    mine = [name for name in table.columns if name in names]
    if mine != ordered:
        k = next(k for k, name in enumerate(mine) if name != ordered[k])
        yield f"the columns are in another order: '{mine[k]}' stands in the place of '{ordered[k]}'"


def _column(column: Column, sites: Sites, table: Table) -> Iterator[str]:
    unit = sites.units.get(column.name, "")
    if unit and column.unit and unit != column.unit:
        yield f"column '{column.name}' is in {unit} here and in {column.unit} there"
    cells = table.columns[column.name]
    if column.kind == "category":
        odd = [cell for cell in cells if cell is not None and cell not in column.levels]
        if odd:
            yield f"column '{column.name}' has '{odd[0]}' (line {_line(table, cells, odd[0])}), which is not agreed"
    elif column.name in sites.categories:
        yield f"column '{column.name}' is a code here and a number there"
    else:
        odd = [cell for cell in cells if cell is not None and as_number(cell) is None]
        if odd:
            yield f"column '{column.name}' has the text '{odd[0]}' (line {_line(table, cells, odd[0])})"


def _line(table: Table, cells: Cells, wanted: str) -> int:
    return int(table.lines[list(cells).index(wanted)])


def _classes(agreed: Schema, sites: Sites, labels: Cells) -> Iterator[str]:
    there = list(agreed.class_names)
    if sites.classes is not None and (here := list(sites.classes)) != there:
        order = " in this order" if set(here) == set(there) else ""
        yield f"the classes are {', '.join(here)} here and {', '.join(there)}{order} there"
    elif sites.classes is None:
        known = {value for values in agreed.classes.values() for value in values}
        odd = sorted({str(label) for label in labels if label not in known})
        if odd:
            yield f"the label '{odd[0]}' is none of the classes {', '.join(there)}; say in [sites] classes which it is"


def _numbers(agreed: Schema, labels: Cells) -> Iterator[str]:
    values = [as_number(label) for label in labels]
    if None in values:
        yield f"the label '{labels[values.index(None)]}' is not a number"
    elif agreed.target_range is not None:
        low, high = agreed.target_range
        out = [value for value in values if value is not None and not low <= value <= high]
        if out:
            yield f"{len(out)} labels, such as {out[0]:g}, are outside of {low:g} to {high:g}"
