"""Tables from CSV, TSV and Parquet files, every cell as text; errors name the line."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from fedapa.data.arrays_file import check_expansion
from fedapa.data.cell_format import CellFormat, as_number, canonical, pointed
from fedapa.data.missing import MISSING
from fedapa.data.parquet_file import check_is_flat, count_bytes, count_rows
from fedapa.errors import InputError, closest

Cells = npt.NDArray[np.object_]  # text, or None where there is no value
Mask = npt.NDArray[np.bool_]

LARGEST_TEXT = 256 * 2**20  # of larger files, columns that are left out are not kept in memory
LARGEST_CELLS = 50_000_000  # a cell of a few characters becomes some fifty bytes in memory
LONGEST_LINE = 16 * 2**20
PIECE = 20_000  # rows that are read at a time
MOST_KNOWN = 100_000  # different texts of a column that are remembered to be kept once
SEPARATORS = (",", ";", "\t", "|")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
OTHERWISE = ("iso8859-1", "iso8859-15", "cp1252", "utf-16")  # encodings that no file of UTF-8 is meant to have
NO_TEXT = {  # how other kinds of files begin
    b"PK\x03\x04": "a spreadsheet or another packed file",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
    b"\x1f\x8b": "a packed file",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
}
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
    cells: CellFormat | None = None,
    unused: Iterable[str] = (),
) -> Table:
    """A whole file. ``header`` names the columns of a file that does not; ``missing_values`` adds to one column.

    Text is read in pieces. The cells of ``unused`` columns of a large file are left empty.
    """
    _check_file(path)
    pieces = _parquet(path) if path.suffix.lower() in PARQUET else _text(path, header, encoding)
    names, cells, extra = next(pieces)[0], cells or CellFormat(), missing_values or {}
    for name in (*extra, *cells.dates, *cells.booleans):
        if name not in names:
            raise no_such_column(path, name, "column", names)
    gone = set(unused) if path.stat().st_size > LARGEST_TEXT else set[str]()
    columns = [_Column(name, cells, {*missing, *map(canonical, extra.get(name, ()))}) for name in names]
    lines: list[npt.NDArray[np.int64]] = []
    for _, piece, places in pieces:
        lines.append(np.array(places, dtype=np.int64))
        _check_cells(path, (len(names) - len(gone)) * sum(map(len, lines)))
        for column, values in zip(columns, piece, strict=True):
            column.add(values if column.name not in gone else [None] * len(places))
    if not lines:
        raise InputError(f"{path}: there is no row below the header", "export the data again, with its rows")
    for column in columns:
        column.check(path)
    return Table(path, {column.name: column.cells for column in columns}, np.concatenate(lines))


def as_written(table: Table, header: Sequence[str] = (), encoding: str = "utf-8") -> list[Sequence[str | None]]:
    """The names and the rows of a table as they stand in its file."""
    path, wanted = table.path, set(table.lines.tolist())
    pieces = _parquet(path) if path.suffix.lower() in PARQUET else _text(path, header, encoding)
    names, found = next(pieces)[0], dict[int, Sequence[str | None]]()
    for _, piece, places in pieces:
        found |= {line: row for line, row in zip(places, zip(*piece, strict=True), strict=True) if line in wanted}
    return [names, *(found[line] for line in table.lines.tolist())]


class _Column:
    """Cells as they come; a value is looked at once, and kept in memory once."""

    def __init__(self, name: str, cells: CellFormat, missing: set[str]) -> None:
        self.name, self.decimal, self.is_mixed = name, cells.decimal, cells.decimal == "," and not cells.thousands
        self.read: Callable[[str], str] = cells.reader(name)
        self.missing, self.pieces, self.known = missing, list[Cells](), dict[str, str | None]()
        self.with_comma = self.with_point = ""  # examples of numbers of both kinds

    def add(self, values: Sequence[str | None]) -> None:
        cells = np.empty(len(values), dtype=object)
        for k, value in enumerate(values):
            if value is not None:
                cells[k] = self.known[value] if value in self.known else self._look(value)
        self.pieces.append(cells)

    def _look(self, value: str) -> str | None:
        text = value.strip()
        said = self.read(text)
        if self.is_mixed and "," in text and pointed(text, ",", ""):
            self.with_comma = self.with_comma or text
        elif self.is_mixed and "." in text and as_number(text) is not None:
            self.with_point = self.with_point or text
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[value] = None if said in self.missing or text in self.missing else said
        return self.known[value]

    def check(self, path: Path) -> None:
        """Where decimals are commas, a point in the same column may separate thousands."""
        if self.with_comma and self.with_point:
            raise InputError(
                f"{path}: column '{self.name}' has '{self.with_comma}' and '{self.with_point}'",
                'if points separate thousands, say so: thousands = "."',
            )

    @property
    def cells(self) -> Cells:
        return np.concatenate(self.pieces)


def _check_cells(path: Path, cells: int) -> None:
    if cells > LARGEST_CELLS:
        raise InputError(
            f"{path}: more than {LARGEST_CELLS // 10**6} million cells; tables are held in memory",
            "leave out columns that are not needed (drop = [...]), or take fewer rows",
        )


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


# --- text ----------------------------------------------------------------------------------------


Piece = tuple[list[str], Sequence[Sequence[str | None]], Sequence[int]]  # names, columns, places of the rows


def _text(path: Path, header: Sequence[str], encoding: str) -> Iterator[Piece]:
    """First the names alone, then pieces of rows."""
    encoding = encoding_of(path, encoding)
    _check_text(path, encoding)
    with _opened(path, encoding) as file:
        try:
            lines = _lines(path, file)
            blank, first = _first_line(path, lines)
            if said := re.fullmatch(r"sep=(.)\s*", first):  # as Excel writes it
                more, first = _first_line(path, lines)
                blank += ["\n", *more]
            again = itertools.chain(blank, [first], lines)
            reader = csv.reader(again, delimiter=said[1] if said else _delimiter(path, first), strict=True)
            yield from _pieces(path, header, _rows(path, reader))
        except UnicodeDecodeError as error:
            raise _undecodable(path, encoding, error) from None
        except UnicodeError as error:
            raise InputError(f"{path} is not {encoding} text ({error})", "save the file as UTF-8") from None


def encoding_of(path: Path, wanted: str) -> str:
    """How to read a file: what it says itself, then UTF-8 where it is that, though other files are not."""
    try:
        name = codecs.lookup(wanted).name
    except LookupError:
        raise InputError(f"there is no encoding called '{wanted}'", "for example utf-8 or latin-1") from None
    with open(path, "rb") as file:
        if file.read(2) in UTF_16:
            return "utf-16"
    return "utf-8" if name in OTHERWISE and is_utf_8(path) else wanted


def is_utf_8(path: Path) -> bool:
    try:
        with open(path, encoding="utf-8") as text:
            return not any("\0" in piece for piece in iter(lambda: text.read(2**20), ""))
    except UnicodeDecodeError:
        return False


def _check_text(path: Path, encoding: str) -> None:
    """Bytes that no text has are told before a decoder stumbles over others."""
    with open(path, "rb") as file:
        start = file.read(2**16)
    kind = next((kind for magic, kind in NO_TEXT.items() if start.startswith(magic)), None)
    if kind is not None:
        raise InputError(f"{path} is {kind}, not text", "save the table as CSV (UTF-8)")
    if b"\0" in start and not codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        line = start[: start.index(b"\0")].count(b"\n") + 1
        hint = 'save the table as CSV (UTF-8); if it is UTF-16, say so: encoding = "utf-16-le"'
        raise InputError(f"{path}, line {line}: a byte 0, which no text has", hint)


def _pieces(path: Path, header: Sequence[str], rows: Iterator[tuple[int, list[str]]]) -> Iterator[Piece]:
    first = next(rows, (0, [""]))
    names = [name.strip() for name in first[1]]
    if header and names != list(header):
        names, rows = list(header), itertools.chain([first], rows)  # a file without names of its own
    _check_names(path, names)
    are = "is 1 column" if len(names) == 1 else f"are {len(names)} columns"
    yield names, [], []
    while piece := list(itertools.islice(rows, PIECE)):
        for line, row in piece:
            if len(row) != len(names):
                raise InputError(
                    f"{path}, line {line}: {len(row)} cells where there {are}",
                    "a cell that holds the separator must be quoted"
                    if len(names) > 1
                    else f"the names of the columns must be the first line; there is '{names[0][:60]}'",
                )
        yield names, list(zip(*(row for _, row in piece), strict=True)), [line for line, _ in piece]


def _rows(path: Path, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line where each begins; blank lines are skipped."""
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1  # type: ignore[attr-defined]
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            said = f"{path}, line {line}: a quotation mark opens here and never closes"
            raise InputError(said, "close it, or double it where it belongs to the text") from None
        raise InputError(f"{path}, line {line}: not a table ({error})", "is it really a text file?") from None


