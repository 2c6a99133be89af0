"""What one malicious site of four does to the others: without bounds on a round's updates, and with each of them.

python tests/flower/damage.py       # a table in Markdown; digits, 8 rounds, the real transport without a network
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from flwr.app import Message

sys.path.insert(0, str(Path(__file__).parent))
from fleet import Direct, config_text, grid, make_sites, over_grid, terms_of

from fedapa.core.tree import Tree
from fedapa.errors import RunError
from fedapa.rounds.upload_limits import Limits
from fedapa.transports.flower.serialization import pack, unpack

METHODS = ("fedavg", "fedper", "fedapa", "fedapa-exact")
KINDS = ("none", "sign flip", "times -20", "noise", "copy")
ROUNDS = 8
BOUNDS = (Limits(), Limits(ratio=10.0), Limits(ratio=10.0, cosine=-0.2))  # none, the default, and the strict one


class Malicious(Direct):
    """Amber's uploads are made from what it would have sent."""

    def __init__(self, sites: list[Path], kind: str) -> None:
        super().__init__(sites)
        self.kind, self.others = kind, dict[str, torch.Tensor]()

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        if reply is None or "answer" not in reply.content or not reply.content["answer"]["trained"]:
            return reply
        down, up = unpack(message.content["down"]), unpack(reply.content["up"])
        if message.metadata.dst_node_id == 101:
            self.others = up
        if message.metadata.dst_node_id == 100:
            reply.content["up"] = pack({name: self._made(name, leaf, down) for name, leaf in up.items()})
        return reply

    def _made(self, name: str, leaf: torch.Tensor, down: Tree) -> torch.Tensor:
        if name not in down or self.kind == "none":
            return leaf
        change = leaf - down[name]
        if self.kind == "copy":  # of what birch sent in the round before
            return self.others.get(name, leaf)
        if self.kind == "noise":
            drawn = torch.randn(change.shape, generator=torch.Generator().manual_seed(0))
            return down[name] + drawn * (20 * change.norm() / drawn.norm())
        return down[name] + {"sign flip": -1.0, "times -20": -20.0}[self.kind] * change


def honest_percent(method: str, kind: str, limits: Limits) -> str:
    """Test samples of the three honest sites that their own models get right in the end, and who was refused."""
    terms = terms_of(config_text(method, rounds=ROUNDS, participation=(1.0, 1.0)))
    with tempfile.TemporaryDirectory() as folder:
        session = Malicious(make_sites(Path(folder)), kind)
        try:
            result = over_grid(grid(session, terms), terms, limits=limits)
        except RunError:
            return "the run ended"
    counts = result.logs[-1].after
    assert counts is not None
    refused = {event.client for log in result.logs for event in log.events if event.kind == "refused"}
    said = f"{100 * counts[1:, 0, 0].sum() / counts[1:, 0, 1].sum():.1f}"
    return said + (f" ({len(refused - {0})} honest refused)" if refused - {0} else "")


def main() -> None:
    print(f"| attack | {' | '.join(METHODS)} |\n|---|{'---|' * len(METHODS)}")
    for kind in KINDS:
        cells = [[honest_percent(method, kind, limits) for limits in BOUNDS] for method in METHODS]
        shown = [found[0] if len(set(found)) == 1 else " → ".join(found) for found in cells]
        print(f"| {kind} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
