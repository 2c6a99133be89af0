"""FedEM: responsibilities and mixtures by hand, an M-step against autograd, and weights that find their samples."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from three_clients import SIZES, make_data, make_task, net, visit

from fedapa.core.tree import count_bytes
from fedapa.data.federated import Split
from fedapa.methods.catalogue import make
from fedapa.methods.fedavg import FedAvg
from fedapa.methods.fedem import FedEM, mixed_logits, responsibilities
from fedapa.training.local import Local
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)


def components(tree):
    return torch.cat([tree["theta"], tree["phi"]], 1)


def losses(models, split):
    """[n, K] by the network written out."""
    return torch.stack([F.cross_entropy(net(w, split.x), split.y, reduction="none") for w in models], 1)


def test_responsibilities_by_hand():
    even = torch.tensor([0.5, 0.5])
    q = responsibilities(even, torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]]))
    assert q.flatten().tolist() == pytest.approx([0.75, 0.25, 0.25, 0.75])
    assert q.mean(0).tolist() == pytest.approx([0.5, 0.5])
    same = responsibilities(torch.tensor([0.2, 0.8]), torch.full((4, 2), 1.7))  # equal components: q = pi
    assert same[3].tolist() == pytest.approx([0.2, 0.8])
    sure = responsibilities(torch.tensor([0.0, 1.0]), torch.tensor([[0.0, 9.0]]))  # who is out stays out
    assert sure.tolist() == [[0.0, 1.0]]


def test_probabilities_are_mixed_and_not_logits():
    """A component that is sure and one that knows nothing: 0.5 (1, 0) + 0.5 (1/2, 1/2)."""
    found = mixed_logits(torch.tensor([0.5, 0.5]), torch.tensor([[[60.0, 0.0], [3.0, 3.0]]])).softmax(1)
    assert found.flatten().tolist() == pytest.approx([0.75, 0.25])
    task, data, method = make_task(), make_data(), FedEM()
    client = {**method.init(task, 0)[1], "pi": torch.tensor([0.2, 0.5, 0.3])}
    expected = sum(
        float(p) * net(w, data[0].x).softmax(1) for p, w in zip(client["pi"], components(client), strict=True)
    )
    torch.testing.assert_close(method.predict(task, client, data[0].x).exp(), expected)


@pytest.mark.parametrize("shared", ["model", "extractor"])
def test_a_visit_against_plain_autograd(shared):
    """E-step with what arrived and the old pi, then three full-batch steps of every component under those q."""
    task, data, method = make_task(lr=0.05, epochs=3), make_data(), FedEM(shared=shared)
    server, client = method.init(task, 0)
    client = {**client, "pi": torch.tensor([0.5, 0.3, 0.2]), "phi": client["phi"] + 0.1}
    shown, trained, down, up = visit(method, task, client, server, 1, data)
    whole = down["omega"] if shared == "model" else torch.cat([down["omega"], client["phi"]], 1)
    assert torch.equal(components(shown), whole)
    q = (client["pi"].log() - losses(whole, data[1])).softmax(1)
    torch.testing.assert_close(shown["pi"], q.mean(0))
    assert torch.equal(trained["pi"], shown["pi"])
    for k in range(3):
        w, v = whole[k], 0.0
        for _ in range(3):
            leaf = w.clone().requires_grad_()
            loss = (q[:, k] * losses([leaf], data[1])[:, 0]).sum() / len(q)
            v = 0.9 * v + torch.autograd.grad(loss, leaf)[0]
            w = w - 0.05 * v
        torch.testing.assert_close(components(trained)[k], w, atol=1e-6, rtol=1e-5)
    size = task.P if shared == "extractor" else task.P + task.Q
    assert torch.equal(up["omega"], components(trained)[:, :size])
    assert up["n"].tolist() == [SIZES[1]]


def test_every_sample_of_a_shuffled_batch_has_its_own_weight():
    """A public code hands weights out in the order of the data set."""
    task, data, method = make_task(lr=0.05, batch=4, epochs=2), make_data(), FedEM(components=2)
    server, client = method.init(task, 0)
    _, trained, down, _ = visit(method, task, client, server, 0, data)
    q = (client["pi"].log() - losses(down["omega"], data[0])).softmax(1)
    for k in range(2):
        w, v = down["omega"][k], 0.0
        for index in Local(task, 0, 0, 0, data[0])._indices(1 + k, None, None):
            assert index.tolist() != sorted(index.tolist())
            leaf = w.clone().requires_grad_()
            found = losses([leaf], Split(data[0].x[index], data[0].y[index]))[:, 0]
            v = 0.9 * v + torch.autograd.grad((q[index, k] * found).mean(), leaf)[0]
            w = w - 0.05 * v
        torch.testing.assert_close(components(trained)[k], w, atol=1e-6, rtol=1e-5)


def test_the_e_step_never_raises_the_bound():
    task, data, method = make_task(), make_data(), FedEM(components=4)
    server, client = method.init(task, 0)
    for i in range(3):
        found = losses(server["omega"], data[i])
        pi = client["pi"]
        for _ in range(5):
            new = responsibilities(pi, found).mean(0)
            old_bound, bound = (-torch.logsumexp(p.log() - found, 1).sum() for p in (pi, new))
            assert bound <= old_bound + 1e-5
            assert float(new.sum()) == pytest.approx(1.0, abs=1e-6)
            pi = new


def test_the_server_averages_by_samples_and_not_by_pi_over_those_who_answered():
    task, data, method = make_task(), make_data(), FedEM()
    server, client = method.init(task, 0)
    visits = [visit(method, task, client, server, i, data) for i in (0, 2)]
    new = method.absorb(task, server, [0, 2], [v[2] for v in visits], [v[3] for v in visits])
    expected = (SIZES[0] * visits[0][3]["omega"] + SIZES[2] * visits[1][3]["omega"]) / (SIZES[0] + SIZES[2])
    torch.testing.assert_close(new["omega"], expected, atol=1e-6, rtol=1e-5)


def test_components_start_apart_and_the_first_is_the_start_of_all_methods():
    task = make_task()
    server, client = FedEM().init(task, 5)
    assert torch.equal(server["omega"][0], FedAvg().init(task, 5)[0]["omega"])
    assert (torch.cdist(server["omega"], server["omega"]) + 9 * torch.eye(3)).min() > 1.0
    assert client["pi"].tolist() == pytest.approx([1 / 3] * 3)


def test_equal_components_stay_equal_and_share_alike():
    task, data, method = make_task(), make_data(), FedEM(components=2)
    server, client = method.init(task, 0)
    server = {"omega": server["omega"][[0, 0]]}
    client = {**client, "pi": torch.tensor([0.25, 0.75])}
    task = make_task(batch=64)
    shown, trained, _, _ = visit(method, task, client, server, 0, data)
    assert shown["pi"].tolist() == pytest.approx([0.25, 0.75], abs=1e-6)
    way = (components(trained) - server["omega"]).norm(dim=1)
    assert way[1] > way[0] > 0  # the same direction, by its share


def test_a_newcomer_needs_no_training():
    """Its mixture leans to the component that was trained on data like its own."""
    task, data, method = make_task(lr=0.05, epochs=30), make_data(), FedEM(components=2)
    server, client = method.init(task, 0)
    expert = visit(FedAvg(), task, {}, {"omega": server["omega"][1]}, 1, data)[3]["omega"]
    server = {"omega": torch.stack([server["omega"][0], expert])}
    shown = method.receive(task, client, method.send(task, server, 1), Local(task, 1, 0, 0, data[1]))
    assert shown["pi"][1] > 0.6


def test_momentum_of_every_component_has_a_place_of_its_own():
    task, data, method = make_task(keep_momentum=True), make_data(), FedEM(components=2)
    server, client = method.init(task, 0)
    local, down = Local(task, 0, 0, 0, data[0]), method.send(task, server, 0)
    method.train(task, method.receive(task, client, down, local), down, local)
    assert set(local.memory) == {f"component {k}/{name}" for k in range(2) for name in ("theta", "phi")}
    assert torch.equal(local.data.y, data[0].y)  # labels are back where they were


@pytest.mark.parametrize(
    ("settings", "floats"), [({}, 372_037), ({"components": 5}, 620_061), ({"shared": "extractor"}, 6 * 61_156 + 1)]
)
def test_bytes_of_lenet5_on_cifar10(settings, floats):
    task, method = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50)), FedEM(**settings)
    server, client = method.init(task, 0)
    data = [Split(torch.zeros(1, 3, 32, 32), torch.tensor([3]))]
    _, _, down, up = visit(method, task, client, server, 0, data)
    assert count_bytes(down) + count_bytes(up) == 4 * floats


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("settings", [{"shared": "extractor"}, {"components": 1}])
def test_laws_of_the_variants(law, settings):
    LAWS[law](Case(make("fedem", **settings)))
