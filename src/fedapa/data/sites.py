"""Own data of several sites: tables, images or arrays in files, one per site or one with a column of sites.

`assemble` reads the files, agrees on a schema, splits every site's rows and makes tensors; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedapa.data import agreement
from fedapa.data import schema as schemas
from fedapa.data.arrays_file import read_npz
from fedapa.data.cell_format import WORDS, CellFormat, as_number, canonical
from fedapa.data.federated import ClientData, Federated, Split, from_arrays, set_aside, strata
from fedapa.data.schema import Schema, in_order
from fedapa.data.site_description import Sites
from fedapa.data.site_images import in_folder, mode_of, paths_beside, read_images
from fedapa.data.site_layout import Layout
from fedapa.data.sources import SOURCES, locate
from fedapa.data.splits import equal_rows, kept_together, test_rows
from fedapa.data.tables import Cells, Mask, Table, no_such_column, read_table
from fedapa.errors import InputError
from fedapa.streams import stream

Labels = npt.NDArray[np.int64]
Arrays = npt.NDArray[Any]
FEWEST_OF_A_CLASS = 2
MOST_CLASSES = 20  # that nobody wonders about


class Own(NamedTuple):
    """Every site's tensors, the schema that its model needs, and notes about the data."""

    data: Federated
    schemas: tuple[Schema, ...]
    notes: tuple[str, ...]
    held_out: tuple[Table | None, ...]  # the test rows as they stand in the file, of tables


class Material(NamedTuple):
    """One site as its files have it."""

    labels: Cells
    keys: Cells | None  # what groups or orders the rows
    table: Table | None = None  # the columns to learn from
    rows: Table | None = None  # all columns
    x: Arrays | None = None  # samples that are no rows of a table
    mode: str = ""


def assemble(
    sites: Sites,
    seed: int = 0,
    data_dir: Path | None = None,
    agreed: Schema | None = None,
    target: Literal["class", "number"] = "class",
    layout: Layout | None = None,
) -> Own:
    """From files to tensors; the seed decides which rows are test rows, ``target`` what a label is.

    ``agreed`` is a schema to read them by; ``layout`` is what the sites of a federation agreed on, to the letter.
    """
    sites = described(sites, data_dir)
    materials = {name: labelled(name, sites, found) for name, found in read_files(sites).items()}
    notes = [note for _, site_notes in materials.values() for note in site_notes]
    found = {name: material for name, (material, _) in materials.items()}
    schema = _agreed(sites, found, agreed, target) if layout is None else _by_layout(sites, found, layout)
    codes = {name: _codes(name, schema, material) for name, material in found.items()}
    tests = {}
    for name, material in found.items():
        x = _plain(schema, material)
        tests[name], more = _test_mask(sites, name, x, codes[name], material, stream(seed, "test rows", name))
        notes += more
    notes += _seen_elsewhere(schema, found, codes)
    fitted = _fitted(sites, schema, found, tests)
    data = _federated(sites, found, codes, tests, fitted, seed)
    held = tuple(None if m.rows is None else m.rows.take(tests[name]) for name, m in found.items())
    return Own(data, tuple(fitted.values()), tuple(notes), held)


def described(sites: Sites, data_dir: Path | None = None) -> Sites:
    """The same with the files and columns of a built-in source filled in."""
    if sites.source is None:
        _check(sites)
        return sites
    info = SOURCES.get(sites.source)
    if info is None or info.describe is None:
        known = " or ".join(name for name, known in SOURCES.items() if known.sites)
        raise InputError(f"there are no sites called '{sites.source}'", f"known is {known}; or name your files")
    return info.describe(sites, locate(info.name, data_dir))


def read_source(name: str, data_dir: Path | None = None) -> dict[str, int]:
    """Rows of every site of a built-in source, all files read and checked."""
    return {who: len(material.labels) for who, material in read_files(described(Sites(source=name), data_dir)).items()}


