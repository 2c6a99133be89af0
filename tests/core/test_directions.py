"""Cosines to the median of the others, against the plain definition."""

import torch

from fedapa.core import directions
from fedapa.core.directions import cosines_to_others, medians_of_others


def by_definition(values: torch.Tensor) -> torch.Tensor:
    """torch.median takes the lower of two middle values; the mean of both is meant here."""
    rows = [torch.cat([values[:i], values[i + 1 :]]) for i in range(len(values))]
    return torch.stack([torch.quantile(row, 0.5, dim=0) for row in rows])


def test_medians_of_others_are_what_they_say() -> None:
    draw = torch.Generator().manual_seed(0)
    for count in range(2, 8):
        values = torch.randint(-3, 4, (count, 200), generator=draw).double()  # with many ties
        assert torch.equal(medians_of_others(values), by_definition(values))


def test_cosines_by_hand() -> None:
    rows = [[3.0, 4.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    found = cosines_to_others([{"theta": torch.tensor(row)} for row in rows])
    assert found == [0.6, 1.0, 1.0, 0.0]


def test_cosines_do_not_depend_on_how_tensors_are_cut(monkeypatch) -> None:
    draw = torch.Generator().manual_seed(0)
    trees = [{"a": torch.randn(3, 5, generator=draw), "b": torch.randn(7, generator=draw)} for _ in range(4)]
    whole = cosines_to_others([{"all": torch.cat([tree["a"].reshape(-1), tree["b"]])} for tree in trees])
    monkeypatch.setattr(directions, "CHUNK", 4)
    assert torch.allclose(torch.tensor(cosines_to_others(trees)), torch.tensor(whole))
