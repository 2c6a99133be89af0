"""IFCA: choices and averages by hand, clusters that nobody chose, and what equal starts would do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from three_clients import SIZES, make_data, make_task, net, omega, visit

from fedapa.core.tree import count_bytes
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.ifca import IFCA
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def losses(models, split):
    return [float(F.cross_entropy(net(model, split.x), split.y)) for model in models]


def play(method, task, server, client, data, ids, t=0):
    visits = [visit(method, task, client, server, i, data, t) for i in ids]
    return method.absorb(task, server, ids, [v[2] for v in visits], [v[3] for v in visits]), visits


def test_every_client_chooses_the_model_of_least_loss_on_its_train_data():
    task, data, method = make_task(lr=0.05, epochs=3), make_data(), IFCA(clusters=4)
    server, client = method.init(task, 0)
    for i in range(3):
        expected = losses(server["omega"], data[i])
        shown, trained, down, up = visit(method, task, client, server, i, data)
        best = expected.index(min(expected))
        assert torch.equal(omega(shown), down["omega"][best])
        assert up["choice"].tolist() == [float(c == best) for c in range(4)]
        assert int(trained["choice"]) == best
        assert torch.equal(up["omega"], omega(trained))
        alone = visit(FedAvg(), task, client, {"omega": down["omega"][best]}, i, data)[1]
        assert torch.equal(omega(trained), omega(alone))  # the same training from there


def test_a_round_by_hand():
    """Uploads 1 and 2 of those who chose the first model, 9 of the one who chose the second: (5/4, 9)."""
    task, method = make_task(), IFCA(clusters=3)
    server, _ = method.init(task, 0)
    chosen, n = torch.eye(3)[[0, 0, 1]], (6.0, 2.0, 5.0)
    ups = [
        {"omega": torch.full_like(server["omega"][0], value), "choice": one, "n": torch.tensor([size])}
        for value, one, size in zip((1.0, 2.0, 9.0), chosen, n, strict=True)
    ]
    new = method.absorb(task, server, [2, 0, 1], [], ups)
    assert new["omega"][:2, 0].tolist() == [1.25, 9.0]
    assert torch.equal(new["omega"][2], server["omega"][2])  # nobody chose it
    found = method.watch(new)
    assert found["groups"].tolist() == [0, 1, 0]
    assert found["members"].tolist() == [2, 1, 0]
    alike = IFCA(clusters=3, average="clients").absorb(task, server, [2, 0, 1], [], ups)
    assert alike["omega"][:2, 0].tolist() == [1.5, 9.0]


def test_a_cluster_that_nobody_chose_keeps_its_model():
    task, data, method = make_task(), make_data(), IFCA(clusters=6)
    server, client = method.init(task, 0)
    new, visits = play(method, task, server, client, data, [0, 1, 2])
    chosen = {int(v[1]["choice"]) for v in visits}
    for c in range(6):
        assert torch.equal(new["omega"][c], server["omega"][c]) == (c not in chosen)


def test_models_start_apart_and_the_first_is_the_start_of_all_methods():
    task = make_task()
    server, client = IFCA(clusters=3).init(task, 5)
    assert torch.equal(server["omega"][0], FedAvg().init(task, 5)[0]["omega"])
    assert torch.equal(omega(client), server["omega"][0])
    gaps = torch.cdist(server["omega"], server["omega"])
    assert (gaps + 9 * torch.eye(3)).min() > 1.0
    assert torch.equal(IFCA(clusters=5).init(task, 5)[0]["omega"][:3], server["omega"])


def test_equal_models_are_fedavg_in_the_first_cluster_for_ever():
    """The trap of a library where everybody starts from one point."""
    task, data, method = make_task(), make_data(), IFCA(clusters=2)
    server, client = method.init(task, 0)
    server = {**server, "omega": server["omega"][[0, 0]]}
    start, whole = server["omega"][1].clone(), FedAvg().init(task, 0)[0]
    server, _ = play(method, task, server, client, data, [0, 1, 2])
    whole, _ = play(FedAvg(), task, whole, client, data, [0, 1, 2])
    assert torch.equal(server["omega"][0], whole["omega"])
    assert torch.equal(server["omega"][1], start)


def test_renaming_the_clusters_renames_everything():
    task, data, method = make_task(), make_data(), IFCA(clusters=3)
    server, client = method.init(task, 0)
    order = torch.tensor([2, 0, 1])
    plain, _ = play(method, task, server, client, data, [0, 1, 2])
    turned, _ = play(method, task, {**server, "omega": server["omega"][order]}, client, data, [0, 1, 2])
    torch.testing.assert_close(turned["omega"], plain["omega"][order], atol=1e-6, rtol=1e-5)


def test_private_heads_are_tried_under_every_extractor():
    task, data, method = make_task(), make_data(), IFCA(clusters=3, shared="extractor")
    server, client = method.init(task, 0)
    client = {**client, "phi": client["phi"] + 0.3}
    assert server["omega"].shape == (3, task.P)
    for i in range(3):
        expected = losses([torch.cat([theta, client["phi"]]) for theta in server["omega"]], data[i])
        shown, _, _, up = visit(method, task, client, server, i, data)
        assert torch.equal(shown["theta"], server["omega"][expected.index(min(expected))])
        assert torch.equal(shown["phi"], client["phi"])
        assert up["omega"].shape == (task.P,)


def test_an_upload_cannot_name_a_cluster_that_is_not_there():
    """Whatever numbers stand where the choice should be, the largest decides."""
    task, method = make_task(), IFCA(clusters=2)
    server, _ = method.init(task, 0)
    up = {"omega": server["omega"][0] + 1, "choice": torch.tensor([-7.5, 1e9]), "n": torch.tensor([3.0])}
    new = method.absorb(task, server, [0], [], [up])
    assert torch.equal(new["omega"][0], server["omega"][0])
    assert torch.equal(new["omega"][1], up["omega"])


def test_a_newcomer_has_chosen_nothing_yet():
    task, data, method = make_task(), make_data(), IFCA()
    server, client = method.init(task, 0)
    server, _ = play(method, task, server, client, data, [0, 1, 2])
    larger = method.admit(task.with_client("", 4), server)
    assert method.watch(larger)["groups"][3] == -1
    assert torch.equal(larger["omega"], server["omega"])
    assert sum(method.watch(larger)["members"].tolist()) == len(SIZES)


@pytest.mark.parametrize(
    ("settings", "floats"),
    [({}, 3 * 62_006 + 3), ({"clusters": 5}, 6 * 62_006 + 6), ({"shared": "extractor"}, 3 * 61_156 + 3)],
)
def test_bytes_of_lenet5_on_cifar10(settings, floats):
    task, method = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50)), IFCA(**settings)
    data = [make_data()[0]._replace(x=torch.zeros(1, 3, 32, 32), y=torch.tensor([3]))]
    server, client = method.init(task, 0)
    _, _, down, up = visit(method, task, client, server, 0, data)
    assert count_bytes(down) + count_bytes(up) == 4 * floats


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("settings", [{"shared": "extractor", "clusters": 3}, {"clusters": 5, "average": "clients"}])
def test_laws_of_the_variants(law, settings):
    LAWS[law](Case(make("ifca", **settings)))
