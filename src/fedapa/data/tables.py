"""Tables from CSV, TSV and Parquet files, every cell as text; errors name the line."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedapa.data.arrays_file import check_expansion
from fedapa.data.missing import MISSING
from fedapa.errors import InputError, closest

Cells = npt.NDArray[np.object_]  # text, or None where there is no value
Mask = npt.NDArray[np.bool_]

LARGEST_TEXT = 256 * 2**20  # a cell of a few characters becomes some fifty bytes in memory
LARGEST_CELLS = 50_000_000
CELL_BYTES = 16
TEXT, PARQUET = (".csv", ".tsv", ".txt", ".data"), (".parquet", ".pq")


@dataclass(frozen=True)
class Table:
    """Columns of equal length; ``lines`` are the places of the rows in their file, for messages."""

    path: Path
    columns: Mapping[str, Cells]
    lines: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return len(self.lines)

    def column(self, name: str, what: str = "column") -> Cells:
        if name not in self.columns:
            raise no_such_column(self.path, name, what, self.columns)
        return self.columns[name]

    def take(self, chosen: Mask | npt.NDArray[np.int64]) -> Table:
        return replace(self, columns={k: v[chosen] for k, v in self.columns.items()}, lines=self.lines[chosen])

    def without(self, names: Iterable[str]) -> Table:
        gone = set(names)
        return replace(self, columns={k: v for k, v in self.columns.items() if k not in gone})


def no_such_column(path: Path, name: str, what: str, columns: Iterable[str]) -> InputError:
    known = list(columns)
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    hint = f"did you mean '{close}'?" if (close := closest(name, known)) else f"its columns are {shown}"
    return InputError(f"{path}: there is no {what} '{name}'", hint)


def read_table(
    path: Path,
    header: Sequence[str] = (),
    encoding: str = "utf-8",
    missing: Sequence[str] = MISSING,
    missing_values: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """A whole file. ``header`` names the columns of a file that does not; ``missing_values`` adds to one column."""
    _check_file(path)
    if path.suffix.lower() in PARQUET:
        names, columns, lines = _parquet(path)
    else:
        names, columns, lines = _text(path, header, encoding)
    if not len(lines):
        raise InputError(f"{path}: there is no row below the header", "export the data again, with its rows")
    extra = missing_values or {}
    for name in extra:
        if name not in names:
            raise no_such_column(path, name, "column", names)
    cells = {n: _blanked(c, {*missing, *map(canonical, extra.get(n, ()))}) for n, c in zip(names, columns, strict=True)}
    return Table(path, cells, np.array(lines, dtype=np.int64))


def canonical(value: str) -> str:
    """One text for one value: 1, 1.0 and 1.00 are the same code."""
    number = as_number(value)
    return value if number is None or not number.is_integer() or abs(number) > 2**53 else str(int(number))


def as_number(value: str) -> float | None:
    """The finite number that a cell holds; None for any other text."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if np.isfinite(number) and "_" not in value else None


def _blanked(column: Iterable[str | None], missing: set[str]) -> Cells:
    known: dict[str, str | None] = {}  # a value is looked at once, and kept in memory once
    cells = np.empty(len(column := list(column)), dtype=object)
    for k, value in enumerate(column):
        if value is None:
            continue
        if value not in known:
            said = canonical(value.strip())
            known[value] = None if said in missing or value.strip() in missing else said
        cells[k] = known[value]
    return cells


def _check_file(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path} does not exist", "check the name and the folder")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a table", "name a .csv, .tsv or .parquet file")
    known = (*TEXT, *PARQUET)
    if path.suffix.lower() not in known:
        raise InputError(f"{path}: files that end in '{path.suffix}' are not known", f"known are {', '.join(known)}")
    size = path.stat().st_size
    if size == 0:
        raise InputError(f"{path} is an empty file", "export the data again")
    if path.suffix.lower() in TEXT and size > LARGEST_TEXT:
        raise InputError(
            f"{path} has {size / 2**30:.1f} GiB; tables are held in memory and text is read up to"
            f" {LARGEST_TEXT // 2**20} MiB",
            "keep only the columns and rows that are needed, or write it as Parquet",
        )


