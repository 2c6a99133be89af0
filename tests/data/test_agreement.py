"""A site's data against the agreed layout: what differs is named, what does not is read as agreed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedapa.config.load import check, dump
from fedapa.data import schema as schemas
from fedapa.data.agreement import Differs, fingerprint, layout_of, merged, schema_of
from fedapa.data.site_description import Sites
from fedapa.data.site_layout import Layout, LayoutColumn
from fedapa.data.sites import Own, assemble
from fedapa.errors import InputError

AGREED = Layout(
    "outcome",
    ("fine", "ill"),
    columns=(LayoutColumn("age", indicator=True, unit="years"), LayoutColumn("ward", "category", ("A", "B"))),
)
ROWS = [(f"{30 + k}", "AB"[k % 2], ("fine", "ill")[k % 3 == 0]) for k in range(24)]


def read(folder: Path, header: str, rows: list[tuple[str, ...]], layout: Layout = AGREED, **words: object) -> Own:
    (folder / "mine.csv").write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    sites = Sites(**{"files": {"mine": str(folder / "mine.csv")}, "label": "outcome", **words})
    return assemble(sites, layout=layout)


def test_a_file_that_fits_is_read_as_agreed(tmp_path: Path) -> None:
    own = read(tmp_path, "age,ward,outcome", ROWS)
    assert layout_of(own.schemas[0]) == AGREED
    assert fingerprint(own.schemas[0]) == fingerprint(schema_of(AGREED))
    assert own.data.shape == (4,)  # with the flag of a missing age, although no age is missing here
    assert own.schemas[0].columns[0].mean is not None


@pytest.mark.parametrize(
    ("header", "change", "words", "named"),
    [
        ("years,ward,outcome", None, {}, "no column 'age'"),
        ("age,ward,outcome", None, {"drop": ["age"]}, "'age' is agreed, but under drop here"),
        ("Age,ward,outcome", None, {}, "no column 'age', but one called 'Age'"),
        ("age,outcome", lambda r: (r[0], r[2]), {}, "no column 'ward'"),
        ("ward,age,outcome", lambda r: (r[1], r[0], r[2]), {}, "another order: 'ward' stands in the place of 'age'"),
        ("age,ward,outcome", lambda r: (r[0], r[1].lower(), r[2]), {}, "'ward' has 'a' (line 2), which is not agreed"),
        ("age,ward,outcome", lambda r: (r[0], str(ord(r[1])), r[2]), {}, "'ward' has '65'"),
        ("age,ward,outcome", lambda r: ("old", r[1], r[2]), {}, "'age' has the text 'old' (line 2)"),
        ("age,ward,outcome", None, {"units": {"age": "months"}}, "'age' is in months here and in years there"),
        ("age,ward,outcome", None, {"categories": ["age"]}, "'age' is a code here"),
        ("age,ward,outcome", lambda r: (r[0], r[1], "01"[r[2] == "ill"]), {}, "the label '0' is none of the classes"),
        ("age,ward,outcome", None, {"classes": {"ill": ["ill"], "fine": ["fine"]}}, "ill, fine here and fine, ill in"),
        ("age,ward,diagnosis", None, {"label": "diagnosis"}, "the label is 'diagnosis' here and 'outcome' there"),
    ],
)
def test_what_differs_is_named(tmp_path: Path, header: str, change, words, named: str) -> None:
    with pytest.raises(Differs) as error:
        read(tmp_path, header, [change(row) if change else row for row in ROWS], **words)
    assert named in error.value.message


def test_classes_may_be_coded_otherwise_if_the_site_says_so(tmp_path: Path) -> None:
    rows = [(age, ward, "01"[outcome == "ill"]) for age, ward, outcome in ROWS]
    own = read(tmp_path, "age,ward,outcome", rows, classes={"fine": ["0"], "ill": ["1"]})
    plain = read(tmp_path, "age,ward,outcome", ROWS)
    assert own.data.clients[0].train.y.tolist() == plain.data.clients[0].train.y.tolist()
    assert fingerprint(own.schemas[0]) == fingerprint(plain.schemas[0])


def test_more_columns_are_not_read_and_every_difference_counts(tmp_path: Path) -> None:
    assert read(tmp_path, "age,ward,extra,outcome", [(a, w, "9", o) for a, w, o in ROWS]).data.shape == (4,)
    with pytest.raises(Differs) as error:
        read(tmp_path, "alter,station,outcome", ROWS)
    assert "'age'" in error.value.message
    assert "'ward'" in error.value.message


def test_numbers_keep_to_the_agreed_range(tmp_path: Path) -> None:
    layout = replace(AGREED, classes=(), target_range=(0.0, 30.0))
    rows = [(a, w, str(k)) for k, (a, w, _) in enumerate(ROWS)]
    assert read(tmp_path, "age,ward,outcome", rows, layout).data.classes == 0
    with pytest.raises(Differs, match="1 labels, such as 31, are outside of 0 to 30"):
        read(tmp_path, "age,ward,outcome", [*rows[:-1], ("1", "A", "31")], layout)
    with pytest.raises(Differs, match="the label 'ill' is not a number"):
        read(tmp_path, "age,ward,outcome", ROWS, layout)


def test_samples_are_compared_by_shape(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "mine.npz", x=np.zeros((8, 3), dtype=np.float32), y=np.arange(8) % 2)
    layout, sites = Layout("label", ("0", "1"), shape=(4,)), Sites(files={"mine": str(tmp_path / "mine.npz")})
    with pytest.raises(Differs, match=r"shape \[3\] here and \[4\] there"):
        assemble(sites, layout=layout)


def test_a_schema_file_must_be_the_agreed_one(tmp_path: Path) -> None:
    import json

    shuffled = replace(schema_of(AGREED), columns=schema_of(AGREED).columns[::-1])
    for schema, ok in ((schema_of(AGREED), True), (shuffled, False)):
        (tmp_path / "schema.json").write_text(json.dumps(schemas.to_json(schema)))
        if ok:
            other = [(w, a, o) for a, w, o in ROWS]  # read by name: it accepted the layout explicitly
            own = read(tmp_path, "ward,age,outcome", other, schema_file=str(tmp_path / "schema.json"))
            assert own.schemas[0].columns[0].name == "age"
        else:
            with pytest.raises(Differs, match="the columns are in another order"):
                read(tmp_path, "age,ward,outcome", ROWS, schema_file=str(tmp_path / "schema.json"))


@pytest.mark.parametrize(
    "change",
    [
        {"label": "other"},
        {"classes": ("ill", "fine")},
        {"columns": AGREED.columns[::-1]},
        {"columns": (replace(AGREED.columns[0], unit="months"), AGREED.columns[1])},
        {"columns": (AGREED.columns[0], replace(AGREED.columns[1], levels=("B", "A")))},
        {"target_range": (0.0, 1.0)},
        {"shape": (3,)},
    ],
)
def test_every_part_is_in_the_hash(change) -> None:
    assert fingerprint(schema_of(AGREED)) != fingerprint(schema_of(replace(AGREED, **change)))


def test_the_hash_is_of_the_layout_alone() -> None:
    import numpy as np

    scaled = schemas.scaled(schema_of(AGREED), np.array([[2.0, 3.0, 5.0]]))
    assert fingerprint(scaled) == fingerprint(schema_of(AGREED))


def test_the_section_goes_through_toml() -> None:
    import tomllib

    age = {"name": "age", "indicator": True, "unit": "years"}
    ward = {"name": "ward", "kind": "category", "levels": ["A", "B"]}
    layout = {"label": "outcome", "classes": ["fine", "ill"], "columns": [age, ward]}
    raw = {"data": {"source": "own"}, "layout": layout}
    config = check(raw)
    assert config.layout == AGREED
    assert check(tomllib.loads(dump(config))).layout == AGREED
    with pytest.raises(InputError, match="colums"):
        check({"layout": {"colums": []}})


def proposal(*columns: schemas.Column, classes: tuple[str, ...] = ("fine", "ill"), **rest: object) -> schemas.Schema:
    return schemas.Schema(columns, "outcome", {name: (name,) for name in classes}, **rest)


def age(**words: object) -> schemas.Column:
    return schemas.Column("age", "number", **words)


def ward(*levels: str) -> schemas.Column:
    return schemas.Column("ward", "category", levels)


def test_a_layout_has_the_codes_and_classes_of_all_sites() -> None:
    found, notes = merged(
        {
            "north": proposal(age(indicator=True), ward("A", "10")),
            "south": proposal(age(unit="years"), ward("9", "A"), classes=("fine", "gone", "ill")),
            "west": proposal(ward("A"), age(mean=3.0, scale=1.0), target_range=(0.0, 9.0)),
        }
    )
    assert found.columns == (age(indicator=True, unit="years"), ward("9", "10", "A"))
    assert found.class_names == ("fine", "gone", "ill")
    assert found.target_range == (0.0, 9.0)
    assert [note.split(" than ")[0] for note in notes] == [
        "west has the columns in another order",
        "north has no row of class 'gone'",
        "west has no row of class 'gone'",
    ]


def test_columns_that_a_site_lacks_are_named_or_left_out() -> None:
    both = {"north": proposal(age(), ward("A")), "south": proposal(age())}
    with pytest.raises(InputError, match="'ward': not in every proposal; south has no column 'ward'"):
        merged(both)
    found, notes = merged(both, common=True)
    assert (found.columns, notes) == ((age(),), ["left out, as not in every proposal: 'ward'"])
    with pytest.raises(InputError, match="no column in common"):
        merged({"north": proposal(ward("A")), "south": proposal(age())}, common=True)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (proposal(age(), ward("1", "2")), r"column 'ward' has other codes at north \('A', 'B'\) than at south"),
        (proposal(age(), schemas.Column("ward", "number")), "'ward' is a number at south and a code or text at north"),
        (proposal(age(unit="months"), ward("A")), "column 'age' is in years at north and in months at south"),
        (proposal(age(), ward("A"), classes=("0", "1")), "the label has other classes at north"),
        (proposal(age(), ward("A"), classes=("ill", "fine")), "in which order"),
        (proposal(age(), ward("A"), classes=()), "north predicts classes and south numbers"),
        (proposal(age(), ward("A"), shape=(8, 8)), "shape is"),
        (replace(proposal(age(), ward("A")), label="dead"), "label is 'outcome' and 'dead'"),
    ],
)
def test_proposals_that_contradict_each_other_are_refused(other: schemas.Schema, named: str) -> None:
    with pytest.raises(InputError, match=named):
        merged({"north": proposal(age(unit="years"), ward("A", "B")), "south": other})


def test_codes_with_nothing_in_common_are_taken_on_demand_alone() -> None:
    both = {"north": proposal(ward("A")), "south": proposal(ward("B"))}
    with pytest.raises(InputError) as error:
        merged(both)
    assert "--unlike ward" in error.value.hint
    assert merged(both, unlike=["ward"])[0].columns == (ward("A", "B"),)
