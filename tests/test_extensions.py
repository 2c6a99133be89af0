"""What CONTRIBUTING.md says an extension takes, tried: a method, a model and a transport of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from safetensors.torch import load, save

import fedapa as fa
from command import Call
from fedapa.core.tree import Tree, digest
from fedapa.data.federated import Federated
from fedapa.methods.method import Method
from fedapa.rounds import loop
from fedapa.rounds.expected_uploads import Expected
from fedapa.rounds.membership import Newcomer
from fedapa.rounds.round_plan import Plan
from fedapa.rounds.transport import Record, Reply, Request, visit
from fedapa.simulation import make_task, play, simulate
from fedapa.store.run_folder import client_rows
from fedapa.training.task import Task

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_method_is_one_file(fedapa: Call) -> None:
    answer = fedapa("verify", EXAMPLES / "my_method.py")
    assert answer.code == 0, answer.err


def test_a_model_is_one_file(tmp_path: Path, fedapa: Call, small: Path) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\n\n"
        "def net(shape, classes):\n"
        "    head = nn.Linear(8, classes)\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())\n"
        "    net.add_module('head', head)\n"
        "    return net\n"
    )
    answer = fedapa("run", small, "--set", "model.name=net.py:net", "--method", "local,fedapa", "--out", "out")
    assert answer.code == 0, answer.err
    assert (tmp_path / "net.py").as_posix() in Path("out/fedapa-seed0/config.toml").read_text()
    assert fedapa("resume", "out").code == 0


class AsBytes:
    """A transport: every message goes through bytes, as over a network, and clients answer one by one."""

    def __init__(self, method: Method, task: Task, data: Federated, seed: int, client: Tree) -> None:
        self.method, self.task, self.data, self.seed = method, task, data, seed
        self.kept, self.new = [Record(client, {}) for _ in data.clients], dict[int, Record]()

    def exchange(self, requests: Sequence[Request]) -> Iterator[Reply]:
        for request in requests:
            letter, i = save(request.down()), request.client
            asked = request._replace(down=lambda letter=letter: load(letter))  # type: ignore[misc]
            record, reply = visit(self.method, self.task, self.data.clients[i], self.kept[i], asked, self.seed)
            self.new[i] = record
            yield reply._replace(up=None if reply.up is None else load(save(reply.up)))

    def commit(self, clients: Sequence[int]) -> None:
        for i in clients:
            self.kept[i] = self.new[i]

    def admit(self, task: Task, newcomer: Newcomer, client: Tree) -> None:
        self.task, self.kept = task, [*self.kept, Record(client, {})]

    def records(self) -> list[Record]:
        return self.kept

    def restore(self, records: Sequence[Record]) -> None:
        self.kept = list(records)


def test_a_transport_is_five_functions() -> None:
    data, method, plan = fa.load("digits", "iid", clients=3), fa.FedAPA(), Plan(3, (0.6, 1.0))
    task = make_task(data, "mlp", rounds=3)
    begin = loop.start(method, task, plan.seed)
    transport = AsBytes(method, task, data, plan.seed, begin[1])
    expected = Expected(method, task, data.clients[0].train.x[0])
    found = play(loop.Context(method, task, transport, plan, expected), begin, client_rows(data))
    usual = simulate(method, task, data, plan)
    assert digest(found.state.server) == digest(usual.state.server)
