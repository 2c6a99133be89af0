"""Numbers, dates and booleans as files have them."""

from pathlib import Path

import pytest

from fedapa.data.cell_format import (
    CellFormat,
    Numbers,
    date_formats,
    days,
    has_points_between_thousands,
    is_boolean,
    is_free_text,
    number_format,
    pointed,
)
from fedapa.data.schema import lay_out
from fedapa.data.tables import read_table
from fedapa.errors import InputError

from .test_schema import CLASSES, table


@pytest.mark.parametrize(
    ("text", "decimal", "thousands", "said"),
    [
        ("1,5", ",", "", "1.5"),
        ("-1.234,50", ",", ".", "-1234.50"),
        ("1.234", ",", ".", "1234"),
        ("1'234'567.8", ".", "'", "1234567.8"),
        ("1,234", ".", ",", "1234"),
        (",5", ",", "", ".5"),
        ("2,5e3", ",", "", "2.5e3"),
        ("1.23", ",", ".", None),  # no group of three
        ("12,34,567", ".", ",", None),
        ("1,5,5", ",", "", None),
        ("A,5", ",", "", None),
        ("", ",", "", None),
    ],
)
def test_numbers_as_they_are_written_elsewhere(text: str, decimal: str, thousands: str, said: str | None) -> None:
    assert pointed(text, decimal, thousands) == said


def test_what_a_column_of_numbers_looks_like() -> None:
    assert number_format(["1,5", "2"]) == Numbers(",", "", True)
    assert number_format(["1,234", "5,678"]) == Numbers(",", "", False)  # decimals or thousands: nobody knows
    assert number_format(["1,234.5", "5"]) == Numbers(".", ",", True)
    assert number_format(["1.234,5", "5"]) == Numbers(",", ".", True)
    assert number_format(["1.5", "2"]) is None
    assert number_format(["1,5", "high"]) is None
    assert has_points_between_thousands(["34.432", "7"])
    assert not has_points_between_thousands(["34.432", "7.5"])


def test_dates_become_days() -> None:
    assert days("1970-01-11", "ISO 8601") == "10"
    assert days("11.01.1970 12:00", "%d.%m.%Y %H:%M") == "10.500000"
    assert days("31.02.2024", "%d.%m.%Y") is None
    assert date_formats(["04.08.2024", "14.10.2024"]) == ["%d.%m.%Y"]
    assert date_formats(["04/08/2024", "01/02/2024"]) == ["%d/%m/%Y", "%m/%d/%Y"]
    assert date_formats(["04/08/2024", "14/08/2024"]) == ["%d/%m/%Y"]
    assert date_formats(["20240804"]) == []  # a number


def test_words() -> None:
    assert is_boolean(["ja", "Nein", "JA"])
    assert not is_boolean(["f", "m"])
    assert not is_boolean(["yes", "yes"])
    assert is_free_text([f"the patient says {k}" for k in range(30)])
    assert not is_free_text(["Bern", "Uster"] * 20)


def test_a_german_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("Größe;Umsatz;seen;smokes\n1,5;1.234;02.01.1970;Ja\n;-;;nein\n".encode("latin-1"))
    form = CellFormat(",", ".", {"seen": "%d.%m.%Y"}, ["smokes"])
    found = read_table(path, encoding="latin-1", missing=("", "-"), cells=form)
    assert {k: v.tolist() for k, v in found.columns.items()} == {
        "Größe": ["1.5", None], "Umsatz": ["1234", None], "seen": ["1", None], "smokes": ["1", "0"],
    }  # fmt: skip


def test_points_beside_decimal_commas_are_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1,5;2.5\n1.234;3.5\n")
    with pytest.raises(InputError, match=r"column 'a' has '1,5' and '1.234'") as caught:
        read_table(tmp_path / "a.csv", cells=CellFormat(","))
    assert caught.value.hint == 'if points separate thousands, say so: thousands = "."'


@pytest.mark.parametrize(
    ("values", "said", "hint"),
    [
        ([f"{k},5" for k in range(150)], "numbers with another decimal sign", 'decimal = ","'),
        ([f"{1 + k % 28:02d}.{1 + k // 28:02d}.2024" for k in range(150)], "dates", 'dates = { "x" = "%d.%m.%Y" }'),
        ([f"pain in {k} places" for k in range(150)], "free text, which no model here reads", 'drop = ["x"]'),
        ([f"P{k}" for k in range(150)], "an identifier?", 'drop = ["x"]'),
    ],
)
def test_a_column_of_many_texts_is_refused_with_the_reason(values: list[object], said: str, hint: str) -> None:
    with pytest.raises(InputError, match="column 'x' has 150 different texts") as caught:
        lay_out({"a": table(x=values)}, "y", CLASSES)
    assert said in caught.value.message
    assert hint in caught.value.hint
