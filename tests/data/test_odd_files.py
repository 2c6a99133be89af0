"""Files as people send them: each ends in a result, or in one error that says what to do; never in a wrong number."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command import Answer, Call

HEADER = ["age", "dose", "colour", "outcome"]
QUICK = ("--method", "local", "--seeds", 1, "--set", "run.rounds=1", "--no-baselines", "--deliver-anyway")
Rows = list[list[str]]


def rows(count: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    age, dose, noise = rng.normal(50, 12, count), rng.normal(5, 2, count), rng.normal(size=count)
    colour, ill = rng.choice(["red", "blue"], count), age / 12 + dose / 2 + noise > 6.7
    return [
        [f"{a:.1f}", f"{d:.2f}", str(c), "yes" if i else "no"]
        for a, d, c, i in zip(age, dose, colour, ill, strict=True)
    ]


NORTH, SOUTH = rows(60, 1), rows(48, 2)


def text(found: Rows, header: list[str] = HEADER, sep: str = ",", decimal: str = ".") -> str:
    return "".join(sep.join(cell.replace(".", decimal) for cell in row) + "\n" for row in [header, *found])


def changed(column: int, to: Callable[[str], str], rows: Rows = NORTH, every: int = 1, start: int = 0) -> Rows:
    """The rows with cells of one column in other words."""
    return [
        [to(cell) if j == column and k % every == start else cell for j, cell in enumerate(row)]
        for k, row in enumerate(rows)
    ]


def once(column: int, value: str) -> str:
    return text(changed(column, lambda _: value, every=1000, start=3))


FINE = {  # the file of one site, beside a plain file of the other, that means the same as a plain one
    "byte order mark": b"\xef\xbb\xbf" + text(NORTH).encode(),
    "semicolons": text(NORTH, sep=";"),
    "tabs": text(NORTH, sep="\t"),
    "bars": text(NORTH, sep="|"),
    "decimal commas": text(NORTH, sep=";", decimal=","),
    "separator in its first line": "sep=;\n" + text(NORTH, sep=";"),
    "UTF-16": text(NORTH).encode("utf-16"),
    "old line ends": text(NORTH).replace("\n", "\r"),
    "Windows line ends": text(NORTH).replace("\n", "\r\n"),
    "quoted": "\n".join(",".join(f'"{cell}"' for cell in row) for row in [HEADER, *NORTH]),
    "blanks around names": text(NORTH, [" age", "dose ", " colour", "outcome "]),
}


@pytest.fixture(scope="module")
def known() -> dict[str, Rows]:
    """Predictions of the plain file, once they were made."""
    return {}


@pytest.mark.parametrize("kind", FINE)
def test_one_table_in_many_writings_is_one_result(
    kind: str, tmp_path: Path, fedapa: Call, known: dict[str, Rows]
) -> None:
    """The same rows give the same predictions, whatever the file looks like."""
    if not known:
        known["plain"] = predicted(fedapa, tmp_path / "plain", text(NORTH))
    assert predicted(fedapa, tmp_path / "odd", FINE[kind]) == known["plain"]
    assert len(known["plain"]) == len(NORTH) + 1


def test_1_and_1_0_are_one_class(tmp_path: Path, fedapa: Call) -> None:
    north, south = (changed(3, {"yes": "1", "no": "0"}.__getitem__, found) for found in (NORTH, SOUTH))
    odd = text(changed(3, lambda cell: f"{cell}.0", north))
    assert predicted(fedapa, tmp_path / "odd", odd, text(south))[0] == ["outcome", "p(0)", "p(1)"]


def predicted(fedapa: Call, place: Path, north: str | bytes, south: str | bytes = text(SOUTH)) -> Rows:
    """From both files to what the first site's model says about its rows, by the commands."""
    place.mkdir()
    write(place / "north.csv", north)
    write(place / "south.csv", south)
    assert inspected(fedapa, place).code == 0
    silo = fedapa("silo", "run", place / "site.toml", "--out", place / "runs", *QUICK)
    assert silo.code == 0, silo.err
    answer = fedapa("predict", place / "runs" / "sites" / "north" / "site-model", place / "north.csv")
    return [row[1:] for row in csv.reader(io.StringIO(answer.out))]