# --- text ----------------------------------------------------------------------------------------


def _text(
    path: Path, header: Sequence[str], encoding: str
) -> tuple[list[str], Sequence[Sequence[str | None]], list[int]]:
    text = _decoded(path, encoding)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text), strict=True)
    rows = _rows(path, reader)
    first = next(rows, (0, [""]))
    names = [name.strip() for name in first[1]]
    if header and names != list(header):
        names, rows = list(header), itertools.chain([first], rows)  # a file without names of its own
    _check_names(path, names)
    columns: list[list[str]] = [[] for _ in names]
    lines: list[int] = []
    for line, row in rows:
        if len(row) != len(names):
            raise InputError(
                f"{path}, line {line}: {len(row)} cells where there are {len(names)} columns",
                "a cell that holds the separator must be quoted",
            )
        lines.append(line)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    return names, columns, lines


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line where each begins; blank lines are skipped."""
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1  # type: ignore[attr-defined]
    except csv.Error as error:
        raise InputError(f"{path}, line {line}: not a table ({error})", "is it really a text file?") from None


def _decoded(path: Path, encoding: str) -> str:
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        raise InputError(f"there is no encoding called '{encoding}'", "for example utf-8 or latin-1") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not {encoding} text",
            'save the file as UTF-8, or say its encoding, for example "latin-1" or "utf-16"',
        ) from None
    if not text.strip():
        raise InputError(f"{path} holds nothing but blanks", "export the data again")
    return text


def _delimiter(path: Path, text: str) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    first = text.lstrip().split("\n", 1)[0]
    return max((",", ";", "\t"), key=first.count)


def _check_names(path: Path, names: Sequence[str]) -> None:
    for k, name in enumerate(names):
        if not name:
            raise InputError(f"{path}: column {k + 1} has no name", "write one into the first line")
        if names.index(name) != k:
            raise InputError(f"{path}: two columns are called '{name}'", "give every column a name of its own")
    if all(as_number(name) is not None for name in names):
        raise InputError(
            f"{path}: the first line holds numbers, not names of columns",
            "write the names into the first line, or give them as header = [...]",
        )


# --- Parquet -------------------------------------------------------------------------------------


def _parquet(path: Path) -> tuple[list[str], Sequence[Sequence[str | None]], list[int]]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow", "pip install 'fedapa[parquet]'") from None
    try:
        about = parquet.read_metadata(path)
        if about.num_rows * about.num_columns > LARGEST_CELLS:
            cells = f"{about.num_rows:,} rows of {about.num_columns} columns"
            raise InputError(f"{path}: {cells} do not fit into memory", "keep only the columns and rows needed")
        check_expansion(path, _parquet_bytes(about), "cells")
        table = parquet.read_table(path, read_dictionary=about.schema.to_arrow_schema().names)
        columns = [_texts(table.column(name)) for name in table.column_names]
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        NotImplementedError,
        MemoryError,
        RecursionError,
        arrow.ArrowException,
    ) as e:
        raise InputError(f"{path}: not a readable Parquet file ({e})", "write it again") from None
    return list(table.column_names), columns, list(range(1, table.num_rows + 1))


def _parquet_bytes(about: Any) -> int:
    """In memory: what the pages unpack to, or two pointers for every cell, whichever is more. A column of
    equal cells takes next to nothing in a file."""
    groups = (about.row_group(k) for k in range(about.num_row_groups))
    pages = sum(group.column(k).total_uncompressed_size for group in groups for k in range(group.num_columns))
    return max(int(pages), CELL_BYTES * int(about.num_rows) * int(about.num_columns))


def _texts(column: Any) -> list[str | None]:
    """Every cell as text; equal cells share one, however many there are."""
    found: list[str | None] = []
    for chunk in column.chunks:
        coded = chunk if hasattr(chunk, "dictionary") else chunk.dictionary_encode()
        words = [_as_text(value) for value in coded.dictionary.to_pylist()]
        found += [None if k is None else words[k] for k in coded.indices.to_pylist()]
    return found


def _as_text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(int(value))
    return None if value is None or value != value else str(value)
