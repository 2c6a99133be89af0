"""Names, hyper-parameters, citations; and the bytes of METHODS' table counted from the trees."""

from dataclasses import replace

import pytest
import torch
from three_clients import make_data, make_task

from fedapa.core.hyper_parameters import describe
from fedapa.core.tree import count_bytes
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make, method_class
from fedapa.methods.papers import PAPERS
from fedapa.simulation import wire
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.task import Task

# Kilobytes per client and round of the FedAPA paper's Table 2, or what its own text implies where it errs.
TABLE_2 = {
    "local": 0.0, "fedavg": 484.4, "fedphp": 484.4, "fedamp": 484.4, "fedala": 484.4, "dbe": 484.4, "pfedla": 484.4,
    "pfedhn": 484.4, "fedapa": 477.8, "pfedhn-pc": 477.8, "apple": 4844.2, "fedpac": 494.3, "fedproto": 6.6,
    "fedgh": 6.6,
}  # fmt: skip

# Every default; where each comes from stands beside it in the method's file.
DEFAULTS = {
    "local": "",
    "fedavg": "fine_tune=False",
    "fedavg-ft": "fine_tune=True",
    "fedprox": "mu=0.01, fine_tune=False",
    "fedper": "",
    "fedrep": "head_epochs=10, extractor_epochs=0",
    "ditto": "lam=1.0",
    "fedphp": "lam=0.05, mu=0.9, Q=0.0, regulariser='mmd', used='inherited'",
    "fedamp": "attention='exact', sigma=4.0, alpha=0.0, lam=0.02, sharpness=25.0, xi=0.0",
    "fedamp-heur": "attention='heuristic', sigma=4.0, alpha=0.0, lam=0.02, sharpness=25.0, xi=0.0",
    "apple": "lr_p=0.001, mu=0.1, L=0.1, decay='exponential', start='common'",
    "fedala": "eta=1.0, s=80.0, p=2, threshold=0.1, window=10, cap=100",
    "pfedhn": (
        "private_head=False, hn_lr=0.0, hn_momentum=0.9, hn_weight_decay=0.001, clip_norm=50.0, embedding=0, "
        "hidden=100, layers=3, local_steps=0, order='sequential', update='mean'"
    ),
    "pfedhn-pc": (
        "private_head=True, hn_lr=0.0, hn_momentum=0.9, hn_weight_decay=0.001, clip_norm=50.0, embedding=0, "
        "hidden=100, layers=3, local_steps=0, order='sequential', update='mean'"
    ),
    "pfedla": "hn_lr=0.005, sign='descend', private_layers=0, embedding=100, hidden=100",
    "pfedla-heur": "hn_lr=0.005, sign='descend', private_layers=1, embedding=100, hidden=100",
    "fedpac": ("lam=1.0, head_epochs=1, head_lr=0.1, head_momentum=0.5, head_weight_decay=0.0005, collaborate=True"),
    "dbe": "kappa=50.0, width=512, mu=1.0, train_bias=True, keep_first=False",
    "fedproto": "lam=1.0, inference='head', average='samples', prototypes='after'",
    "fedgh": "server_lr=0.01, server_batch=1, server_epochs=1",
    "pfedme": (
        "lam=15.0, inner_lr=0.01, inner_steps=5, beta=1.0, local_steps=0, restart=False, used='personal', "
        "shared='model'"
    ),
    "perfedavg": "alpha=0.01, adapt_steps=1, order='first', split=True, shared='model'",
    "apfl": "alpha=0.5, alpha_lr=0.01, mix='parameters', start='received'",
    "scaffold": "server_lr=1.0, average='clients', correct=True, fine_tune=False, shared='model'",
    "fedrod": "gamma=1.0, start='zero', used='personal'",
    "lg-fedavg": "",
    "knnper": "lam=0.5, k=10, scale=1.0, capacity=500, shared='model'",
    "fedbabu": "tune_epochs=5, tuned='model'",
    "fedbn": "",
    "moon": "mu=5.0, tau=0.5, fine_tune=False, shared='model'",
    "fedapa": (
        "eta=0.01, mu=0.5, sign='descend', self_weight='raw', clip=True, normalise=True, weight_momentum=0.0, "
        "buffer='row', project_at='update', shared='extractor', order='parallel', top_k=0"
    ),
    "fedapa-reference": (
        "eta=0.01, mu=1.0, sign='descend', self_weight='raw', clip=True, normalise=True, weight_momentum=0.9, "
        "buffer='shared', project_at='send', shared='extractor', order='sequential', top_k=0"
    ),
    "fedapa-exact": (
        "rule='cut', measure='distance', jump_ratio=3.0, patience=5, level=0.01, sizes='', ridge=0.5, top_k=0, "
        "share=0.2, row_ema=0.5, server_ema=0.0, per_layer=False, fine_tune=False"
    ),
    "fedapa-scored": "holdout=0.1, row_ema=0.5, fine_tune=False",
    "pfedgraph": "alpha=0.8, lam=0.01, same=0.9, sign='toward', over='heard', shared='model', local_steps=0",
    "cfl": (
        "rule='relative', ratio=0.3, eps1=0.4, eps2=1.6, warmup=20, linkage='single', average='clients', shared='model'"
    ),
    "ifca": "clusters=2, average='samples', shared='model'",
    "fedfomo": ("offers=5, explore=0.3, explore_decay=0.05, holdout=0.2, norm='l2', fallback='back', shared='model'"),
    "fedem": "components=3, shared='model'",
}
AS_IT_ARRIVES = "fedavg fedprox fedrep fedala pfedhn pfedhn-pc pfedla pfedla-heur dbe fedapa-exact fedapa-scored"
AS_IT_ARRIVES += " pfedgraph cfl ifca fedfomo fedem moon fedbn knnper lg-fedavg scaffold perfedavg"
# Whose weights go on from the last visit, in whole or as a mixture of its own; all others begin with a new optimiser.
GOES_ON = "local ditto fedamp fedamp-heur apple fedproto fedgh fedapa fedapa-reference fedapa-exact fedapa-scored"
GOES_ON += " fedfomo apfl"


