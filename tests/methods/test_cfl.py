"""CFL: halves against all bipartitions, splits by hand, the index that public codes get wrong, and newcomers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from three_clients import SIZES, make_data, make_task, omega, visit

from fedapa.core.tree import clone, count_bytes
from fedapa.methods.catalogue import make
from fedapa.methods.cfl import CFL, clusters, parted
from fedapa.training.model import build_model
from fedapa.training.task import Task
from fedapa.verify import LAWS
from fedapa.verify.case import Case

torch.set_num_threads(1)
NOW = CFL(warmup=0, rule="absolute", eps1=0.4, eps2=0.9)


def play(method, updates, rounds=1, ids=None, server=None):
    """The server after clients that always send the same updates, padded with zeros to a model."""
    task = Task(build_model("mlp", (4,), 3), 3, torch.full((len(updates),), 10))
    server, ids = server or method.init(task, 0)[0], range(len(updates)) if ids is None else ids
    moves = torch.zeros(len(updates), task.P + task.Q)
    moves[:, : len(updates[0])] = torch.tensor(updates)
    for _ in range(rounds):
        downs = [method.send(task, server, i) for i in ids]
        ups = [{"omega": down["omega"] + moves[i]} for i, down in zip(ids, downs, strict=True)]
        server = method.absorb(task, server, ids, downs, ups)
    return server


def groups(method, server):
    return [int(name) for name in method.watch(server)["groups"]]


FOUR = [(1.0, 0.0), (1.0, 0.1), (-1.0, 0.0), (-1.0, 0.1)]


def test_a_split_by_hand():
    """The mean update is (0, 0.05), the largest 1.005 long: still for the mean, not for its members."""
    server = play(NOW, FOUR)
    assert groups(NOW, server) == [0, 0, 2, 2]
    moved = server["omega"][:, :2] - NOW.init(make_task(), 0)[0]["omega"][0, :2]
    assert moved.flatten().tolist() == pytest.approx([1.0, 0.05, 1.0, 0.05, -1.0, 0.05, -1.0, 0.05], abs=1e-5)
    assert groups(NOW, play(NOW, [(1.0, 0.0), (-1.0, 0.0)])) == [0, 0]  # two members are never parted
    found = NOW.watch(play(replace(NOW, eps1=0.0), FOUR))
    assert found["mean_update"].tolist() == pytest.approx([0.05] * 4, abs=1e-6)
    assert found["largest_update"].tolist() == pytest.approx([1.004988] * 4, abs=1e-5)


@pytest.mark.parametrize(
    "settings", [{"eps1": 0.049}, {"eps2": 1.006}, {"warmup": 1}, {"rule": "relative", "ratio": 0.049}]
)
def test_no_split_at_the_other_side_of_every_threshold(settings):
    assert groups(NOW, play(replace(NOW, **settings), FOUR)) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "settings", [{"eps1": 0.051}, {"eps2": 1.004}, {"warmup": 0}, {"rule": "relative", "ratio": 0.051}]
)
def test_a_split_at_this_side(settings):
    assert groups(NOW, play(replace(NOW, **settings), FOUR)) == [0, 0, 2, 2]


def test_a_second_split_parts_the_right_clients():
    """Three pairs. The second split is of a cluster whose members are not 0, 1, 2...: public codes lose them there."""
    six = [(3.0, 0.0), (-1.5, 1.0), (3.0, 0.1), (-1.5, -1.0), (-1.5, 1.1), (-1.5, -1.1)]
    method = CFL(warmup=0, ratio=0.85)
    assert groups(method, play(method, six)) == [0, 1, 0, 1, 1, 1]
    server = play(method, six, rounds=3)
    assert groups(method, server) == [0, 1, 0, 3, 1, 3]
    for members in clusters(server["cluster"]):
        assert len(set(map(tuple, server["omega"][members].tolist()))) == 1


def brute_force(cosines):
    """The bipartition whose largest similarity across is least, over all of them."""
    M = len(cosines)
    ways = [set(half) for size in range(1, M) for half in combinations(range(M), size) if 0 in half]
    across = [max(cosines[i, j] for i in half for j in set(range(M)) - half) for half in ways]
    return sorted(set(range(M)) - ways[int(np.argmin(across))]), min(across)


@pytest.mark.parametrize("seed", range(8))
def test_halves_against_all_bipartitions(seed):
    random = np.random.default_rng(seed)
    M = 4 + seed
    delta = torch.from_numpy(random.normal(size=(M, 4)))
    gram = delta @ delta.T
    length = gram.diagonal().sqrt()
    cosines = (gram / length / length[:, None]).numpy()
    expected, least = brute_force(cosines)
    found = parted(gram, torch.arange(M), "single").tolist()
    assert found == expected
    other = parted(gram, torch.arange(M), "complete").tolist()
    assert max(cosines[i, j] for i in other for j in set(range(M)) - set(other)) >= least


def test_the_released_linkage_finds_other_halves():
    """A chain of directions: single linkage cuts its widest gap, complete linkage its middle."""
    angles = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.2, 1.55], dtype=torch.float64)
    delta = torch.stack([angles.cos(), angles.sin()], 1)
    gram, all_ = delta @ delta.T, torch.arange(6)
    assert parted(gram, all_, "single").tolist() == [5]
    assert len(parted(gram, all_, "complete")) > 1


@pytest.mark.parametrize("seed", range(5))
def test_clusters_part_the_clients_and_never_meet_again(seed):
    random = np.random.default_rng(seed)
    method, server, apart = CFL(warmup=1, ratio=0.9), None, np.zeros((9, 9), dtype=bool)
    for _ in range(12):
        updates = (random.normal(size=(9, 3)) + np.repeat(random.normal(size=(3, 3)), 3, 0)).tolist()
        ids = sorted(random.choice(9, 6, replace=False).tolist())
        server = play(method, updates, ids=ids, server=server)
        members = clusters(server["cluster"])
        assert sorted(torch.cat(members).tolist()) == list(range(9))
        labels = np.array(groups(method, server))
        assert all(labels[i] == i for i in set(labels.tolist()))  # named by the first member
        now = labels[:, None] != labels
        assert not (apart & ~now).any()
        apart = now


def test_a_cluster_waits_until_all_its_members_were_heard_from():
    server = play(NOW, FOUR, ids=[0, 1, 2])
    assert groups(NOW, server) == [0, 0, 0, 0]
    server = play(NOW, FOUR, ids=[3], server=server)
    assert groups(NOW, server) == [0, 0, 2, 2]
    assert server["heard"].tolist() == [0.0] * 4


def test_only_fresh_updates_move_the_model():
    """A public code adds the last update of every member again in every round."""
    method = CFL(warmup=99)
    server = play(method, FOUR, ids=[0, 1, 2, 3])
    before = server["omega"][0, :2].clone()
    server = play(method, FOUR, ids=[0], server=server)
    assert (server["omega"][0, :2] - before).tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert torch.equal(server["omega"][0], server["omega"][3])


def test_members_count_alike_or_by_samples():
    task, data = make_task(), make_data()
    for method, share in ((CFL(), (1, 1, 1)), (CFL(average="samples"), SIZES)):
        server, client = method.init(task, 0)
        visits = [visit(method, task, client, server, i, data) for i in range(3)]
        new = method.absorb(task, server, range(3), [v[2] for v in visits], [v[3] for v in visits])
        expected = sum(n * omega(v[1]) for n, v in zip(share, visits, strict=True)) / sum(share)
        torch.testing.assert_close(new["omega"][1], expected, atol=1e-6, rtol=1e-5)


def test_a_newcomer_joins_the_cluster_that_its_first_update_resembles():
    server = play(NOW, FOUR, rounds=2)
    task = Task(build_model("mlp", (4,), 3), 3, torch.full((5,), 10))
    larger = NOW.admit(task, server)
    assert groups(NOW, larger) == [0, 0, 2, 2, -1]
    torch.testing.assert_close(larger["omega"][4], server["omega"].mean(0))
    idle = play(NOW, [*FOUR, (-0.5, 0.2)], ids=[0], server=clone(larger))
    assert groups(NOW, idle) == [0, 0, 2, 2, -1]  # nobody's business before it was heard from
    torch.testing.assert_close(idle["omega"][4], larger["omega"][4])
    after = play(replace(NOW, warmup=99), [*FOUR, (-0.5, 0.2)], ids=[4], server=larger)
    assert groups(NOW, after) == [0, 0, 2, 2, 2]
    moved = after["omega"][2, :2] - server["omega"][2, :2]
    assert moved.tolist() == pytest.approx([-0.5, 0.2], abs=1e-6)  # its update, not its model, moves the cluster
    assert torch.equal(after["omega"][4], after["omega"][2])


def test_the_server_state_is_given_away_or_left_alone():
    task, method = Task(build_model("mlp", (4,), 3), 3, torch.full((4,), 10)), NOW
    server = clone(play(method, FOUR))
    downs = [method.send(task, server, i) for i in range(4)]
    ups = [{"omega": down["omega"] + 0.1 * i} for i, down in enumerate(downs)]
    new, old = method.absorb(task, server, range(4), downs, ups), server["omega"].clone()
    assert torch.equal(server["omega"], old)
    given = method.absorb(replace(task, donate=True), server, range(4), downs, ups)
    assert given["omega"].data_ptr() == server["omega"].data_ptr()
    assert torch.equal(given["omega"], new["omega"])


def test_bytes_of_both_variants():
    task = Task(build_model("lenet5", (3, 32, 32), 10), 10, torch.full((20,), 50))
    sizes = [count_bytes(m.send(task, m.init(task, 0)[0], 0)) for m in (CFL(), CFL(shared="extractor"))]
    assert sizes == [4 * 62_006, 4 * 61_156]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("settings", [{"shared": "extractor"}, {"warmup": 1, "ratio": 1.0}])
def test_laws_of_the_variants(law, settings):
    LAWS[law](Case(make("cfl", **settings)))


def test_the_small_federation_of_the_laws_splits():
    case = Case(make("cfl", warmup=1, ratio=1.0))
    assert len(clusters(case.run().server["cluster"])) > 1