def _opened(path: Path, encoding: str) -> TextIO:
    return open(path, encoding="utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding, newline="")


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """One by one, whatever the size of the file; one that has no lines is no table."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) >= LONGEST_LINE:
            size = f"{path.stat().st_size / 2**30:.1f} GiB"
            raise InputError(f"{path} ({size}): line {number} never ends", "is it really a text file?")
        yield line


def _first_line(path: Path, lines: Iterator[str]) -> tuple[list[str], str]:
    """The blank lines at the beginning, and the line after them."""
    blank: list[str] = []
    for line in lines:
        if line.strip():
            return blank, line
        blank.append(line)
    raise InputError(f"{path} holds nothing but blanks", "export the data again")


def _undecodable(path: Path, encoding: str, error: UnicodeDecodeError) -> InputError:
    """With the line, which the decoder of a stream does not know."""
    place, byte = "", error.object[error.start]
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                raw.decode(encoding)
            except UnicodeDecodeError as found:
                place, byte = f", line {number}", raw[found.start]
                break
    return InputError(
        f"{path}{place}: byte 0x{byte:02x} is not {encoding} text",
        'save the file as UTF-8, or say its encoding, for example "latin-1" or "utf-16"',
    )


def _delimiter(path: Path, first: str) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else max(SEPARATORS, key=first.count)


def _check_names(path: Path, names: Sequence[str]) -> None:
    seen = set[str]()
    for k, name in enumerate(names, 1):
        if not name:
            raise InputError(f"{path}: column {k} has no name", "write one into the first line")
        if name in seen:
            raise InputError(f"{path}: two columns are called '{name}'", "give every column a name of its own")
        seen.add(name)
    if all(as_number(name) is not None for name in names):
        raise InputError(
            f"{path}: the first line holds numbers, not names of columns",
            "write the names into the first line, or give them as header = [...]",
        )


# --- Parquet -------------------------------------------------------------------------------------


def _parquet(path: Path) -> Iterator[Piece]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs pyarrow", "pip install 'fedapa[parquet]'") from None
    try:
        about = parquet.read_metadata(path)
        check_is_flat(path, about)
        if (rows := count_rows(about)) * about.num_columns > LARGEST_CELLS:
            cells = f"{rows:,} rows of {about.num_columns} columns"
            raise InputError(f"{path}: {cells} do not fit into memory", "keep only the columns and rows needed")
        check_expansion(path, count_bytes(path, about), "cells")
        table = parquet.read_table(path, read_dictionary=about.schema.to_arrow_schema().names)
        columns = [_texts(table.column(name)) for name in table.column_names]
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        NotImplementedError,
        MemoryError,
        RecursionError,
        arrow.ArrowException,
    ) as e:
        raise InputError(f"{path}: not a readable Parquet file ({e})", "write it again") from None
    names = list(table.column_names)
    yield names, [], []
    if table.num_rows:
        yield names, columns, range(1, table.num_rows + 1)


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
