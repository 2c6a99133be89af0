"""Schema: how a row of a table becomes numbers. All sites agree on it, and every model stores it as JSON.

The *layout* (columns, kinds, levels, which columns get a missing-value indicator, classes) must be the same at all
sites, or their models could not be mixed. The *scaling* (mean and standard deviation of every numeric column) is
fitted by each site on its own train rows, or agreed from sums that the sites exchange.

The result equals scikit-learn's StandardScaler (which skips missing values), then SimpleImputer with the constant 0,
MissingIndicator and OneHotEncoder(handle_unknown="ignore"); as JSON it needs neither pickle nor scikit-learn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedapa.data.cell_format import as_number, date_formats, is_free_text, number_format, unit_of
from fedapa.data.tables import Cells, Table, no_such_column
from fedapa.errors import InputError

Floats = npt.NDArray[np.float64]
FORMAT = "fedapa-schema-1"
MOST_LEVELS = 100
FAR = 30  # standard deviations from the mean, beyond which a new number is doubted
MOSTLY = 0.8  # a column with this share of numbers is meant to be numeric


@dataclass(frozen=True)
class Column:
    name: str
    kind: Literal["number", "category"]
    levels: tuple[str, ...] = ()  # of a category, in the order of their inputs
    indicator: bool = False  # an extra input that is 1 where the number is missing
    mean: float | None = None  # None until fitted
    scale: float | None = None
    unit: str = ""

    @property
    def width(self) -> int:
        return len(self.levels) if self.kind == "category" else 1 + self.indicator

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that this column becomes."""
        if self.kind == "category":
            return [f"{self.name}={level}" for level in self.levels]
        return [self.name, f"{self.name} missing"][: self.width]


@dataclass(frozen=True)
class Schema:
    columns: tuple[Column, ...]  # none: images or arrays, which need no preparation but their shape
    label: str
    classes: Mapping[str, tuple[str, ...]]  # name of a class, and the labels that mean it
    shape: tuple[int, ...] = ()  # of one sample, where it is not a row
    mode: str = ""  # of images: L or RGB
    target_range: tuple[float, float] | None = None  # that numbers to predict keep to

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.classes)

    @property
    def inputs(self) -> list[str]:
        return [name for column in self.columns for name in column.inputs]

    @property
    def is_fitted(self) -> bool:
        return all(column.kind == "category" or column.mean is not None for column in self.columns)


# --- the layout ----------------------------------------------------------------------------------


def lay_out(
    tables: Mapping[str, Table], label: str, classes: Mapping[str, tuple[str, ...]], categories: Sequence[str] = ()
) -> Schema:
    """The layout that fits the tables of all sites (without label and bookkeeping columns)."""
    for problem in problems(tables, categories):
        raise problem
    first = next(iter(tables.values()))
    return Schema(tuple(_column(name, tables, name in categories) for name in first.columns), label, classes)


def problems(tables: Mapping[str, Table], categories: Sequence[str] = ()) -> Iterator[InputError]:
    """Everything that keeps these tables from having one layout."""
    first_name, first = next(iter(tables.items()))
    for site, table in tables.items():
        yield from _lacking(site, table, first_name, first)
        yield from _lacking(first_name, first, site, table)
    for name in categories:
        if name not in first.columns:
            yield no_such_column(first.path, name, "column", first.columns)
    if not first.columns:
        yield InputError(f"{first.path}: no column is left to learn from", "drop fewer columns")
    for name in first.columns:
        if all(name in table.columns for table in tables.values()):
            yield from _column_problems(name, tables, name in categories)


def _lacking(site: str, table: Table, other: str, theirs: Table) -> Iterator[InputError]:
    gone = [name for name in theirs.columns if name not in table.columns]
    if gone:
        listed = ", ".join(f'"{name}"' for name in gone)
        yield InputError(
            f"site {site} has no column{'s' if len(gone) > 1 else ''} {some(gone)} ({table.path.name}),"
            f" site {other} has {'them' if len(gone) > 1 else 'one'}",
            f"add {'them' if len(gone) > 1 else 'it'}, empty if never measured, or leave out everywhere:"
            f" drop = [{listed}]",
        )


