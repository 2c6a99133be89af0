"""How long a round takes, against the floor: Flower's own way with a client that does nothing and imports nothing.

python tests/flower/speed.py --rounds 12
"""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from federation import Federation, wait
from fleet import NAMES
from flwr.app import Message, MessageType, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab

from fedapa.federation import processes
from fedapa.store import run_db
from fedapa.transports.flower.session import APP, FlowerSession

MOST = 1.5  # times the floor that a round of ours may take
IDLE = """from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    return Message(message.content, reply_to=message)
"""


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=12)
    rounds = asked.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder))
        try:
            federation.spawn("coordinator", "start")
            wait(lambda: all(site.node for site in federation.coordinator.members()))
            floor = measure_floor(federation, rounds)
            federation.join(NAMES)
            federation.wait_online(4)
            ours = measure_ours(federation, rounds)
        finally:
            federation.close()
    for name, times in (("floor", floor), ("ours", ours)):
        low, middle, high = statistics.quantiles(times, n=4)
        spread = f"quartiles {low:.2f} and {high:.2f}, from {min(times):.2f} to {max(times):.2f}"
        print(f"{name}: {middle:.2f} s a round, median of {len(times)}; {spread}")
    ratio = statistics.median(ours) / statistics.median(floor)
    print(f"{ratio:.2f} times the floor; at most {MOST} is wanted")
    sys.exit(ratio > MOST)


def measure_floor(federation: Federation, rounds: int) -> list[float]:
    nodes = [start_node(federation, name) for name in NAMES]
    try:
        federation.wait_online(4)
        text = APP.replace("fedapa.transports.flower.server_app:app", "idle:app").replace(
            "fedapa.transports.flower.client_app:app", "idle:app"
        )
        content, _ = build_fab_from_files(
            {"pyproject.toml": text.encode(), "LICENSE": b"-\n", "idle.py": IDLE.encode()}
        )
        session = FlowerSession(federation.coordinator, app=Fab(hashlib.sha256(content).hexdigest(), content, {}))
        times = [one_round(session) for _ in range(rounds + 1)][1:]  # the first installs the app
        session.close(True)
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
    return times


def start_node(federation: Federation, name: str) -> subprocess.Popen[bytes]:
    kit = federation.folder / "kits" / name
    command = processes.flower(
        "flwr.supernode.cli:flower_supernode", "--superlink", federation.coordinator.fleet_address,
        "--root-certificates", str(kit / "ca.crt"), "--auth-supernode-private-key", str(kit / "site.key"),
        "--host", "127.0.0.1", "--port", str(processes.free_port()),
    )  # fmt: skip
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {**os.environ, **processes.QUIET, "PATH": path, "FLWR_HOME": str(kit / "flwr")}
    with open(federation.folder / "floor.log", "ab") as log:
        return subprocess.Popen(command, env=own, stdout=log, stderr=log)


def one_round(session: FlowerSession) -> float:
    begin, open_ = time.monotonic(), set[str]()
    for node in session.nodes():
        open_.add(session.push(Message(RecordDict(), node, MessageType.TRAIN, ttl=600)))
    while open_:
        for message in session.pull(open_):
            assert message.has_content(), message.error
            open_.discard(message.metadata.reply_to_message_id)
        time.sleep(0.2)
    return time.monotonic() - begin


def measure_ours(federation: Federation, rounds: int) -> list[float]:
    assert federation.run("speed", "--set", f"run.rounds={rounds + 1}").wait() == 0
    with run_db.reading(federation.folder / "speed" / "fedapa-seed0" / "run.db") as db:
        return [row[0] for row in db.execute("SELECT seconds FROM round WHERE round > 0")]


if __name__ == "__main__":
    main()
