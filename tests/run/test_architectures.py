"""Clients with different architectures, for the methods that allow it."""

import json

import pytest
import torch

import fedapa as fa
from fedapa.core.tree import digest
from fedapa.errors import InputError
from fedapa.methods.catalogue import METHODS, make

MIXED = {"0": "mlp", "2": "cnn8", "*": "mlp"}


@pytest.fixture(scope="module")
def data():
    return fa.load("digits", "dirichlet", clients=4, seed=0, alpha=1.0)


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_send_extractors_refuse_in_one_line(name, data):
    if make(name).mixes_architectures:
        done = fa.fit(name, data, ["mlp", "cnn8"], rounds=2, features=24, lr=0.05, batch=16)
        sizes = [len(record.state["theta"]) for record in done.records]
        assert sizes[0] == sizes[2] != sizes[1] == sizes[3]
        assert done.curve()[-1].pooled > 30
        return
    with pytest.raises(InputError, match="needs one architecture for all clients"):
        fa.fit(name, data, ["mlp", "cnn8"], rounds=1)


def test_only_four_methods_mix_architectures():
    assert {name for name in METHODS if make(name).mixes_architectures} == {"local", "fedproto", "fedgh", "lg-fedavg"}


def test_every_client_trains_the_model_that_is_its_own(data):
    """Local alone with one architecture, bit for bit: nobody's model is touched by the others'."""
    mixed = fa.fit("local", data, ["mlp", "cnn8"], rounds=2, engine="torch")
    for name, clients in (("mlp", (0, 2)), ("cnn8", (1, 3))):
        alone = fa.fit("local", data, name, rounds=2, engine="torch")
        for i in clients:
            assert digest(mixed.records[i].state) == digest(alone.records[i].state)
            x = data.clients[i].test.x
            assert torch.equal(mixed.predict(i, x), alone.predict(i, x))


def test_a_table_names_clients_and_a_star_the_others(data):
    done = fa.fit("local", data, MIXED, rounds=1)
    sizes = [len(record.state["theta"]) for record in done.records]
    assert sizes[0] == sizes[1] == sizes[3] != sizes[2]
    with pytest.raises(InputError, match="has no model for client 1"):
        fa.fit("local", data, {"0": "mlp", "2": "cnn8"}, rounds=1)


def test_features_of_different_sizes_are_refused(data):
    with pytest.raises(InputError, match=r"have prototypes of shapes \[10, 64\] and \[10, 32\]") as error:
        fa.fit("fedproto", data, ["mlp", "cnn8"], rounds=1)
    assert "model.features" in error.value.hint
    with pytest.raises(InputError, match="have phi of shapes"):
        fa.fit("lg-fedavg", data, ["mlp", "cnn8"], rounds=1)
    fa.fit("local", data, ["mlp", "cnn8"], rounds=1)


def test_one_model_many_times_is_one_architecture(data):
    assert fa.fit("fedapa", data, ["mlp", "mlp"], rounds=1).task.architectures is None


def test_from_the_command_line_resumed_and_delivered(tmp_path, data):
    from fedapa.config.experiment import execute, lay_out
    from fedapa.config.load import load
    from fedapa.site.export_models import deliver
    from fedapa.site.site_model import read_model

    (tmp_path / "run.toml").write_text(
        'methods = ["fedproto"]\n[data]\nclients = 3\nalpha = 1.0\n[model]\nname = ["mlp", "cnn8"]\nfeatures = 24\n'
        "[training]\nlr = 0.05\nbatch = 16\n[run]\nrounds = 2\n"
    )
    (run,) = lay_out(load(str(tmp_path / "run.toml")), tmp_path / "out")
    done = execute(run)
    folder = deliver(run, 1, tmp_path / "site", anyway=True)
    assert json.loads((folder / "model.json").read_text())["model"]["name"] == "cnn8"
    found = read_model(folder)
    assert len(done.records[1].state["theta"]) == found.task.P