def _check(sites: Sites) -> None:
    if not sites.files:
        raise InputError("[sites] names no files", 'for example files = ["north.csv", "south.csv"]')
    if sites.site_column is not None and len(sites.files) > 1:
        raise InputError("site_column is for one file that holds all sites", "leave it out where every site has a file")
    if sites.event is not None and (sites.classes is not None or sites.target_range is not None):
        raise InputError("event is for times: no classes, no target_range", "leave them out, or event")
    if (sites.split in ("stratified", "order")) != (sites.split_column is None):
        raise InputError(
            f"split is '{sites.split}' and split_column is {sites.split_column!r}",
            'split by "group" or "time" names a column, "stratified" and "order" do not',
        )


# --- reading -------------------------------------------------------------------------------------


def read_files(sites: Sites) -> dict[str, Material]:
    mode: list[str] = []  # the first image decides whether all are grey or in colour
    found: dict[str, Material] = {}
    for name, file in sites.files.items():
        path = Path(file).expanduser()
        if path.is_dir():
            found[name] = _from_folder(path, sites, mode)
        elif path.suffix.lower() == ".npz":
            found |= _from_arrays(name, path, sites)
        else:
            table = table_of(path, sites)
            found |= {who: _from_table(who, part, sites, mode) for who, part in _by_site(name, table, sites)}
    kinds = {"table" if m.table is not None else "samples" for m in found.values()}
    if len(kinds) > 1:
        raise InputError("some sites have tables and others images or arrays", "all sites need data of one kind")
    return found


def table_of(path: Path, sites: Sites) -> Table:
    """A table as its site writes it."""
    cells = CellFormat(sites.decimal, sites.thousands, sites.dates, sites.booleans)
    unused = {*sites.drop} - {sites.label, sites.event, sites.site_column, sites.split_column}
    return read_table(path, sites.header, sites.encoding, sites.missing, sites.missing_values, cells, unused)


def _by_site(name: str, table: Table, sites: Sites) -> Iterator[tuple[str, Table]]:
    if sites.site_column is None:
        yield name, table
        return
    column = table.column(sites.site_column, "site column")
    if (gaps := sum(cell is None for cell in column)) > 0:
        raise InputError(f"{table.path}: {gaps} rows name no site in '{sites.site_column}'", "fill it in, or drop them")
    for who in sorted(set(column), key=in_order):
        yield who, table.take(column == who)


def _from_table(name: str, table: Table, sites: Sites, mode: list[str]) -> Material:
    labels = table.column(sites.label, "label column")
    labels = labels if sites.event is None else _signed_times(name, table, labels, sites.event)
    keys = None if sites.split_column is None else table.column(sites.split_column)
    if sites.image_column is not None:
        cells = table.column(sites.image_column, "image column")
        if any(cell is None for cell in cells):
            raise InputError(f"site {name}: a row names no image in '{sites.image_column}'", "fill it in")
        files = list(paths_beside(table.path, list(cells)))
        return _images(labels, keys, files, sites, mode)
    for column in sites.drop:
        table.column(column, "column to drop,")
    used = (*sites.drop, sites.label, *(c for c in (sites.event, sites.site_column, sites.split_column) if c))
    return Material(labels, keys, table.without(used), table)


def _signed_times(name: str, table: Table, times: Cells, event: str) -> Cells:
    """Times with a minus where nothing had happened until then; none where either is unknown."""
    found = np.empty(len(times), dtype=object)
    for k, (time, said) in enumerate(zip(times, table.column(event, "event column"), strict=True)):
        if time is None or said is None:
            continue
        line = f"line {table.lines[k]} of {table.path.name}"
        if (happened := WORDS.get(said.casefold(), said)) not in ("0", "1"):
            hint = "write 1 where it happened, and 0 where it had not until then"
            raise InputError(f"site {name}: '{said}' under '{event}' ({line}) is neither yes nor no", hint)
        if not (as_number(time) or 0.0) > 0:
            raise InputError(f"site {name}: '{time}' ({line}) is not a time", "write how long it took, above 0")
        found[k] = time if happened == "1" else f"-{time}"
    return found


