import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedapa.data.profile import predictive_power, profile

from .test_schema import table

RNG = np.random.default_rng(0)
N = 40
Y = [k % 2 for k in range(N)]


@pytest.mark.parametrize(
    ("values", "name", "kind"),
    [
        ([f"P{k}" for k in range(N)], "case", "identifier"),
        (list(range(1000, 1000 + N)), "number", "identifier"),
        ([f"n{k // 2}" for k in range(N)], "surname", "identifier"),
        ([7] * N, "unit", "constant"),
        ([None] * N, "unit", "constant"),
        ([10.5 * y + 0.01 * k for k, y in enumerate(Y)], "result", "leakage"),
        ([{0: "home", 1: "ward"}[y] for y in Y], "discharge", "leakage"),
        ([None] * 25 + [0.5 + k for k in range(15)], "late", "missing"),
        ([1 + k % 4 for k in range(N)], "cp", "codes"),
        ([-9 if k % 8 == 0 else 1.5 + k / 9 for k in range(N)], "chol", "nothing"),
        ([999 if k % 8 == 0 else 40.5 + k for k in range(N)], "age", "nothing"),
        ([f"{k},5" for k in range(N)], "dose", "text"),
        ([0.25 + k for k in range(N - 1)] + ["high"], "dose", "text"),
        ([f"2024-01-{1 + k % 28:02d}" for k in range(N)], "seen", "date"),
    ],
)
def test_what_a_careful_reader_would_ask(values: list[object], name: str, kind: str) -> None:
    found = profile(table(**{name: values, "y": Y}), "y")
    assert kind in [warned.kind for warned in found.warnings], found.warnings
    assert found.named(kind) == [name]


def test_ordinary_columns_raise_no_question() -> None:
    columns = {"age": [round(float(v), 2) for v in RNG.normal(50, 9, N)], "sex": list(RNG.choice(["f", "m"], N))}
    found = profile(table(**columns, y=Y), "y")
    assert found.warnings == []
    assert found.classes == {"0": 20, "1": 20}
    assert [row["type"] for row in found.columns] == ["number", "text"]


def test_amounts_are_no_identifiers() -> None:
    found = profile(table(money=[1000 + 7919 * k % 90000 for k in range(N)], y=Y), "y")
    assert found.warnings == []


def test_rows_of_one_person_and_numbers_that_count() -> None:
    persons = [f"P{k // 4}" for k in range(N)]
    found = profile(table(subject=persons, step=list(range(0, 100 * N, 100)), x=list(RNG.normal(size=N)), y=Y), "y")
    assert found.named("group") == ["subject"]
    assert found.named("order") == found.named("identifier") == ["step"]
    assert not profile(table(subject=persons[:10] * 4, x=list(RNG.normal(size=N)), y=Y), "y").named("order")


def test_small_classes_and_missing_labels() -> None:
    labels = ["a"] * 30 + ["b"] * 9 + [None]
    texts = [warned.text for warned in profile(table(x=list(np.arange(40) / 7), y=labels), "y").warnings]
    assert "class 'b' has 9 rows only" in texts
    assert "1 rows have no label and would be left out" in texts


def test_the_power_of_numbers_is_the_area_under_the_curve() -> None:
    values = RNG.normal(size=200) + 0.7 * (np.arange(200) % 2)
    labels = np.array([str(k % 2) for k in range(200)], dtype=object)
    cells = np.array([str(v) for v in values], dtype=object)
    assert predictive_power(cells, labels) == pytest.approx(roc_auc_score(labels == "1", values))