@pytest.fixture(scope="module")
def cifar() -> Task:
    return Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 100))


@pytest.mark.parametrize("name", METHODS)
def test_bytes_per_client_and_round(name: str, cifar: Task) -> None:
    down, up = wire(make(name), cifar, torch.zeros(3, 32, 32))
    kib = (count_bytes(down) + count_bytes(up)) / 1024
    assert round(kib, 1) == METHODS[name].kib
    assert round(kib, 1) == TABLE_2.get(name, METHODS[name].kib)


def test_how_many_methods_beside_variants_and_our_own() -> None:
    variants, ours = {"fedamp-heur", "pfedhn-pc", "pfedla-heur", "fedapa-reference"}, {"fedapa-exact", "fedapa-scored"}
    assert len(METHODS.keys() - variants - ours) == 33


@pytest.mark.parametrize("name", METHODS)
def test_the_defaults(name: str) -> None:
    method = make(name)
    assert repr(method) == f"{type(method).__name__}({DEFAULTS[name]})"


def test_what_every_paper_reports() -> None:
    assert {name for name in METHODS if make(name).evaluated == "before"} == set(AS_IT_ARRIVES.split())


def test_how_clients_of_a_round_are_played() -> None:
    one_after_another = {name for name in METHODS if make(name).schedule == "sequential"}
    assert one_after_another == {"pfedhn", "pfedhn-pc", "fedapa-reference"}


@pytest.mark.parametrize("name", METHODS)
def test_whose_momentum_stays(name: str) -> None:
    """The velocity of weights that were just replaced would push them where nobody wants to go."""
    task, method = make_task(), make(name)
    server, client = method.init(task, 0)
    local, down = Local(task, 0, 0, 0, make_data()[0]), method.send(task, server, 0)
    method.train(task, method.receive(task, client, down, local), down, local)
    place = {"ditto": "personal/", "apfl": "main/own_"}.get(name, "main/")
    kept = {f"{place}theta", f"{place}phi"} | ({"main/p"} if name == "apple" else set())
    assert set(local.memory) == (kept if name in GOES_ON.split() else set())


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
