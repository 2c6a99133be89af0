"""Every method x every law, under both schedules and under every engine."""

from functools import lru_cache

import pytest
import torch

from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.method import Schedule
from fedapa.training.engines.native import available
from fedapa.training.objective import Regression
from fedapa.training.settings import Engine, Training
from fedapa.verify import LAWS
from fedapa.verify.case import Case


@lru_cache(maxsize=32)
def shared(case: Case) -> Case:
    """The equal case of the law before, whose task is made already."""
    return case


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_law(name: str, law: str, schedule: Schedule) -> None:
    LAWS[law](shared(Case(make(name), schedule)))


@pytest.mark.parametrize("engine", ["native", "vmap"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_law_under_another_engine(name: str, law: str, engine: Engine) -> None:
    if engine == "native" and not available()[0]:
        pytest.skip(f"native engine: {available()[1]}")
    LAWS[law](shared(Case(make(name), images=engine == "native", engine=engine)))


# A large eps: where a gradient is mere rounding, Adam's step would be of full size, and of either sign.
ADAMW = Training(
    0.02, batch=8, epochs=1, weight_decay=0.01, clip_norm=2.0, optimizer="adamw", eps=1e-3, lr_phi=0.03,
    lr_schedule="cosine", lr_warmup=1,
)  # fmt: skip
TOUCHED = ("engines-agree", "resume-is-exact", "functions-are-pure", "limits-are-met")  # by how a client trains


@pytest.mark.parametrize("law", TOUCHED)
@pytest.mark.parametrize("name", METHODS)
def test_law_with_another_recipe(name: str, law: str) -> None:
    LAWS[law](shared(Case(make(name), training=ADAMW)))


@pytest.mark.parametrize(
    "law", ["engines-agree", "functions-are-pure", "sent-arrives", "limits-are-met", "bytes-are-true"]
)
@pytest.mark.parametrize("name", METHODS)
def test_law_with_whole_numbers_as_samples(name: str, law: str) -> None:
    LAWS[law](shared(Case(make(name), tokens=True)))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", [name for name in METHODS if not make(name).needs_classes])
def test_law_with_numbers_to_predict(name: str, law: str) -> None:
    LAWS[law](shared(Case(make(name), objective=Regression(loss="huber"))))


OUTWEIGHED = {"fedapa": {"trainables-move"}}  # by statistics: test_statistics_in_theta_hold_the_weights_of_fedapa
STATISTICS = {"perfedavg", "apfl"}  # their limits have the other method's weights, and statistics of their own
SHARED = ("0.weight", "4")  # of the law suite's model: a part of the first layer, and the head


@pytest.mark.parametrize("name", [name for name in METHODS if not make(name).needs_head])
def test_laws_with_a_part_of_the_model_shared(name: str) -> None:
    case = Case(make(name), shared=SHARED)
    assert (case.task.P, case.task.Q) == (48 + 18, 8 + 45)
    for law in LAWS.values():
        law(case)


@pytest.mark.parametrize("name", [name for name in METHODS if make(name).needs_head])
def test_methods_of_features_refuse_other_cuts_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match="needs a model that is cut at its head"):
        Case(make(name), shared=SHARED).run()


@pytest.mark.parametrize("name", [name for name in METHODS if not name.startswith("pfedhn")])  # refuses statistics
def test_laws_with_batch_norm(name: str) -> None:
    case = Case(make(name), norm=True)
    other = {"limits-are-met"} if name in {*STATISTICS, "fedbn"} else set()  # FedBN is FedAvg where there is none
    for law in LAWS.keys() - other - OUTWEIGHED.get(name, set()):
        LAWS[law](case)


@pytest.mark.parametrize("name", sorted(STATISTICS))
def test_limits_of_the_weights_with_batch_norm(name: str) -> None:
    """A personal step of rate 0 moves Per-FedAvg's statistics, and APFL's are always those of w."""
    case = Case(make(name), norm=True)
    stop = case.task.model.theta_trainable
    for limit, variant in case.method.claims().limits.items():
        one, other = case.with_method(variant).run(), case.with_method(make(limit)).run()
        for mine, theirs in zip(one.records, other.records, strict=True):
            torch.testing.assert_close(mine.state["theta"][:stop], theirs.state["theta"][:stop], atol=1e-5, rtol=0)
            torch.testing.assert_close(mine.state["phi"], theirs.state["phi"], atol=1e-5, rtol=0)


def test_statistics_in_theta_hold_the_weights_of_fedapa() -> None:
    """Running variances fall from 1 at every client. So the slope of every weight in Eq. 7 is positive, and those of
    other clients are clipped at 0. Without the statistics the weights move."""
    case = Case(make("fedapa"), norm=True)
    server, downs, ups = case.visits((0, 1, 2), 1)
    stop = case.task.model.theta_trainable
    for down, up in zip(downs, ups, strict=True):
        moved = down["theta"] - up["theta"]
        weights, statistics = server["theta"][:, :stop] @ moved[:stop], server["theta"][:, stop:] @ moved[stop:]
        assert (statistics > 5 * weights.abs()).all()
    assert torch.equal(case.run().server["A"], torch.eye(4))
    private = Case(make("fedapa"), norm=True, buffers="private")
    for law in LAWS.values():
        law(private)
    assert not torch.equal(private.run().server["A"], torch.eye(4))


@pytest.mark.parametrize("name", [name for name in METHODS if make(name).needs_classes])
def test_methods_of_classes_refuse_numbers_in_one_line(name: str) -> None:
    with pytest.raises(InputError, match="needs classes, and the targets are numbers"):
        Case(make(name), objective=Regression()).run()