def some(names: Sequence[str], most: int = 8) -> str:
    """The first of many names, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _column_problems(name: str, tables: Mapping[str, Table], is_category: bool) -> Iterator[InputError]:
    if not is_category and _is_numeric(name, tables):
        yield from _texts_among_numbers(name, tables)
        return
    levels = _levels(name, tables)
    if len(levels) > MOST_LEVELS or (unit_of(levels) and not is_category):
        yield InputError(*_why_texts(name, levels))


def _why_texts(name: str, levels: Sequence[str]) -> tuple[str, str]:
    """What a column of many texts is, and what to do about it."""
    what, leave = f"column '{name}' has {len(levels)} different texts, such as '{levels[0]}'", f'drop = ["{name}"]'
    if (written := number_format(levels)) is not None:
        thousands = f'; thousands = "{written.thousands}"' if written.thousands else ""
        return f"{what}: numbers with another decimal sign", f'say so: decimal = "{written.decimal}"{thousands}'
    if forms := date_formats(levels):
        dates = " or ".join(f'dates = {{ "{name}" = "{form}" }}' for form in forms)
        return f"{what}: dates", f"make them numbers of days: {dates}; or leave them out: {leave}"
    if unit := unit_of(levels):
        return f"{what}: numbers with a unit", f'write the numbers alone, and units = {{ "{name}" = "{unit}" }}'
    if is_free_text(levels):
        why = "free text, which no model here reads (columns are numbers or categories)"
        return f"{what}: {why}", f"code what matters in it as columns, and leave it out: {leave}"
    return f"{what}: an identifier?", f"leave it out: {leave}"


def _levels(name: str, tables: Mapping[str, Table]) -> list[str]:
    return sorted({cell for t in tables.values() for cell in t.columns[name] if cell is not None}, key=in_order)


def _column(name: str, tables: Mapping[str, Table], is_category: bool) -> Column:
    if not is_category and _is_numeric(name, tables):
        gaps = any(cell is None for table in tables.values() for cell in table.columns[name])
        return Column(name, "number", indicator=gaps)
    return Column(name, "category", tuple(_levels(name, tables)))


def in_order(value: str) -> tuple[float, str]:
    """Numbers by size, then texts by letter."""
    number = as_number(value)
    return (float("inf") if number is None else number, value)


def _is_numeric(name: str, tables: Mapping[str, Table]) -> bool:
    """A column is numeric if it is so at one site; text in it at another site is a mistake, not a category."""
    numeric, mostly = _numeric_at(name, tables)
    filled = any(cell is not None for table in tables.values() for cell in table.columns[name])
    return bool(numeric or mostly) or not filled  # never filled anywhere: a number that is always missing


def _numeric_at(name: str, tables: Mapping[str, Table]) -> tuple[list[str], list[str]]:
    """Sites where a column is numeric, and where it is mostly."""
    share = {site: _share_of_numbers(table.columns[name]) for site, table in tables.items()}
    known = {site: found for site, found in share.items() if found is not None}
    return [s for s, found in known.items() if found == 1], [s for s, found in known.items() if MOSTLY < found < 1]


def _texts_among_numbers(name: str, tables: Mapping[str, Table]) -> Iterator[InputError]:
    numeric, mostly = _numeric_at(name, tables)
    for site, table in tables.items():
        if (found := _first_text(table, name)) is not None:
            value, line = found
            where = "" if site not in mostly else " among numbers"
            other = f" (numeric at {numeric[0]})" if numeric and not where else ""
            hint = f'fix it, or say that it is a missing value: missing_values = {{ "{name}" = ["{value}"] }},'
            hint += f' or that the column is text: categories = ["{name}"]'
            if number_format([value]) is not None:
                hint = "write numbers with a decimal point, or all of them with a decimal comma and --decimal ,"
            elif unit_of([value], 1):
                hint = "write the numbers alone, and in the unit of the other sites"
            yield InputError(
                f"site {site}, column '{name}': text '{value}' in line {line} of {table.path.name}{where}{other}", hint
            )


def _first_text(table: Table, name: str) -> tuple[str, int] | None:
    for cell, line in zip(table.columns[name], table.lines, strict=True):
        if cell is not None and as_number(cell) is None:
            return cell, int(line)
    return None


def _share_of_numbers(cells: Cells) -> float | None:
    """None where no cell is filled."""
    filled = [cell for cell in cells if cell is not None]
    return sum(as_number(cell) is not None for cell in filled) / len(filled) if filled else None


# --- the scaling ---------------------------------------------------------------------------------


def sums(schema: Schema, table: Table) -> Floats:
    """[numeric columns, 3]: count, sum and sum of squares; all that leaves a site when the scaling is shared."""
    rows = []
    for column in schema.columns:
        if column.kind == "number":
            values = numbers(table, column.name)
            values = values[np.isfinite(values)]
            rows.append((values.size, values.sum(), np.square(values).sum()))
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def scaled(schema: Schema, totals: Floats) -> Schema:
    """The layout with mean and standard deviation from the sums of one site, or of several added up."""
    found = iter(totals)
    return replace(
        schema, columns=tuple(c if c.kind == "category" else _scaled(c, next(found)) for c in schema.columns)
    )


def unscaled(schema: Schema) -> Schema:
    """The layout alone, for a site that scales by its own rows."""
    return replace(schema, columns=tuple(replace(column, mean=None, scale=None) for column in schema.columns))


def _scaled(column: Column, total: Floats) -> Column:
    count, value, square = (float(v) for v in total)
    if count == 0:
        return replace(column, mean=0.0, scale=1.0)
    mean = value / count
    variance = square / count - mean**2
    noise = 1e-12 * max(square / count, 1e-300)  # what rounding leaves of a constant column
    return replace(column, mean=mean, scale=float(variance**0.5) if variance > noise else 1.0)


# --- rows to numbers -----------------------------------------------------------------------------


def numbers(table: Table, name: str) -> Floats:
    """A numeric column, NaN where there is no value."""
    cells, values = table.column(name), np.full(table.rows, np.nan)
    for k, cell in enumerate(cells):
        if cell is not None:
            number = as_number(cell)
            if number is None:
                raise InputError(
                    f"{table.path}, line {table.lines[k]}: column '{name}' holds text, '{cell}'",
                    "the model expects a number there, or nothing",
                )
            values[k] = number
    return values


def transform(schema: Schema, table: Table) -> npt.NDArray[np.float32]:
    """[rows, inputs] of a fitted schema."""
    parts = [_numeric(c, table) if c.kind == "number" else _one_hot(c, table) for c in schema.columns]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _numeric(column: Column, table: Table) -> Floats:
    assert column.mean is not None
    assert column.scale is not None
    values = numbers(table, column.name)
    gone = np.isnan(values)
    inputs = np.where(gone, 0.0, (values - column.mean) / column.scale)[:, None]
    return np.concatenate([inputs, gone[:, None].astype(np.float64)], axis=1)[:, : column.width]


def _one_hot(column: Column, table: Table) -> Floats:
    """A level that the federation never saw, and a missing value, are zeros everywhere."""
    cells, place = table.column(column.name), {level: k for k, level in enumerate(column.levels)}
    inputs = np.zeros((table.rows, len(column.levels)))
    for k, cell in enumerate(cells):
        if cell in place:
            inputs[k, place[cell]] = 1.0
    return inputs


def strangers(schema: Schema, table: Table) -> list[str]:
    """One line for every column with codes that the federation never saw, or numbers far from those of the site."""
    lines = []
    for column in schema.columns:
        if column.kind == "number":
            values = numbers(table, column.name)
            far = np.abs(values - (column.mean or 0.0)) > FAR * (column.scale or 1.0)
            if far.any():
                said = f"column '{column.name}': {values[far][0]:g} in line {table.lines[far][0]}"
                lines.append(f"{said} is far from all numbers of the training: another unit?")
        if column.kind == "category":
            odd = {cell for cell in table.column(column.name) if cell is not None} - set(column.levels)
            if odd:
                lines.append(f"column '{column.name}': '{min(odd)}' was never seen in training and counts as missing")
    return lines


# --- JSON ----------------------------------------------------------------------------------------


def to_json(schema: Schema) -> dict[str, Any]:
    """Classes as pairs: their order is that of the model's outputs, and JSON's keys have none."""
    return {"format": FORMAT, **asdict(schema), "classes": [[name, list(v)] for name, v in schema.classes.items()]}


def from_json(found: Any, where: str) -> Schema:
    try:
        if found["format"] != FORMAT:
            raise KeyError(found["format"])
        columns = tuple(Column(**{**column, "levels": tuple(column["levels"])}) for column in found["columns"])
        classes = {str(name): tuple(values) for name, values in found["classes"]}
        limits = found.get("target_range")
        limits = None if limits is None else (float(limits[0]), float(limits[1]))
        return Schema(columns, found["label"], classes, tuple(found["shape"]), found["mode"], limits)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{where} is not a schema ({error!r})", "take the file as it was written") from None


def read_schema(path: Path) -> Schema:
    try:
        return from_json(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", "name a schema.json") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error})", "take the file as it was written") from None
