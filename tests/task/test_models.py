import pytest
import torch
from torch import nn

from fedapa.errors import InputError
from fedapa.training.model import MODELS, SplitModel, build_model


@pytest.mark.parametrize(
    ("shape", "classes", "theta", "phi", "flat"),
    [
        ((3, 32, 32), 10, 61_156, 850, 400),
        ((1, 28, 28), 10, 43_580 + 106, 850, 256),
        ((3, 32, 32), 100, 61_156, 8_500, 400),
    ],
)
def test_lenet_has_the_papers_sizes(shape: tuple[int, ...], classes: int, theta: int, phi: int, flat: int) -> None:
    model = build_model("lenet5", shape, classes)
    convolutions = 6 * 25 * shape[0] + 6 + 16 * 150 + 16
    assert model.theta_size == convolutions + flat * 120 + 120 + 120 * 84 + 84
    assert model.phi_size == phi == 84 * classes + classes
    assert model.feature_size == 84
    if shape[0] == 3:
        assert model.theta_size == theta


@pytest.mark.parametrize("name", MODELS)
def test_split_model_is_the_module(name: str) -> None:
    shape = (1, 16, 16)
    module = MODELS[name](shape, 4)
    model = build_model(module, shape, 4)
    theta, phi = model.init(0)
    x = torch.randn(5, *shape)
    with torch.no_grad():
        assert torch.allclose(model.logits(phi, model.features(theta, phi, x)), module(x), atol=1e-5)


def test_same_seed_same_start_and_torchs_generator_untouched() -> None:
    model = build_model("mlp", (4,), 2)
    before = torch.random.get_rng_state()
    one, other, third = model.init(3), model.init(3), model.init(4)
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[0], third[0])
    assert torch.equal(before, torch.random.get_rng_state())


class Residual(nn.Module):
    """A net that is no Sequential: the split point is a named submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.top = nn.ModuleDict({"out": nn.Linear(4, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.top["out"](x + self.body(x).relu())
        return out


def test_any_module_with_a_named_split_point() -> None:
    module = Residual()
    model = build_model(module, (4,), 3, head="top.out")
    theta, phi = model.init(0)
    assert (model.theta_size, model.phi_size) == (20, 15)
    x = torch.randn(6, 4)
    with torch.no_grad():
        assert torch.allclose(model.logits(phi, model.features(theta, phi, x)), module(x), atol=1e-6)


class HeadInTheMiddle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.head(x))
        return out


def test_a_split_that_would_change_the_model_is_refused() -> None:
    with pytest.raises(InputError, match="does not end with its submodule 'head'"):
        build_model(HeadInTheMiddle(), (4,), 3)
    with pytest.raises(InputError, match="no submodule named 'tail'") as error:
        build_model(HeadInTheMiddle(), (4,), 3, head="tail")
    assert "head, last" in error.value.hint


def test_wrong_input_shapes_are_explained() -> None:
    with pytest.raises(InputError, match="at least 16x16"):
        build_model("lenet5", (1, 8, 8), 10)
    with pytest.raises(InputError, match="unknown model 'lenet'"):
        build_model("lenet", (1, 8, 8), 10)
    with pytest.raises(InputError, match="cannot be imported"):
        build_model("no.such:model", (1, 8, 8), 10)
    with pytest.raises(InputError, match="model 'math:sqrt' cannot be made"):
        build_model("math:sqrt", (1, 8, 8), 10)
    with pytest.raises(InputError, match=r"cannot be made|made float"):
        build_model("math:hypot", (1,), 10)


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize(("where", "theta", "phi"), [("shared", 16 + 8 + 8, 10), ("private", 16 + 8, 10 + 8)])
def test_buffers_ride_with_one_of_the_two_vectors(where: str, theta: int, phi: int) -> None:
    """BatchNorm: 8 weights that are trained, 8 running statistics that are not; the counter is dropped."""
    model = SplitModel(batchnorm, torch.zeros(2, 3), "3", where)  # type: ignore[arg-type]
    assert (model.theta_size, model.phi_size) == (theta, phi)
    assert (model.theta_trainable, model.phi_trainable) == (24, 10)
