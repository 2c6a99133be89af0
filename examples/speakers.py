"""Text by speaker: every client is one speaker, and guesses whether the next character is a letter, a space or a mark.

    python examples/speakers.py
    fedapa run demo --set data.source=examples/speakers.py:load --set model.name=examples/speakers.py:net

Samples are token ids (whole numbers), which go to the model as they are. Another corpus needs another ``load`` alone.
"""

import numpy as np
from torch import Tensor, nn

import fedapa as fa

WINDOW = 12
LETTERS = " abcdefghijklmnopqrstuvwxyz'.,;:!?-"
CORPUS = {  # from the plays of William Shakespeare
    "hamlet": "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer the slings and "
    "arrows of outrageous fortune, or to take arms against a sea of troubles and by opposing end them. To die, to "
    "sleep, no more; and by a sleep to say we end the heart-ache and the thousand natural shocks.",
    "macbeth": "To-morrow, and to-morrow, and to-morrow, creeps in this petty pace from day to day, to the last "
    "syllable of recorded time; and all our yesterdays have lighted fools the way to dusty death. Out, out, brief "
    "candle! Life's but a walking shadow, a poor player, that struts and frets his hour upon the stage.",
    "juliet": "O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name; or, if thou wilt not, be "
    "but sworn my love, and I'll no longer be a Capulet. What's in a name? That which we call a rose by any other name "
    "would smell as sweet; so Romeo would, were he not Romeo call'd, retain that dear perfection which he owes.",
}


def load() -> dict[str, tuple[np.ndarray, ...]]:
    """The four arrays of every speaker; the last fifth of what each says is for testing."""
    return {who: _split(*_windows(text.lower())) for who, text in CORPUS.items()}


def _windows(text: str) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([LETTERS.index(character) for character in text if character in LETTERS])
    x = np.lib.stride_tricks.sliding_window_view(ids, WINDOW)[:-1]
    after = ids[WINDOW:]
    return x.astype(np.int64), np.where(after == 0, 1, np.where(after <= 26, 0, 2)).astype(np.int64)


def _split(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    cut = len(y) * 4 // 5
    return x[: cut - WINDOW], y[: cut - WINDOW], x[cut:], y[cut:]  # no character of a test window was trained on


class Reader(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 8)
        self.body = nn.GRU(8, 24, batch_first=True)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.body(self.embed(x))[0][:, -1])
        return answer


def net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Reader(classes)


def main(rounds: int = 10) -> float:
    arrays = load()
    data = fa.from_arrays(list(arrays.values()), names=list(arrays), name="speakers")
    result = fa.fit("fedapa", data, net, rounds, batch=16, lr=0.005, optimizer="adamw", clip_norm=1.0)
    return result.curve("after")[-1].pooled


if __name__ == "__main__":
    print(f"accuracy {main():.1f} %")
