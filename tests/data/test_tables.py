from pathlib import Path

import numpy as np
import pytest

from fedapa.data.cell_format import canonical
from fedapa.data.tables import LONGEST_LINE, Table, read_table
from fedapa.errors import InputError


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def cells(table: Table) -> dict[str, list[str | None]]:
    return {name: column.tolist() for name, column in table.columns.items()}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "age,town\n50,Bern\n?,\n51.0,Uster\n"),
        ("a.csv", "\ufeffage;town\r\n50;Bern\r\n\r\n?;\r\n51.0;Uster"),
        ("a.tsv", "age\ttown\n50\tBern\nNA\t\n51.0\tUster\n"),
        ("a.csv", 'age,town\n50,"Bern"\n, \n51.0,Uster\n'),
    ],
)
def test_text_with_any_separator(tmp_path: Path, name: str, text: str) -> None:
    table = read_table(write(tmp_path / name, text))
    assert cells(table) == {"age": ["50", None, "51"], "town": ["Bern", None, "Uster"]}


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", 'a,b\n1,"two\nlines"\n\n2,x\n'))
    assert table.lines.tolist() == [2, 5]


def test_a_header_and_missing_values_from_outside(tmp_path: Path) -> None:
    path = write(tmp_path / "a.data", "0,0\n1.0,240\n")
    table = read_table(path, ["sex", "chol"], missing_values={"chol": ["0"]})
    assert cells(table) == {"sex": ["0", "1"], "chol": [None, "240"]}


def test_codes_have_one_text() -> None:
    assert [canonical(v) for v in ("1.0", "01", "1.50", "x", "1e2", "-0")] == ["1", "1", "1.50", "x", "100", "0"]


def test_parquet_equals_csv(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    parquet = pytest.importorskip("pyarrow.parquet")
    content = {"age": [50.0, None, float("nan")], "town": ["Bern", None, "Uster"], "ill": [True, False, True]}
    parquet.write_table(arrow.table(content), tmp_path / "a.parquet")
    text = write(tmp_path / "a.csv", "age,town,ill\n50,Bern,1\n,,0\n,Uster,1\n")
    assert cells(read_table(tmp_path / "a.parquet")) == cells(read_table(text))
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match="not a readable Parquet"):
        read_table(tmp_path / "b.parquet")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is an empty file"),
        (b"  \n \n", "nothing but blanks"),
        (b"a,b\n", "no row below the header"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: 3 cells where there are 2 columns"),
        (b"a,a\n1,2\n", "two columns are called 'a'"),
        (b"a,\n1,2\n", "column 2 has no name"),
        (b"1,2\n3,4\n", "holds numbers, not names"),
        (b"a,b\nx,M\xfcller\n", "line 2: byte 0xfc is not utf-8 text"),
        (b'a,b\n1,"open\n', "line 2: a quotation mark opens here and never closes"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_table(path)
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_another_encoding(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "name\nMüller\n", "latin-1")
    assert read_table(path, encoding="latin-1").columns["name"].tolist() == ["Müller"]
    with pytest.raises(InputError, match="no encoding called"):
        read_table(path, encoding="latin-x")


def test_two_gigabytes_without_a_line_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with open(path, "wb") as file:
        file.truncate(2 * 2**30)  # a hole: takes no room
    with pytest.raises(InputError, match="line 1: a byte 0"):
        read_table(path)
    with open(path, "r+b") as file:
        file.write(b"a" * LONGEST_LINE)
    with pytest.raises(InputError, match=r"2\.0 GiB\): line 1 never ends"):
        read_table(path)


def test_large_files_are_read_in_pieces_and_only_what_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{k},text {k},{k % 3}" for k in range(100)]
    path = write(tmp_path / "a.csv", "\n".join(["a,b,c", *rows]))
    whole = cells(read_table(path, unused=["b"]))
    assert whole["b"][7] == "text 7"  # small: kept, for held-out.csv
    monkeypatch.setattr("fedapa.data.tables.LARGEST_TEXT", 100)
    monkeypatch.setattr("fedapa.data.tables.LARGEST_CELLS", 250)
    monkeypatch.setattr("fedapa.data.tables.PIECE", 7)
    monkeypatch.setattr("fedapa.data.tables.MOST_KNOWN", 5)
    found = read_table(path, unused=["b"])
    assert cells(found) == whole | {"b": [None] * 100}
    assert found.lines.tolist() == list(range(2, 102))
    with pytest.raises(InputError, match="more than 0 million cells; tables are held in memory") as caught:
        read_table(path)
    assert "drop" in caught.value.hint


@pytest.mark.parametrize(("name", "said"), [("gone.csv", "does not exist"), ("a.xlsx", "'.xlsx' are not known")])
def test_no_such_file(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=said):
        read_table(tmp_path / name)
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path)


def test_rows_are_taken_with_their_lines(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "a\nx\ny\nz\n")).take(np.array([2, 0]))
    assert (cells(table), table.lines.tolist()) == ({"a": ["z", "x"]}, [4, 2])
