"""What an untrusted Parquet file takes in memory, found before any of it is unpacked."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedapa.errors import InputError

CELL_BYTES = 16  # two pointers: a column of equal cells takes next to nothing in a file
NUMBERS, INT32, BINARY, STRUCT = (4, 5, 6), 5, 8, 12  # types of Thrift's compact protocol; 1 and 2 are true and false
UNPACKED, PACKED = 2, 3  # fields of a page's header: its size in memory, and in the file


def check_is_flat(path: Path, about: Any) -> None:
    """Refuse lists, maps and structs: a cell of theirs holds any number of values."""
    for column in map(about.schema.column, range(about.num_columns)):
        if column.max_repetition_level or column.path != column.name:
            said = f"{path}: column '{column.path.partition('.')[0]}' holds lists or structs, not one value per row"
            raise InputError(said, "make columns of what they hold, or leave it out of the file")


def count_rows(about: Any) -> int:
    """The most that any of the file's own counts says."""
    groups = (int(about.row_group(k).num_rows) for k in range(about.num_row_groups))
    values = Counter[int]()
    for k, chunk in _chunks(about):
        values[k] += int(chunk.num_values)
    return max(int(about.num_rows), sum(groups), *values.values(), 0)


def count_bytes(path: Path, about: Any) -> int:
    """In memory: what the pages unpack to, or what all cells take at least, whichever is more.

    Headers of pages are asked, because readers believe them and not the totals at the end of the file.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        pages = sum(_unpacked(content, chunk) for _, chunk in _chunks(about))
    widths = (int(about.schema.column(k).length) for k in range(about.num_columns))  # above 0 where it is fixed
    return max(pages, count_rows(about) * sum(max(CELL_BYTES, width) for width in widths))


def _chunks(about: Any) -> Iterator[tuple[int, Any]]:
    """The columns of all row groups, each with its number."""
    for group in map(about.row_group, range(about.num_row_groups)):
        for k in range(group.num_columns):
            yield k, group.column(k)


def _unpacked(content: mmap.mmap, chunk: Any) -> int:
    begin, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
    at = dictionary if dictionary and dictionary < begin else begin
    end, total = at + chunk.total_compressed_size, 0
    while at < end:
        header, at = _struct(content, at)
        unpacked, packed = header[UNPACKED], header[PACKED]
        if min(unpacked, packed) < 0:
            raise ValueError("a page of negative size")
        total, at = total + unpacked, at + packed
    return total


def _struct(content: mmap.mmap, at: int) -> tuple[dict[int, int], int]:
    """The 32-bit numbers of a Thrift struct by field, and where it ends; what else is in it is skipped.

    Numbers are cut to as many bits as in Arrow's own reader, or a header could say one thing here and another there.
    """
    found, field = dict[int, int](), 0
    while head := content[at]:
        at, kind = at + 1, head & 15
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(content, at)
        if kind in NUMBERS:
            number, at = _number(content, at)
            if kind == INT32:
                found[field & 0xFFFF] = number
        elif kind == BINARY:
            length, at = _varint(content, at)
            at += length
        elif kind == STRUCT:
            _, at = _struct(content, at)
        elif kind > 2:
            raise ValueError(f"a page's header has a field of type {kind}")
    return found, at + 1


def _number(content: mmap.mmap, at: int) -> tuple[int, int]:
    value, at = _varint(content, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value & 0xFFFFFFFF, at
    raise ValueError("a page's header holds a number without end")