def _from_folder(folder: Path, sites: Sites, mode: list[str]) -> Material:
    if sites.split != "stratified":
        raise InputError(f"{folder}: images in folders have no column to split by", 'use split = "stratified"')
    found = in_folder(folder)
    labels = np.array([label for _, label in found], dtype=object)
    return _images(labels, None, [file for file, _ in found], sites, mode)


def _images(labels: Cells, keys: Cells | None, files: list[Path], sites: Sites, mode: list[str]) -> Material:
    if not mode:
        mode.append(mode_of(files[0]))
    return Material(labels, keys, x=read_images(files, mode[0], sites.image_size), mode=mode[0])


def _from_arrays(name: str, path: Path, sites: Sites) -> dict[str, Material]:
    """x, y and, where all sites are in one file, a site per sample; the split's column as an array of its own."""
    arrays = read_npz(path, "write it with numpy.savez(file, x=, y=)")
    for key in ("x", "y", *(k for k in (sites.site_column, sites.split_column) if k)):
        if key not in arrays:
            raise no_such_column(path, key, "array", arrays)
        if arrays[key].ndim < 1:
            raise InputError(f"{path}: {key} is a single value", "give one per sample")
        if key != "x" and arrays[key].ndim > 1:
            shape = list(arrays[key].shape)
            raise InputError(
                f"{path}: {key} has shape {shape}", "give one value per sample; of one-hot rows, argmax(1)"
            )
        if len(arrays[key]) != len(arrays["x"]):
            raise InputError(f"{path}: {len(arrays['x'])} samples in x, {len(arrays[key])} in {key}", "give one each")
    if not len(arrays["x"]):
        raise InputError(f"{path}: x holds no samples", "export the data again")
    text = {key: _cells(array) for key, array in arrays.items() if array.ndim == 1}
    keys = None if sites.split_column is None else text[sites.split_column]
    if sites.site_column is None:
        return {name: Material(text["y"], keys, x=arrays["x"])}
    places = {who: text[sites.site_column] == who for who in sorted(set(text[sites.site_column]), key=in_order)}
    return {
        who: Material(text["y"][mask], None if keys is None else keys[mask], x=arrays["x"][mask])
        for who, mask in places.items()
    }


def _cells(array: Arrays) -> Cells:
    """As a table has them: texts, and None where a value is not a number."""
    found = np.empty(len(array), dtype=object)
    found[:] = [None if value != value else canonical(str(value)) for value in array.tolist()]
    return found


def labelled(name: str, sites: Sites, material: Material) -> tuple[Material, list[str]]:
    """Without the rows that have no label: nothing can be learned from them."""
    known = np.array([label is not None for label in material.labels], dtype=bool)
    if known.all():
        return material, []
    if not known.any():
        raise InputError(f"site {name}: no row has a label in '{sites.label}'", "is it the right column?")
    note = f"site {name}: {int((~known).sum())} rows without a label are left out"
    kept = Material(
        material.labels[known],
        None if material.keys is None else material.keys[known],
        None if material.table is None else material.table.take(known),
        None if material.rows is None else material.rows.take(known),
        None if material.x is None else material.x[known],
        material.mode,
    )
    return kept, [note]


# --- agreeing ------------------------------------------------------------------------------------


