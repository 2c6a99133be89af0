"""1,000 LeNet-5 clients, 100 a round, in a process of its own: python -m fedapa.bench.scale [--quick]"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fedapa.bench import image_data
from fedapa.bench.fixtures import MODEL, How
from fedapa.bench.side_by_side import Memory, Row, known, timed
from fedapa.data.federated import Federated
from fedapa.methods.fedapa import FedAPA
from fedapa.rounds.round_plan import Plan
from fedapa.simulation import make_task, simulate

ROUNDS = 3


def many_clients(how: How) -> list[Row]:
    """Peak memory of the whole process, libraries included, without the data."""
    words = [sys.executable, "-m", "fedapa.bench.scale", *(["--quick"] if how.quick else [])]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    if found["megabytes"] is None:
        return []
    what = f"{found['clients']:,} LeNet-5 clients, {found['a round']} a round: memory besides data"
    return [Row("clients", what, known(found["megabytes"]), "MB", 2000.0, True, found)]


def play(how: How) -> dict[str, object]:
    data = image_data.equal("cifar10", how.pick(1000, 20), 50, 10)
    image_data.dataset.cache_clear()  # only what the clients hold is left
    task, memory = make_task(data, MODEL, rounds=ROUNDS), Memory()
    with tempfile.TemporaryDirectory() as folder:
        spent = timed(lambda: simulate(FedAPA(), task, data, Plan(ROUNDS, (0.1, 0.1)), Path(folder)))
    peak, own = memory.peak(), data_megabytes(data)
    return {
        "clients": task.clients,
        "a round": task.clients // 10,
        "rounds": ROUNDS,
        "seconds": spent.wall,
        "data MB": own,
        "megabytes": None if peak is None else peak - own,
    }


def data_megabytes(data: Federated) -> float:
    return sum(leaf.nbytes for client in data.clients for leaf in (*client.train, *client.test)) / 2**20


if __name__ == "__main__":
    print(json.dumps(play(How("--quick" in sys.argv))))
