"""Many rounds of a real federation with a random kill every few of them; at the end, the bits of one process.

python tests/flower/soak.py --rounds 200 --minutes 60
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from federation import Federation, kill, wait
from fleet import NAMES, client_digests, in_process, server_digest

from fedapa.core.tree import digest
from fedapa.flower.coordinate import read_agreement
from fedapa.flower.transport import _from_record
from fedapa.run import checkpoint
from fedapa.run.folder import rounds_done, status


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--rounds", type=int, default=200)
    asked.add_argument("--every", type=int, default=7, help="rounds between two kills, on average")
    asked.add_argument("--minutes", type=float, default=60.0, help="no kills after that")
    asked.add_argument("--seed", type=int, default=0)
    wanted = asked.parse_args()
    chance, begin = random.Random(wanted.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(Path(folder))
        try:
            federation.start()
            end = time.monotonic() + 60 * wanted.minutes
            kills = storm(federation, wanted.rounds, wanted.every, end, chance)
            report(federation, kills, time.monotonic() - begin)
        finally:
            federation.close()


def storm(federation: Federation, rounds: int, every: int, end: float, chance: random.Random) -> list[str]:
    run, kills = federation.folder / "soak" / "fedapa-seed0", list[str]()
    process = federation.run("soak", "--set", f"run.rounds={rounds}")
    wait(lambda: (run / "run.db").is_file() and rounds_done(run) >= 1, 600, 1.0)
    seen = rounds_done(run)
    while True:
        time.sleep(0.5)
        if process.poll() is not None:
            if status(run) == "finished":
                return kills
            process = federation.spawn("coordinator", "resume", "soak")
            time.sleep(5)
        done = rounds_done(run)
        if done > seen and time.monotonic() < end and chance.random() < (done - seen) / every:
            time.sleep(3 * chance.random())
            victim = chance.choice(
                ["superlink", "coordinator", *(f"{k} {name}" for k in ("node", "worker") for name in NAMES)]
            )
            try:
                kind, _, name = victim.partition(" ")
                pid = process.pid if kind == "coordinator" else getattr(federation, kind)(*([name] if name else []))
            except (AssertionError, ValueError):
                continue  # it is down already
            kill(pid)
            kills.append(f"round {done + 1}: {victim}")
            print(kills[-1], flush=True)
        seen = max(seen, done)


def report(federation: Federation, kills: list[str], seconds: float) -> None:
    run = federation.folder / "soak" / "fedapa-seed0"
    found, agreement = checkpoint.newest(run / "checkpoints"), read_agreement(run)
    assert found is not None
    assert agreement is not None
    from test_federation import events, trained

    absent = frozenset((t, i) for t, i, kind, _ in events(run) if kind == "absent" and i is not None)
    here = in_process(agreement.terms, absent)
    same = digest(found.state.server) == server_digest(here)
    same &= [_from_record(record).digest for record in found.records] == client_digests(here)
    print(
        f"{found.state.round} rounds, {len(kills)} kills, {len(absent)} absences, {sum(trained(run))} uploads,"
        f" {seconds:.0f} s: {'the same bits as in one process' if same else 'DIFFERENT'}"
    )
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
