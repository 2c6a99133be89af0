"""Names, hyper-parameters, citations; and the bytes of METHODS' table counted from the trees."""

from dataclasses import replace

import pytest
import torch

from fedapa.core.tree import count_bytes
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make, method_class
from fedapa.methods.method import describe
from fedapa.methods.papers import PAPERS
from fedapa.simulation import wire
from fedapa.training.model import build_model
from fedapa.training.task import Task

# Kilobytes per client and round of the FedAPA paper's Table 2, or what its own text implies where it errs.
TABLE_2 = {
    "local": 0.0, "fedavg": 484.4, "fedphp": 484.4, "fedamp": 484.4, "fedala": 484.4, "dbe": 484.4, "pfedla": 484.4,
    "pfedhn": 484.4, "fedapa": 477.8, "pfedhn-pc": 477.8, "apple": 4844.2, "fedpac": 494.3, "fedproto": 6.6,
    "fedgh": 6.6,
}  # fmt: skip


@pytest.fixture(scope="module")
def cifar() -> Task:
    return Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 100))


@pytest.mark.parametrize("name", METHODS)
def test_bytes_per_client_and_round(name: str, cifar: Task) -> None:
    down, up = wire(make(name), cifar, torch.zeros(3, 32, 32))
    kib = (count_bytes(down) + count_bytes(up)) / 1024
    assert round(kib, 1) == METHODS[name].kib
    assert round(kib, 1) == TABLE_2.get(name, METHODS[name].kib)


def test_eighteen_methods_their_variants_and_our_own() -> None:
    variants, ours = {"fedamp-heur", "pfedhn-pc", "pfedla-heur", "fedapa-reference"}, {"fedapa-exact", "fedapa-scored"}
    assert len(METHODS.keys() - variants - ours) == 18


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_documented(name: str) -> None:
    entry, cls = METHODS[name], method_class(name)
    assert entry.paper in PAPERS or name == "local"
    module = __import__(cls.__module__, fromlist=["_"])
    assert len(module.__doc__) > 150
    assert all(row["help"] for row in describe(cls))
    assert all(key in cls.__dataclass_fields__ for key in entry.preset)


@pytest.mark.parametrize("name", METHODS)
def test_every_range_is_enforced(name: str) -> None:
    """A number outside its legal range, a wrong type and a wrong word are refused by name."""
    method = make(name)
    for row in describe(type(method)):
        if row["type"] in ("float", "int"):
            for bad in (row["low"] - 1, row["high"] + 1, float("nan"), "much"):
                if bad not in (float("inf"), float("-inf")):
                    with pytest.raises(InputError, match=row["name"]):
                        replace(method, **{row["name"]: bad})
        elif row["type"] == "bool":
            with pytest.raises(InputError, match=row["name"]):
                replace(method, **{row["name"]: 1})
        else:
            with pytest.raises(InputError, match=row["name"]):
                replace(method, **{row["name"]: "nonsense"})


def test_unknown_names_are_explained() -> None:
    with pytest.raises(InputError, match="unknown method 'fedapaa'") as error:
        make("fedapaa")
    assert error.value.hint == "did you mean fedapa?"
    with pytest.raises(InputError, match="fedapa has no hyper-parameter 'etta'") as error:
        make("fedapa", etta=1)
    assert error.value.hint == "did you mean eta?"


def test_bibtex() -> None:
    text = PAPERS["sun2025"].bibtex("sun2025")
    assert text.startswith("@inproceedings{sun2025,\n")
    assert text.count("{") == text.count("}")
