"""Rows to numbers, with scikit-learn's own transformers as the oracle."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedapa.data.schema import from_json, lay_out, read_schema, scaled, strangers, sums, to_json, transform
from fedapa.data.tables import Table
from fedapa.errors import InputError

CLASSES = {"0": ("0",), "1": ("1",)}


def table(name: str = "a.csv", **columns: list[object]) -> Table:
    cells = {k: np.array([None if v is None else str(v) for v in c], dtype=object) for k, c in columns.items()}
    return Table(Path(name), cells, np.arange(2, 2 + len(next(iter(columns.values())))))


def random_table(rng: np.random.Generator, rows: int) -> Table:
    age = [None if rng.random() < 0.2 else round(float(v), 3) for v in rng.normal(50, 9, rows)]
    town = [None if rng.random() < 0.1 else str(v) for v in rng.choice(["Bern", "Uster", "Zug"], rows)]
    return table(age=age, dose=[float(v) for v in rng.integers(0, 4, rows)], town=town, constant=[7.0] * rows)


def test_it_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    train, new = random_table(rng, 60), random_table(rng, 20)
    schema = lay_out({"a": train}, "y", CLASSES)
    mine = transform(scaled(schema, sums(schema, train)), new)

    def matrix(found: Table) -> np.ndarray:
        rows = [[np.nan if v is None else float(v) for v in found.columns[k]] for k in ("age", "dose", "constant")]
        return np.column_stack([np.array(rows).T.astype(object), found.columns["town"]])

    numeric = make_union(
        make_pipeline(StandardScaler(), SimpleImputer(strategy="constant", fill_value=0.0)),
        MissingIndicator(features="missing-only"),
    )
    levels = OneHotEncoder(categories=[["Bern", "Uster", "Zug"]], handle_unknown="ignore", sparse_output=False)
    oracle = ColumnTransformer([("numeric", numeric, [0, 1, 2]), ("town", levels, [3])])
    theirs = oracle.fit(matrix(train)).transform(matrix(new)).astype(float)
    order = [0, 3, 1, 4, 5, 6, 2]  # age, age missing, dose, three towns, constant
    assert schema.inputs == ["age", "age missing", "dose", "town=Bern", "town=Uster", "town=Zug", "constant"]
    np.testing.assert_allclose(mine, theirs[:, order], rtol=1e-5, atol=1e-6)


def test_sums_of_sites_add_up_to_the_pooled_scaling() -> None:
    rng = np.random.default_rng(1)
    parts = {"a": random_table(rng, 30), "b": random_table(rng, 50)}
    whole = table(**{k: [*parts["a"].columns[k], *parts["b"].columns[k]] for k in parts["a"].columns})
    schema = lay_out(parts, "y", CLASSES)
    added = scaled(schema, sums(schema, parts["a"]) + sums(schema, parts["b"]))
    pooled = scaled(schema, sums(schema, whole))
    np.testing.assert_allclose([c.scale or 0 for c in added.columns], [c.scale or 0 for c in pooled.columns])
    ages = np.array([float(v) for v in whole.columns["age"] if v is not None])
    assert added.columns[0].mean == pytest.approx(ages.mean())
    assert added.columns[0].scale == pytest.approx(ages.std())


def test_a_column_that_a_site_never_measured_is_zero_and_flagged() -> None:
    empty = table(age=[None, None])
    schema = lay_out({"a": table(age=[40, 60]), "b": empty}, "y", CLASSES)
    assert transform(scaled(schema, sums(schema, empty)), empty).tolist() == [[0, 1], [0, 1]]


def test_new_values_at_prediction() -> None:
    schema = lay_out({"a": table(town=["Bern", "Zug"], age=[1, 3])}, "y", CLASSES)
    fitted = scaled(schema, sums(schema, table(town=["Bern"] * 2, age=[1, 3])))
    new = table(town=["Paris", "Zug"], age=[2, None])
    assert transform(fitted, new).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert strangers(fitted, new) == ["column 'town': 'Paris' was never seen in training and counts as missing"]
    with pytest.raises(InputError, match="line 2: column 'age' holds text, 'old'"):
        transform(fitted, table(town=["Bern"], age=["old"]))
    with pytest.raises(InputError, match="there is no column 'age'"):
        transform(fitted, table(town=["Bern"]))


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"age": [1, 2]}, {"age": [1, "old"]}, "site b, column 'age': text 'old' in line 3 of a.csv .numeric at a"),
        ({"age": [1, 2], "dose": [1, 2]}, {"age": [1, 2]}, "site b has no column 'dose'"),
        ({"age": [1, 2]}, {"age": [1, 2], "dose": [1, 2]}, "site a has no column 'dose'"),
        ({"age": [*range(9), "x"]}, {"age": [*range(9), "y"]}, "text 'x' in line 11 of a.csv among numbers"),
        ({"who": [f"n{k}" for k in range(101)]}, {"who": ["n1"] * 101}, "101 different texts, .* an identifier"),
    ],
)
def test_sites_that_do_not_fit(one: dict[str, list[object]], other: dict[str, list[object]], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        lay_out({"a": table(**one), "b": table(**other)}, "y", CLASSES)
    assert caught.value.hint


def test_numbers_that_are_codes() -> None:
    schema = lay_out({"a": table(cp=[10, 9, 1])}, "y", CLASSES, ["cp"])
    assert schema.columns[0].levels == ("1", "9", "10")
    with pytest.raises(InputError, match="no column 'pc'"):
        lay_out({"a": table(cp=[1])}, "y", CLASSES, ["pc"])


def test_json_keeps_all_and_order(tmp_path: Path) -> None:
    classes = {"ill": ("1", "2"), "fine": ("0",)}
    data = table(age=[1, None], town=["b", "a"])
    schema = lay_out({"a": data}, "y", classes)
    schema = scaled(schema, sums(schema, data))
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(to_json(schema), sort_keys=True))
    assert read_schema(path) == schema
    assert read_schema(path).class_names == ("ill", "fine")


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"format": "fedapa-schema-9"}'])
def test_what_is_no_schema(tmp_path: Path, text: str) -> None:
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(InputError):
        read_schema(tmp_path / "schema.json")
    with pytest.raises(InputError, match="cannot read"):
        read_schema(tmp_path / "gone.json")
    with pytest.raises(InputError):
        from_json(None, "nothing")