BROKEN = {  # the file of one site, words for `data inspect`, and what the error and its hint say
    "empty": ("", "empty file", "export"),
    "blanks": ("\n \n", "nothing but blanks", "export"),
    "header only": (text([]), "no row below the header", "export"),
    "no header": (text(NORTH[1:], NORTH[0]), "no label column 'outcome'", "its columns are"),
    "one row": (text(NORTH[:1]), "1 row cannot be split", "more rows"),
    "other columns": (text(NORTH, ["years", *HEADER[1:]]), "no column 'age'", "empty if never measured"),
    "no label": (text([row[:3] for row in NORTH], HEADER[:3]), "no label column 'outcome'", "its columns are"),
    "label never filled": (text(changed(3, lambda _: "")), "no row has a label", "right column"),
    "two of one name": (text(NORTH, ["age", "age", *HEADER[2:]]), "two columns are called 'age'", "name of its own"),
    "no name": (text(NORTH, ["", *HEADER[1:]]), "column 1 has no name", "first line"),
    "a title above": ("Export of 3 May\n" + text(NORTH), "4 cells where there is 1 column", "'Export of 3 May'"),
    "short row": (text([*NORTH[:5], NORTH[5][:3]]), "line 7: 3 cells where there are 4", "quoted"),
    "open quote": (text(NORTH) + '"12,3,red,yes\n', "line 62: a quotation mark opens", "close it"),
    "infinite": (once(0, "inf"), "text 'inf' in line 5", "missing value"),
    "beyond all numbers": (once(0, "1e300"), "text '1e300' in line 5", "missing value"),
    "text among numbers": (once(0, "old"), "text 'old' in line 5", "missing value"),
    "with units": (text(changed(1, lambda cell: f"{cell} mg")), "text '5.11 mg' in line 2", "the numbers alone"),
    "thousands and commas": (
        text(changed(0, lambda cell: f"1.{cell.replace('.', '')},5"), sep=";"), "written in several ways", "in one way",
    ),
    "bytes": (bytes(range(256)) * 9, "a byte 0, which no text has", "CSV"),
    "a spreadsheet": (b"PK\x03\x04" + bytes(99), "a spreadsheet", "CSV"),
    "one class": (text(changed(3, lambda _: "no")), "no row of class 'yes'", "--classes no,yes"),
    "a class that only it has": (
        text(changed(3, lambda _: "maybe", every=5)), "south has no row of class 'maybe'", "--classes maybe,no,yes",
    ),
    "classes in capitals": (text(changed(3, str.upper)), "the classes 'NO', 'YES'", "'no=NO|no,yes=YES|yes'"),
    "classes as codes": (
        text(changed(3, {"yes": "1", "no": "0"}.__getitem__)), "the classes '0', '1', another site 'no', 'yes'",
        "in other words",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_cannot_be_used_is_said(kind: str, tmp_path: Path, fedapa: Call) -> None:
    """By `data inspect`, and once more by whoever runs its config all the same."""
    content, said, hint = BROKEN[kind]
    write(tmp_path / "north.csv", content)
    write(tmp_path / "south.csv", text(SOUTH))
    refused(inspected(fedapa, tmp_path), said, hint)
    again = fedapa("silo", "run", tmp_path / "site.toml", "--out", tmp_path / "runs")
    refused(again, "", "")
    assert not (tmp_path / "runs" / "silo.json").exists()


def test_a_folder_or_nothing_instead_of_a_file(tmp_path: Path, fedapa: Call) -> None:
    (tmp_path / "north.csv").mkdir()
    write(tmp_path / "south.csv", text(SOUTH))
    refused(inspected(fedapa, tmp_path), "holds no class/image.png", "one folder per class")
    (tmp_path / "north.csv").rmdir()
    refused(inspected(fedapa, tmp_path), "does not exist", "check the name")


@pytest.mark.parametrize("value", ["inf", "old", "1e300"])
def test_one_bad_number_does_not_make_classes_of_a_measurement(value: str, tmp_path: Path, fedapa: Call) -> None:
    write(tmp_path / "north.csv", once(0, value))
    answer = fedapa("data", "inspect", tmp_path / "north.csv", "--label", "age", "--out", tmp_path / "site.toml")
    refused(answer, f"label '{value}' (line 5 of north.csv) is not a number", "missing value")


def test_a_label_that_names_every_row(tmp_path: Path, fedapa: Call) -> None:
    write(tmp_path / "north.csv", text([[*row[:3], f"p{k}"] for k, row in enumerate(NORTH)]))
    write(tmp_path / "south.csv", text([[*row[:3], f"q{k}"] for k, row in enumerate(SOUTH)]))
    answer = inspected(fedapa, tmp_path)
    refused(answer, "108 different texts in 108 rows", "right column")
    assert len(answer.err) < 500


def test_numbers_with_a_unit_everywhere(tmp_path: Path, fedapa: Call) -> None:
    for name, found in (("north", NORTH), ("south", SOUTH)):
        write(tmp_path / f"{name}.csv", text(changed(1, lambda cell: f"{cell} mg", found)))
    refused(inspected(fedapa, tmp_path), "numbers with a unit", 'units = { "dose" = "mg" }')


def test_a_class_that_one_site_has(tmp_path: Path, fedapa: Call) -> None:
    """Declared, it is trained and told; in a federation, the layout has it and the other site accepts."""
    write(tmp_path / "north.csv", text(changed(3, lambda _: "maybe", every=5)))
    write(tmp_path / "south.csv", text(SOUTH))
    sites = ("north.csv", "south.csv", "--label", "outcome", "--classes", "no,yes,maybe")
    assert fedapa("data", "inspect", *sites).code == 0
    assert fedapa("silo", "run", "site.toml", "--out", "runs", *QUICK).code == 0
    told = fedapa("predict", "runs/sites/south/site-model", "south.csv")
    assert told.out.splitlines()[0] == "line,outcome,p(no),p(yes),p(maybe)"
    for name in ("north", "south"):
        assert fedapa("data", "inspect", f"{name}.csv", "--label", "outcome", "--out", f"{name}.toml").code == 0
        assert fedapa("site", "schema", f"{name}.toml", "--out", f"{name}.json").code == 0
    made = fedapa("coordinator", "new-config", "north.json", "south.json", "--method", "fedapa")
    assert (made.code, "south.json has no row of class 'maybe'" in made.err) == (0, True)
    dry = fedapa("site", "dry-run", "south.toml", "--run", "federation.toml")
    assert (dry.code, "accepted by this site" in dry.err) == (0, True), dry.err


def test_every_file_in_its_own_encoding(tmp_path: Path, fedapa: Call) -> None:
    """Latin-1 beside UTF-8 beside Windows: the same word is the same level everywhere."""
    german = {"red": "grün", "blue": "blau"}
    for name, encoding in (("north", "latin-1"), ("south", "utf-8"), ("west", "cp1252")):
        found = changed(2, german.__getitem__, rows(48, len(name)))
        found = found if name == "north" else changed(2, lambda _: "5 €", found, every=9)
        write(tmp_path / f"{name}.csv", text(found).encode(encoding))
    answer = inspected(fedapa, tmp_path, "north", "south", "west")
    assert answer.code == 0, answer.err
    assert "read as cp1252" in answer.out
    made = fedapa("site", "schema", tmp_path / "site.toml", "--out", tmp_path / "schema.json")
    assert made.code == 0, made.err
    assert '"5 \\u20ac", "blau", "gr\\u00fcn"' in " ".join((tmp_path / "schema.json").read_text().split())


def test_a_site_in_another_unit_is_noted(tmp_path: Path, fedapa: Call) -> None:
    write(tmp_path / "north.csv", text(changed(0, lambda cell: str(1000 * float(cell)))))
    write(tmp_path / "south.csv", text(SOUTH))
    assert "in another unit?" in inspected(fedapa, tmp_path).out


def test_arrays(tmp_path: Path, fedapa: Call) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(float)
    cases = {
        "has shape [60, 2]": {"x": x, "y": np.eye(2)[y.astype(int)]},
        "x holds no samples": {"x": x[:0], "y": y[:0]},
        "1 NaN or infinite values": {"x": np.where(np.arange(240).reshape(60, 4) == 7, np.inf, x), "y": y},
        "<U32": {"x": x.astype(str), "y": y},
    }
    for said, arrays in cases.items():
        np.savez(tmp_path / "north.npz", **arrays)
        answer = fedapa("data", "inspect", tmp_path / "north.npz", "--out", tmp_path / "site.toml", "--force")
        refused(answer, said, "")
    np.savez(tmp_path / "north.npz", x=x, y=np.where(np.arange(60) == 5, np.nan, y))
    answer = fedapa("data", "inspect", tmp_path / "north.npz", "--out", tmp_path / "site.toml", "--force")
    assert (answer.code, "1 rows without a label" in answer.out) == (0, True)


def test_new_rows_that_are_far_from_all_others_are_noted(tmp_path: Path, fedapa: Call) -> None:
    write(tmp_path / "north.csv", text(NORTH))
    write(tmp_path / "south.csv", text(SOUTH))
    assert inspected(fedapa, tmp_path).code == 0
    assert fedapa("silo", "run", tmp_path / "site.toml", "--out", tmp_path / "runs", *QUICK).code == 0
    write(tmp_path / "new.csv", once(0, "54000"))
    model = tmp_path / "runs" / "sites" / "north" / "site-model"
    assert "54000 in line 5 is far from all numbers" in fedapa("predict", model, tmp_path / "new.csv").err
    write(tmp_path / "new.csv", once(0, "1e300"))
    refused(fedapa("predict", model, tmp_path / "new.csv"), "holds text, '1e300'", "expects a number")


def inspected(fedapa: Call, place: Path, *sites: str) -> Answer:
    files = [place / f"{site}.csv" for site in sites or ("north", "south")]
    return fedapa("data", "inspect", *files, "--label", "outcome", "--out", place / "site.toml", "--force")


def write(path: Path, content: str | bytes) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refused(answer: Answer, said: str, hint: str) -> None:
    assert answer.code == 2, answer
    assert "error: " in answer.err
    assert "hint: " in answer.err
    assert said in answer.err
    assert hint in answer.err.partition("hint: ")[2]