def _agreed(sites: Sites, found: Mapping[str, Material], agreed: Schema | None, target: str) -> Schema:
    """The agreed schema if there is one, else the one that fits all these sites."""
    if agreed is not None or sites.schema_file is not None:
        schema = agreed or schemas.read_schema(Path(str(sites.schema_file)).expanduser())
        for name, material in found.items():
            _check_fits(name, schema, material)
        return schema
    classes = {} if target == "number" else _classes(sites, found)
    tables = {name: material.table for name, material in found.items() if material.table is not None}
    if tables:
        return _in_units(schemas.lay_out(tables, sites.predicted, classes, sites.categories), sites)
    name, first = next(iter(found.items()))
    assert first.x is not None
    for other, material in found.items():
        assert material.x is not None
        if material.x.shape[1:] != first.x.shape[1:]:
            one, two = (list(m.x.shape[1:]) for m in (first, material) if m.x is not None)
            raise InputError(
                f"site {other} has samples of shape {two}, site {name} of {one}",
                "make them one size; for images, set image_size = [height, width]",
            )
    return Schema((), sites.predicted, classes, tuple(first.x.shape[1:]), first.mode, sites.target_range)


def _in_units(schema: Schema, sites: Sites) -> Schema:
    names = [column.name for column in schema.columns]
    for name in sites.units:
        if name not in names:
            raise InputError(f"units names '{name}', which is no column", f"columns: {', '.join(names[:12])}")
    columns = tuple(replace(column, unit=sites.units.get(column.name, "")) for column in schema.columns)
    return replace(schema, columns=columns, target_range=sites.target_range)


def _by_layout(sites: Sites, found: Mapping[str, Material], layout: Layout) -> Schema:
    """The agreed layout, once every site here fits it; a schema_file must say the same and may add the scaling."""
    if sites.schema_file is not None:
        schema = schemas.read_schema(Path(sites.schema_file).expanduser())
        if odd := list(agreement.between(agreement.schema_of(layout), schema)):
            raise agreement.Differs(f"{sites.schema_file} is not the agreed layout: {odd[0]}", agreement.HINT)
        return _agreed(sites, found, schema, "")
    fitting = [
        agreement.fitting(layout, sites, name, m.table, m.labels, () if m.x is None else m.x.shape[1:])
        for name, m in found.items()
    ]
    return fitting[0]


def _check_fits(name: str, schema: Schema, material: Material) -> None:
    if material.table is not None:
        for column in schema.columns:
            if column.name not in material.table.columns:
                raise InputError(
                    f"site {name} has no column '{column.name}' ({material.table.path.name}), the schema has one",
                    "add it, empty if it was never measured",
                )
    elif material.x is not None and tuple(material.x.shape[1:]) != schema.shape:
        shape = list(material.x.shape[1:])
        raise InputError(f"site {name} has samples of shape {shape}, agreed is {list(schema.shape)}", "resize them")


def _classes(sites: Sites, found: Mapping[str, Material]) -> dict[str, tuple[str, ...]]:
    """As declared; else every label is a class, and every site must have all of them."""
    for problem in class_problems(sites, found):
        raise problem
    if sites.classes is not None:
        return {name: tuple(canonical(v) for v in values) for name, values in sites.classes.items()}
    return {label: (label,) for label in _labels(found)}


def _labels(found: Mapping[str, Material]) -> list[str]:
    return sorted(set().union(*(set(material.labels) for material in found.values())), key=in_order)


