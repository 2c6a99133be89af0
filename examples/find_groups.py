"""Find out who belongs together without seeing anybody's data: python examples/find_groups.py

Twelve clients in three hidden groups: the same questions, three different answer keys. Nobody tells the server. The
weights that FedAPA-exact learns from uploads alone show the groups, and clients gain by mixing within them.
"""

from __future__ import annotations

import numpy as np

import fedapa as fa
from fedapa.analysis.client_similarity import groups

GROUPS, FEATURES = 3, 10


def make_data(clients: int = 12, samples: int = 60, seed: int = 0) -> fa.Federated:
    """Client i belongs to group i mod 3; each group has a rule of its own."""
    random = np.random.default_rng(seed)
    rules = random.normal(size=(GROUPS, FEATURES, 3))
    return fa.from_arrays([one_client(random, rules[i % GROUPS], samples) for i in range(clients)])


def one_client(random: np.random.Generator, rule: np.ndarray, samples: int) -> tuple[np.ndarray, ...]:
    x = random.normal(size=(2 * samples, FEATURES)).astype(np.float32)
    y = (x @ rule).argmax(1)
    return x[:samples], y[:samples], x[samples:], y[samples:]


def main(rounds: int = 30) -> list[str]:
    data = make_data()
    settings = {"model": "mlp", "rounds": rounds, "lr": 0.05, "batch": 10, "participation": 1.0}
    results = {name: fa.fit(name, data, **settings) for name in ("local", "fedavg", "fedapa-exact")}
    lines = []
    for name, result in results.items():
        before, after = (result.curve(phase)[-1].pooled for phase in ("before", "after"))
        lines.append(f"{name:13} {before:.1f} % as received, {after:.1f} % after local training")
    late = [log.watched["A"].numpy().astype(float) for log in results["fedapa-exact"].logs[-10:]]
    A = np.mean(late, axis=0)  # who helps whom changes from round to round; who belongs together does not
    return [*lines, *(f"group: clients {', '.join(map(str, members))}" for members in groups(A))]


if __name__ == "__main__":
    print("\n".join(main()))
