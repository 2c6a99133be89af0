"""Clients on another device: nothing of the CPU meets it, and nothing of it is left behind. No hardware is needed."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from device_mode import META, Strayed, There, pretend

from command import Call
from fedapa.core.tree import Tree, distance
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.fedavg import FedAvg
from fedapa.rounds.transport import InProcess
from fedapa.training.devices import devices_of, server_device
from fedapa.training.engines.choice import engine_note
from fedapa.training.settings import Training
from fedapa.training.task import Task
from fedapa.verify.case import Case, Outcome


def run(name: str, devices: tuple[torch.device, ...], **options: object) -> Outcome:
    case = Case(make(name), **options)  # type: ignore[arg-type]
    case.__dict__["task"] = replace(case.task, devices=devices, server_device=devices[0])
    return case.run(2)


def left_behind(outcome: Outcome) -> list[str]:
    return [name for name, leaf in outcome.tree().items() if isinstance(leaf, There) or leaf.device.type != "cpu"]


WRAPPED = ("quantised", "top", "noised", "ema", "bounded", "krum", "trimmed", "median")


@pytest.mark.parametrize("name", [*METHODS, *(f"fedavg+{name}" for name in WRAPPED), "fedapa+top", "fedapa+ema"])
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


def test_the_servers_state_is_on_the_first_device_while_it_runs() -> None:
    """What the method is given, on which device it makes new tensors, and that everything ends on the CPU."""
    seen: dict[str, set[str]] = {}

    class Looking(FedAvg):
        def send(self, task: Task, server: Tree, i: int) -> Tree:
            seen.setdefault("send", set()).update({str(server["omega"].device), str(torch.zeros(1).device)})
            return super().send(task, server, i)

        def absorb(
            self, task: Task, server: Tree, ids: Sequence[int], downs: Sequence[Tree], ups: Sequence[Tree]
        ) -> Tree:
            places = {str(leaf.device) for tree in (server, *downs, *ups) for leaf in tree.values()}
            seen.setdefault("absorb", set()).update(places | {str(torch.zeros(1).device)})
            return super().absorb(task, server, ids, downs, ups)

    case = Case(Looking())
    case.__dict__["task"] = replace(case.task, devices=(META,), server_device=META)
    with pretend():
        assert not left_behind(case.run(2))
    assert seen == {"send": {"meta"}, "absorb": {"meta"}}


def test_a_state_that_is_too_large_for_a_device_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    state, cuda, cpu = {"theta": torch.zeros(1000)}, torch.device("cuda:0"), torch.device("cpu")
    for free, where in ((12000, cuda), (11999, cpu)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**9))
        assert server_device((cuda, torch.device("cuda:1")), state, math.inf) == where
    assert server_device((cuda,), state, 3999) == cpu  # it is a mapped file
    assert server_device((torch.device("mps"),), state, math.inf) == cpu  # which has no double precision


def test_several_gpus_are_found_and_told(monkeypatch: pytest.MonkeyPatch, fedapa: Call) -> None:
    """A machine with two pretended GPUs: their names, `auto`, and clients that take them in turn."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    two = (torch.device("cuda:0"), torch.device("cuda:1"))
    assert devices_of("auto") == two[:1]
    assert devices_of("cuda:0,cuda:1") == two
    with pytest.raises(InputError, match="'cuda:2' is not there: this machine has cuda:0, cuda:1"):
        devices_of("cuda:2")
    case = Case(make("local"))
    placed = InProcess(
        case.method, replace(case.task, devices=(torch.device("cpu"), META)), case.data, 0, {}, 1
    )._placed
    assert [task.device.type for task in placed] == ["cpu", "meta"]
    told = fedapa("doctor").out
    assert "device cuda:0" in told
    assert "--device cuda:1" in told


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
