"""Clients on another device: nothing of the CPU meets it, and nothing of it is left behind. No hardware is needed."""

from dataclasses import replace

import pytest
import torch
from device_mode import META, Strayed, There, pretend

from fedapa.core.tree import distance
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make
from fedapa.training.devices import devices_of
from fedapa.training.engines.choice import engine_note
from fedapa.training.settings import Training
from fedapa.verify.case import Case, Outcome


def run(name: str, devices: tuple[torch.device, ...], **options: object) -> Outcome:
    case = Case(make(name), **options)  # type: ignore[arg-type]
    case.__dict__["task"] = replace(case.task, devices=devices)
    return case.run(2)


def left_behind(outcome: Outcome) -> list[str]:
    return [name for name, leaf in outcome.tree().items() if isinstance(leaf, There) or leaf.device.type != "cpu"]


@pytest.mark.parametrize("name", [*METHODS, "fedavg+quantised", "fedapa+top", "fedavg+noised", "fedapa+ema"])
def test_every_method_computes_where_it_is_told(name: str) -> None:
    plain = run(name, (torch.device("cpu"),))
    with pretend():
        moved = run(name, (META,))
    assert not left_behind(moved)
    assert distance(plain.tree(), moved.tree()) < 1e-5


def test_clients_take_devices_in_turn_and_other_recipes_follow() -> None:
    adam = Training(0.02, batch=8, epochs=1, optimizer="adamw", augment="", clip_norm=1.0)
    plain = run("fedapa", (torch.device("cpu"),), training=adam)
    with pretend():
        mixed = run("fedapa", (torch.device("cpu"), META), training=adam)
    assert not left_behind(mixed)
    assert distance(plain.tree(), mixed.tree()) < 1e-5


def test_images_are_augmented_where_they_are() -> None:
    recipe = Training(0.05, batch=8, epochs=1, augment="flip+crop")
    plain = run("fedavg", (torch.device("cpu"),), training=recipe, images=True)
    with pretend():
        moved = run("fedavg", (META,), training=recipe, images=True)
    assert distance(plain.tree(), moved.tree()) < 1e-5


def test_the_device_of_these_tests_refuses_strays() -> None:
    with pretend():
        there, here = torch.ones(3, device=META), torch.ones(3)
        assert isinstance(there, There)
        assert (there + 1.0).to("cpu").tolist() == [2, 2, 2]
        assert there[torch.tensor([0, 1])].shape == (2,)
        with pytest.raises(Strayed):
            there + here


def test_a_device_that_is_not_there_is_refused() -> None:
    assert devices_of("cpu") == (torch.device("cpu"),)
    with pytest.raises(InputError, match="'cuda:7' is not there"):
        devices_of("cuda:7")
    with pytest.raises(InputError, match="device is 'gpu'"):
        devices_of("cpu,gpu")


def test_the_native_engine_is_one_of_the_cpu() -> None:
    case = Case(make("local"), images=True)
    assert engine_note(replace(case.task, devices=(META,))) == "torch (it computes on the CPU, the run on meta)"
