"""`fedapa data inspect` on files as people have them."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from command import Call
from fedapa.site.inspection import shortened


def write_german(folder: Path, name: str, seed: int, encoding: str = "latin-1") -> None:
    rng, lines = np.random.default_rng(seed), ["Fall;Größe;Umsatz;Aufnahme;Raucher;Notiz;Ergebnis"]
    for k in range(60):
        ill, money = bool(rng.random() < 0.5), f"{int(rng.integers(1, 90))}.{int(rng.integers(100, 999))}"
        size = f"{rng.normal(170 + 9 * ill, 9):.1f}".replace(".", ",")
        day = f"{rng.integers(13, 28)}.{rng.integers(1, 12):02d}.2024"
        note = f"klagt über {rng.random():.5f} viele Schmerzen"
        lines.append(f"{k};{size};{money};{day};{('ja', 'Nein')[k % 2]};{note};{'krank' if ill else 'gesund'}")
    (folder / name).write_bytes("\n".join(lines).encode(encoding))


def test_a_german_csv_is_read_as_it_is(fedapa: Call, tmp_path: Path) -> None:
    write_german(tmp_path, "nord.csv", 1)
    write_german(tmp_path, "sued.csv", 2)
    answer = fedapa("data", "inspect", "nord.csv", "sued.csv", "--label", "Ergebnis", "--format", "json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert found["inputs"] == ["Größe", "Umsatz", "Raucher"]
    sizes = next(row for row in found["columns"]["nord"] if row["column"] == "Umsatz")["values"]
    assert float(sizes.split(" to ")[1]) > 1000  # thousands, not decimals
    notes = "\n".join(found["notes"])
    for words in (
        "not UTF-8 are read as latin-1", "read with decimal ',', thousands '.'", "in words become 1 and 0: 'Raucher'",
        "--time Fall", "--time Aufnahme", "holds free text", "left out: 'Fall', 'Aufnahme', 'Notiz'",
    ):  # fmt: skip
        assert words in notes
    sites = tomllib.loads((tmp_path / "site.toml").read_text())["sites"]
    assert (sites["decimal"], sites["thousands"], sites["encoding"]) == (",", ".", "latin-1")
    ran = fedapa("silo", "run", "site.toml", "--out", "o", "--seeds", "1", "--method", "fedavg", "--deliver-anyway")
    assert ran.code == 0, ran.err
    (tmp_path / "new.csv").write_bytes("Größe;Umsatz;Raucher\n171,5;12.345;Ja\n".encode("latin-1"))
    told = fedapa("predict", "o/sites/nord/site-model", "new.csv")
    assert told.code == 0, told.err  # read as the site writes
    assert "p(krank)" in told.out
    again = fedapa("predict", "o/sites/nord/site-model", "o/sites/nord/held-out.csv")  # which is written so, too
    assert again.code == 0, again.err
    known = (tmp_path / "o" / "sites" / "nord" / "predictions.csv").read_text().splitlines()
    assert [line.partition(",")[2] for line in again.out.splitlines()] == [line.partition(",")[2] for line in known]


def test_signs_that_only_windows_has_are_read_as_windows_writes_them(fedapa: Call, tmp_path: Path) -> None:
    rows = "\n".join(f"{k % 4};{'€' if k % 2 else 'ß'};{'ab'[k % 3 == 0]}" for k in range(30))
    (tmp_path / "a.csv").write_bytes(f"x;sign;y\n{rows}\n".encode("cp1252"))
    answer = fedapa("data", "inspect", "a.csv", "--label", "y")
    assert (answer.code, "read as cp1252" in answer.out) == (0, True), answer.err
    assert "codes go under categories" in answer.out
    answered = fedapa("data", "inspect", "a.csv", "--label", "y", "--categories", "x", "--force")
    assert (answered.code, "codes go under categories" in answered.out) == (0, False)


def test_options_say_what_inspect_asks_for(fedapa: Call, tmp_path: Path) -> None:
    write_german(tmp_path, "a.csv", 1)
    words = (
        "--classes",
        "fine=gesund,ill=krank",
        "--missing",
        "-9,Umsatz=0|1",
        "--dates",
        "Aufnahme",
        "--repeats",
        "3",
    )
    options = ("--label", "Ergebnis", "--drop", "Notiz", "--encoding", "cp1252", "--decimal", ",", "--thousands", ".")
    assert fedapa("data", "inspect", "a.csv", *options, *words, "--subgroups", "Raucher").code == 0
    config = tomllib.loads((tmp_path / "site.toml").read_text())
    sites = config["sites"]
    assert sites["classes"] == {"fine": ["gesund"], "ill": ["krank"]}
    assert sites["missing_values"] == {"Umsatz": ["0", "1"]}
    assert "-9" in sites["missing"]
    assert sites["dates"] == {"Aufnahme": "%d.%m.%Y"}
    assert (sites["encoding"], sites["subgroups"], config["seeds"]) == ("cp1252", ["Raucher"], [0, 1, 2])
    assert "Aufnahme" not in sites["drop"]


def test_all_problems_in_one_call_and_in_the_config(fedapa: Call, tmp_path: Path) -> None:
    rows = "\n".join(f"{k / 7:.3f},{k % 5},{'ab'[k % 2]}" for k in range(30))
    (tmp_path / "one.csv").write_text(f"x,z,y\n{rows}\n")
    (tmp_path / "two.csv").write_text(f"x,w,y\n{rows}\nhigh,1,a\n".replace(",b", ",a"))
    (tmp_path / "empty.csv").write_text("")
    answer = fedapa("data", "inspect", "one.csv", "two.csv", "empty.csv", "gone.csv", "--label", "y")
    assert answer.code == 2
    said = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    for words in (
        "empty.csv is an empty file", "gone.csv does not exist", "two has no row of class 'b'",
        "site two has no column 'z'", "site one has no column 'w'", "column 'x': text 'high' in line 32",
    ):  # fmt: skip
        assert sum(words in line for line in said) == 1, words
    text = (tmp_path / "site.toml").read_text()
    assert text.count("# problem: ") == len(said) == 6
    assert tomllib.loads(text)["sites"]["label"] == "y"


def test_a_site_of_one_row_is_told_at_once(fedapa: Call, tmp_path: Path) -> None:
    rows = "\n".join(f"big,{k / 7:.3f},{'ab'[k % 2]}" for k in range(30))
    (tmp_path / "all.csv").write_text(f"site,x,y\n{rows}\nsmall,1.5,a\n")
    answer = fedapa("data", "inspect", "all.csv", "--site", "site", "--label", "y")
    assert (answer.code, answer.err.count("error: ")) == (2, 2)
    assert "site small: 1 row cannot be split" in answer.err
    assert "--classes a,b" in answer.err


def test_day_and_month_are_not_guessed(fedapa: Call, tmp_path: Path) -> None:
    rows = "\n".join(f"{1 + k % 12:02d}/{1 + k % 9:02d}/2024,{k / 3:.2f},{'ab'[k % 2]}" for k in range(60))
    (tmp_path / "a.csv").write_text(f"seen,x,y\n{rows}\n")
    words = ("data", "inspect", "a.csv", "--label", "y", "--force", "--time", "seen")
    answer = fedapa(*words)
    assert (answer.code, "day and month cannot be told apart" in answer.err) == (2, True)
    assert "--dates 'seen=%d/%m/%Y' or --dates 'seen=%m/%d/%Y'" in answer.err
    assert fedapa(*words, "--dates", "seen=%m/%d/%Y").code == 0


def test_wide_tables_and_many_files_are_summarised(fedapa: Call, tmp_path: Path) -> None:
    rng, names = np.random.default_rng(0), [f"v{k}" for k in range(252)]
    for name in ("a", "b", "c"):
        rows = [",".join([*map(str, rng.integers(0, 4, 252)), "xy"[k % 2]]) for k in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join([*names, "y"]), *rows]))
    answer = fedapa("data", "inspect", "a.csv", "b.csv", "c.csv", "--label", "y")
    assert answer.code == 0, answer.err
    assert "252 columns have 3 to 10 whole numbers each: codes go under categories: 'v0', 'v1'" in answer.out
    assert len(answer.out.splitlines()) < 40
    assert len((tmp_path / "site.toml").read_text().splitlines()) < 60


def test_windows_that_overlap_are_noticed(fedapa: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    signal = np.cumsum(rng.normal(size=(600, 4)), axis=0)
    y = (np.arange(600) // 25) % 2  # in blocks: a file that is sorted by class alone is no series

    def write(x: np.ndarray) -> None:
        rows = [",".join([*(f"{v:.4f}" for v in row), "ab"[c]]) for row, c in zip(x, y, strict=True)]
        (tmp_path / "a.csv").write_text("\n".join(["p,q,r,s,y", *rows]))

    words = ("data", "inspect", "a.csv", "--label", "y", "--force")
    write(signal)
    assert "neighbouring rows are alike" in fedapa(*words).out
    chosen = fedapa(*words, "--in-order")
    assert "neighbouring rows are alike" not in chosen.out
    assert 'split = "order"' in (tmp_path / "site.toml").read_text()
    write(rng.normal(size=(600, 4)) + 5 * y[:, None])
    assert "neighbouring rows are alike" not in fedapa(*words).out


def test_imbalance_numbers_and_tiny_sites_are_noticed(fedapa: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{rng.normal():.3f},{int(k % 20 == 0)},{rng.normal():.4f}" for k in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["u,v,rare,amount", *lines]))
    (tmp_path / "b.csv").write_text("\n".join(["u,v,rare,amount", "1,2,0,1", "2,1.5,1,3.25"]))
    answer = fedapa("data", "inspect", "a.csv", "b.csv", "--label", "rare")
    assert "one class has 5.2 % of the rows" in answer.out
    assert "site 'b': fewer than 20 train or 10 test rows; scores there say next to nothing" in answer.out
    assert tomllib.loads((tmp_path / "site.toml").read_text())["objective"] == {"score": "AUC"}
    answer = fedapa("data", "inspect", "a.csv", "--label", "amount", "--force")
    assert "'amount' holds numbers: they are predicted as numbers" in answer.out
    assert tomllib.loads((tmp_path / "site.toml").read_text())["objective"] == {"name": "regression"}


@pytest.mark.parametrize(("rows", "rounds"), [(45, 94), (300, 14), (5000, 10)])
def test_small_tables_get_more_rounds(fedapa: Call, tmp_path: Path, rows: int, rounds: int) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},{'ab'[k % 2]}" for k in range(rows)]
    (tmp_path / "a.csv").write_text("\n".join(["u,y", *lines]))
    assert fedapa("data", "inspect", "a.csv", "--label", "y").code == 0
    assert tomllib.loads((tmp_path / "site.toml").read_text())["run"]["rounds"] == rounds


def test_notes_about_many_sites_are_one() -> None:
    copies = [f"site {k}: {k} rows are copies of others and stay on their side of the split" for k in range(1, 6)]
    shared = [f"sites {k} and {k + 1} share 2 equal rows" for k in range(4)]
    assert shortened([*copies, *shared, "something else"]) == [
        "5 sites: 15 rows are copies of others and stay on their side of the split",
        "4 pairs of sites share 8 equal rows",
        "something else",
    ]
    assert shortened(copies[:2]) == copies[:2]