def class_problems(sites: Sites, found: Mapping[str, Material]) -> Iterator[InputError]:
    """Why the labels of these sites are not the classes of one task; declared classes are taken as they are."""
    if sites.classes is not None:
        return
    labels, rows = _labels(found), sum(len(material.labels) for material in found.values())
    if len(labels) < 2:
        yield InputError(f"the label '{sites.label}' has the one value {labels[0]}", "is it the right column?")
    elif is_measurement(labels, rows):
        yield InputError(
            f"the label '{sites.label}' has {len(labels)} different numbers: a measurement rather than a class?",
            'set objective.name = "regression" to predict the number, or cut it into classes',
        )
    elif len(labels) > max(MOST_CLASSES, rows // 4):
        said = f"the label '{sites.label}' has {len(labels)} different texts in {rows} rows, such as '{labels[0]}'"
        yield InputError(f"{said}: an identifier?", "is it the right column?")
    else:
        yield from _lacking_classes(labels, {name: set(material.labels) for name, material in found.items()})


def _lacking_classes(labels: Sequence[str], found: Mapping[str, set[Any]]) -> Iterator[InputError]:
    """Sites without a class that others have, and sites that seem to write the same classes in another way."""
    declared, words = ", ".join(f'"{label}"' for label in labels), ",".join(labels)
    hint = f"if that is so, declare the classes: classes = [{declared}], or `data inspect --classes {words}`"
    for name, mine in found.items():
        others = [other for site, other in found.items() if site != name]
        if not any(mine & other for other in others) and others:
            here, there = (schemas.some(sorted(found, key=in_order), 4) for found in (mine, others[0]))
            yield InputError(f"site {name} has the classes {here}, another site {there}", _same_classes(labels))
        elif lacking := [label for label in labels if label not in mine]:
            yield InputError(f"site {name} has no row of class '{lacking[0]}', which other sites have", hint)


def _same_classes(labels: Sequence[str]) -> str:
    """How to say which texts mean one class: as they seem to, where they differ in upper and lower case only."""
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault(label.casefold(), []).append(label)
    if all(len(texts) > 1 for texts in alike.values()):
        said = ",".join(f"{name}={'|'.join(texts)}" for name, texts in alike.items())
        return f"if they are the same: `data inspect --classes '{said}'`"
    return "if they are the same in other words, say so: `data inspect --classes 'fine=no|0,ill=yes|1'`"


def is_measurement(labels: Sequence[str], rows: int) -> bool:
    """Whether these different labels are numbers to predict rather than classes; a few texts are mistakes."""
    found = [number for label in labels if (number := as_number(label)) is not None]
    if len(found) <= max(MOST_CLASSES, schemas.MOSTLY * len(labels)):
        return False
    return len(found) > rows // 10 or not all(number.is_integer() for number in found)


def _codes(name: str, schema: Schema, material: Material) -> Arrays:
    """Classes by their place in the schema; numbers as they are."""
    if not schema.classes:
        return _numbers(name, material)
    code = {value: k for k, values in enumerate(schema.classes.values()) for value in values}
    odd = [k for k, label in enumerate(material.labels) if label not in code]
    if odd:
        line = "" if material.rows is None else f" (line {material.rows.lines[odd[0]]} of {material.rows.path.name})"
        raise InputError(
            f"site {name}: label '{material.labels[odd[0]]}'{line} is none of the classes {', '.join(code)}",
            "fix it, or name it in classes",
        )
    return np.array([code[label] for label in material.labels], dtype=np.int64)


_HINT = "fix it, or say that it is a missing value: `data inspect --missing`; rows without a label are left out"


def _numbers(name: str, material: Material) -> Arrays:
    found = [as_number(label) for label in material.labels]
    if None in found:
        k = found.index(None)
        line = "" if material.rows is None else f" (line {material.rows.lines[k]} of {material.rows.path.name})"
        raise InputError(f"site {name}: label '{material.labels[k]}'{line} is not a number", _HINT)
    return np.array(found, dtype=np.float32)


# --- splitting -----------------------------------------------------------------------------------


def _plain(schema: Schema, material: Material) -> Arrays:
    """Samples as numbers without any scaling, to compare them with."""
    if material.x is not None:
        return material.x
    assert material.table is not None
    numeric = sum(column.kind == "number" for column in schema.columns)
    return schemas.transform(schemas.scaled(schema, np.zeros((numeric, 3))), material.table)


def _test_mask(
    sites: Sites, name: str, x: Arrays, y: Arrays, material: Material, rng: np.random.Generator
) -> tuple[Mask, list[str]]:
    """Which rows are test rows, and notes about copies: a test row with a copy among train rows inflates scores."""
    bins = max(1, min(10, len(y) // 10))  # of numbers, which have no classes to be stratified by
    mask = test_rows(sites.split, strata(y, y, bins)[0], sites.test, rng, material.keys, f"site {name}")
    twins = equal_rows(x, y)
    if not twins:
        return mask, []
    copies = sum(len(rows) - 1 for rows in twins)
    if sites.duplicates == "refuse":
        raise InputError(
            f"site {name}: {copies} rows are copies of others", 'drop them, or set duplicates = "together"'
        )
    if sites.duplicates == "together" and sites.split == "stratified":
        mask = kept_together(mask, twins)
        if mask.all() or not mask.any():
            raise InputError(f"site {name}: all rows are copies of one another", "is it the right file?")
        return mask, [f"site {name}: {copies} rows are copies of others and stay on their side of the split"]
    across = sum(1 for rows in twins if 0 < mask[rows].sum() < len(rows))
    return mask, [f"site {name}: {copies} rows are copies of others, {across} of them across the split"] * bool(across)


def _seen_elsewhere(schema: Schema, found: Mapping[str, Material], codes: Mapping[str, Arrays]) -> Iterator[str]:
    """Rows that two sites share: the same patient twice, or one file named twice."""
    seen: dict[bytes, str] = {}
    shared: dict[tuple[str, str], int] = {}
    for name, material in found.items():
        x, mine = _plain(schema, material), set[bytes]()
        for k, y in enumerate(codes[name]):
            row = x[k].tobytes() + (bytes([int(y) % 256]) if schema.classes else y.tobytes())
            if row in seen and row not in mine:
                pair = seen[row], name
                shared[pair] = shared.get(pair, 0) + 1
            mine.add(row)
        seen = dict.fromkeys(mine, name) | seen
    yield from (f"sites {one} and {other} share {count} equal rows" for (one, other), count in shared.items())


# --- handing out ---------------------------------------------------------------------------------


def _fitted(
    sites: Sites, schema: Schema, found: Mapping[str, Material], tests: Mapping[str, Mask]
) -> dict[str, Schema]:
    """Every site's own scaling from its train rows, or one for all from the sum of their sums."""
    if not schema.columns or (schema.is_fitted and any(c.kind == "number" for c in schema.columns)):
        return dict.fromkeys(found, schema)
    totals = {n: schemas.sums(schema, m.table.take(~tests[n])) for n, m in found.items() if m.table is not None}
    if sites.scaling == "federated":
        together = np.sum(list(totals.values()), axis=0)
        return dict.fromkeys(found, schemas.scaled(schema, together))
    return {name: schemas.scaled(schema, mine) for name, mine in totals.items()}


def _federated(
    sites: Sites,
    found: Mapping[str, Material],
    codes: Mapping[str, Arrays],
    tests: Mapping[str, Mask],
    fitted: Mapping[str, Schema],
    seed: int,
) -> Federated:
    inputs = {name: _inputs(fitted[name], material) for name, material in found.items()}
    parts, held = [], {}
    for name in found:
        x, y, test = inputs[name], codes[name], tests[name]
        train = np.flatnonzero(~test)
        aside = set_aside(y[train], sites.validation, stream(seed, "validation", name))
        held[name] = train[aside]
        parts.append((x[train[~aside]], y[train[~aside]], x[test], y[test]))
    classes = len(next(iter(fitted.values())).classes)
    data = from_arrays(parts, classes or None, list(found), name=sites.source or "own")
    clients = tuple(_with_validation(c, inputs[c.name], codes[c.name], held[c.name]) for c in data.clients)
    return replace(data, clients=clients)


def _inputs(schema: Schema, material: Material) -> Arrays:
    if material.x is not None:
        return material.x
    assert material.table is not None
    return schemas.transform(schema, material.table)


def _with_validation(client: ClientData, x: Arrays, y: Arrays, rows: Labels) -> ClientData:
    if not len(rows):
        return client
    inputs = torch.tensor(np.asarray(x[rows]))
    inputs = inputs if inputs.dtype == torch.uint8 else inputs.float()
    return replace(client, validation=Split(inputs, torch.tensor(y[rows])))
