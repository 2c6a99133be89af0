"""How the cells of a file are written: decimal commas, thousands separators, dates, booleans in words.

Tables hold numbers with a decimal point. What is written otherwise becomes that when a file is read, and the settings
are part of every model's preparation, so that new rows are read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

DAY = 86_400.0
LARGEST = 1e38  # of numbers: models compute in single precision
ISO = "ISO 8601"  # in place of a format of strptime
TRUE = ("yes", "true", "ja", "wahr", "oui", "si", "sì", "sí", "y", "t", "j", "positive", "present")
FALSE = ("no", "false", "nein", "falsch", "non", "n", "f", "negative", "absent")
WORDS = dict.fromkeys(TRUE, "1") | dict.fromkeys(FALSE, "0")
DATES = (ISO, "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d %b %Y", "%d-%b-%Y")
WITH_UNIT = re.compile(r"[+-]?\d+(?:[.,]\d+)*\s*(?P<unit>[^\W\d_][^\s\d]{0,9}|[%°µ‰][^\s\d]{0,9})")
FEWEST_MEASURED = 10  # different texts, to tell measurements from codes such as 1A
TIMES = ("", " %H:%M", " %H:%M:%S")


class CellFormat(NamedTuple):
    """What a number looks like, and which columns hold dates or booleans."""

    decimal: str = "."
    thousands: str = ""
    dates: Mapping[str, str] = {}  # column: format of strptime, or ISO
    booleans: Sequence[str] = ()

    def reader(self, column: str) -> Callable[[str], str]:
        """What a stripped cell of a column becomes."""
        if column in self.dates:
            return lambda text: days(text, self.dates[column]) or text
        if column in self.booleans:
            return lambda text: WORDS.get(text.casefold(), canonical(text))
        if self.decimal == "." and not self.thousands:
            return canonical
        return lambda text: canonical(pointed(text, self.decimal, self.thousands) or text)


def as_number(value: str) -> float | None:
    """The number that a cell holds; None for any other text, and where no model could compute with it."""
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST and "_" not in value else None


def canonical(value: str) -> str:
    """One text for one value: 1, 1.0 and 1.00 are the same code."""
    number = as_number(value)
    return value if number is None or not number.is_integer() or abs(number) > 2**53 else str(int(number))


def pointed(text: str, decimal: str, thousands: str) -> str | None:
    """A number as it is written elsewhere, with a decimal point and nothing else; None for any other text."""
    if not _number(decimal, thousands).fullmatch(text):
        return None
    return (text.replace(thousands, "") if thousands else text).replace(decimal, ".")


@lru_cache
def _number(decimal: str, thousands: str) -> re.Pattern[str]:
    groups = rf"\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|" if thousands else ""
    return re.compile(rf"[+-]?(?:(?:{groups}\d+)(?:{re.escape(decimal)}\d*)?|{re.escape(decimal)}\d+)(?:[eE][+-]?\d+)?")


def days(text: str, form: str) -> str | None:
    """A date or a time as the number of days since 1970, with a fraction; None for any other text."""
    moment = _moment(text, form)
    return None if moment is None else canonical(f"{moment.timestamp() / DAY:.6f}")


def _moment(text: str, form: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# --- what a column looks like --------------------------------------------------------------------


def date_formats(texts: Iterable[str]) -> list[str]:
    """Every known format that all texts have; two where day and month cannot be told apart."""
    left = [day if day == ISO else day + time for day in DATES for time in (("",) if day == ISO else TIMES)]
    for text in texts:
        left = [form for form in left if _moment(text, form) is not None and as_number(text) is None]
        if not left:
            return []
    return left


class Numbers(NamedTuple):
    """How numbers are written that a plain reader takes for texts."""

    decimal: str
    thousands: str
    is_sure: bool  # "1,234" alone may be either


def number_format(texts: Sequence[str]) -> Numbers | None:
    """The writing in which all texts are numbers; None where there is none, or where they are plain numbers."""
    odd = [text for text in texts if not _is_plain(text)]
    if not odd:
        return None
    for decimal, thousands in ((",", ""), (",", "."), (".", ","), (".", "'"), (".", "’"), (".", " "), (",", " ")):
        if all(pointed(text, decimal, thousands) for text in texts):
            return Numbers(decimal, thousands, thousands != "" or not all(_is_grouped(text) for text in odd))
    return None


def _is_plain(text: str) -> bool:
    """Whether it is a number with a decimal point, however large."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_grouped(text: str) -> bool:
    """Whether the comma may separate thousands."""
    return re.fullmatch(r"[+-]?[1-9]\d{0,2}(,\d{3})+", text) is not None


def has_points_between_thousands(texts: Iterable[str]) -> bool:
    """Beside decimal commas: whether every point of a column of numbers has three digits behind it."""
    dotted = [text for text in texts if "." in text]
    grouped = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")
    return bool(dotted) and all(grouped.fullmatch(text) for text in dotted)


def unit_of(texts: Sequence[str], fewest: int = FEWEST_MEASURED) -> str:
    """The unit behind all numbers of a column, as in '0.5 mg'; empty where there is none, or few numbers."""
    found = {parts and parts["unit"] for parts in map(WITH_UNIT.fullmatch, texts)}
    unit = found.pop() if len(found) == 1 else None
    return unit if unit and len(set(texts)) >= fewest else ""


def is_boolean(texts: Iterable[str]) -> bool:
    """Both values, in words; two letters that differ in case only would be one level."""
    found = {WORDS.get(text.casefold()) for text in texts}
    return found == {"0", "1"}


def is_free_text(texts: Sequence[str]) -> bool:
    """Sentences rather than names: several words in most of the cells, and hardly any cell twice."""
    different = set(texts)
    words = sorted(len(text.split()) for text in different)
    return bool(words) and words[len(words) // 2] >= 3 and len(different) > max(10, len(texts) // 2)
