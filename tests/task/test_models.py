import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from fedapa.errors import InputError
from fedapa.training.architectures import MODELS, library_models
from fedapa.training.model import build_model
from fedapa.training.model_names import SHIPPED
from fedapa.training.split_model import SplitModel


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


SERIES, TOKENS = (2, 24), (9,)
SAMPLES = {"cnn1d": SERIES, "transformer": TOKENS}


@pytest.mark.parametrize("name", MODELS)
def test_split_model_is_the_module(name: str) -> None:
    shape, settings = SAMPLES.get(name, (1, 16, 16)), {"vocabulary": 7} if name == "transformer" else {}
    module = MODELS[name](shape, 4, **settings).eval()
    model = build_model(module, shape, 4)
    assert model.feature_size == SHIPPED[name].features
    theta, phi = model.init(0)
    x = torch.randint(7, (5, *shape)) if name == "transformer" else torch.randn(5, *shape)
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


def test_threads_that_draw_at_the_same_time_get_the_bits_of_one() -> None:
    """Clients of a round, and runs side by side, draw their starts in threads, and torch's generator is one for all."""
    model = build_model("lenet5", (3, 32, 32), 10)
    alone = [torch.cat(model.init(seed)) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            together = list(threads.map(lambda seed: torch.cat(model.init(seed)), range(8)))
            assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


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


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("resnet18", (4,), "images of at least 8x8"),
        ("mobilenet", (3, 4, 4), "images of at least 8x8"),
        ("cnn1d", (1, 8, 8), "series"),
        ("transformer", (3, 8, 8), "token ids"),
        ("transformer", (9,), "needs its number of tokens"),
    ],
)
def test_shipped_models_say_what_they_take(name: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        build_model(name, shape, 3)


def test_resnet18_has_the_size_that_is_published_for_cifar() -> None:
    model = build_model("resnet18", (3, 32, 32), 10)
    assert model.theta_trainable + model.phi_trainable == 11_173_962  # kuangliu/pytorch-cifar
    assert model.theta_size - model.theta_trainable == 2 * 4800  # running means and variances
    grouped = build_model("resnet18-gn", (3, 32, 32), 10)
    assert grouped.theta_size == model.theta_trainable
    assert not grouped.has_buffers
    large = build_model("resnet18", (3, 224, 224), 1000)
    assert large.theta_trainable + large.phi_trainable == 11_689_512  # torchvision


@pytest.mark.parametrize(("wrong", "hint"), [(9, "model.settings.vocabulary=10"), (-1, "ids count from 0")])
def test_a_transformer_names_the_id_that_it_does_not_know(wrong: int, hint: str) -> None:
    model = build_model("transformer", (9,), 3, settings={"vocabulary": 7})
    with pytest.raises(InputError, match=f"knows the token ids 0 to 6, the data have {wrong}") as caught:
        model.features(*model.init(0), torch.full((1, 9), wrong))
    assert hint in caught.value.hint


def test_padding_does_not_change_what_a_transformer_says() -> None:
    model = build_model("transformer", (9,), 3, settings={"vocabulary": 7})
    theta, phi = model.init(0)
    ids = torch.tensor([[1, 2, 3, 0, 0, 0, 0, 0, 0], [0] * 9])
    moved = theta.clone()
    first = next(slot for slot in model.theta_slots if slot.name == "extractor.tokens.weight")
    moved[first.start : first.start + 64] += 1.0  # the embedding of padding
    found = [model.logits(phi, model.features(part, phi, ids)) for part in (theta, moved)]
    assert torch.allclose(found[0], found[1])
    assert bool(found[0].isfinite().all())
    assert not torch.allclose(found[0][0], model.logits(phi, model.features(theta, phi, ids.flip(1)))[0])


def test_settings_go_to_the_function_and_unknown_ones_are_named() -> None:
    assert build_model("cnn1d", SERIES, 3, settings={"width": 16}).feature_size == 16
    with pytest.raises(InputError, match="model 'cnn1d' has no setting 'widht'") as error:
        build_model("cnn1d", SERIES, 3, settings={"widht": 16})
    assert "width" in error.value.hint
    with pytest.raises(InputError, match="model 'mlp' has no setting 'pretrained'"):
        build_model("mlp", (4,), 3, pretrained=True)


@pytest.mark.parametrize("name", ["torchvision:resnet18", "timm:resnet18", "hf:bert-base-uncased"])
def test_a_library_that_is_not_installed_comes_with_its_pip_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}[name.partition(":")[0]]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"model '{name}' needs the package {package}") as error:
        build_model(name, (3, 32, 32), 10)
    assert error.value.hint == f"pip install {package}"


class Published(nn.Module):
    """What a library gives: a backbone with the classes of ImageNet, and a name of its own for its head."""

    def __init__(self, weights: str | None = None) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1000))
        if weights is not None:
            nn.init.ones_(self.body.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.classifier(self.body(x))
        return out


def test_a_model_of_torchvision_gets_our_outputs_and_keeps_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_model(name: str, weights: str | None) -> nn.Module:
        if name != "published":
            raise ValueError(f"Unknown model {name}")
        return Published(weights)

    library = SimpleNamespace(models=SimpleNamespace(get_model=get_model))
    monkeypatch.setitem(sys.modules, "torchvision", library)
    model = build_model("torchvision:published", (4,), 3, pretrained=True)
    assert (model.theta_size, model.phi_size) == (20, 15)
    one, other = model.init(0), model.init(1)
    assert torch.equal(one[0][:16], torch.ones(16))
    assert torch.equal(other[0][:16], torch.ones(16))
    assert not torch.equal(one[1], other[1])  # the head is new, and drawn by the seed
    with pytest.raises(InputError, match="Unknown model strange"):
        build_model("torchvision:strange", (4,), 3)


def test_a_layer_before_the_head_gives_all_models_features_of_one_size() -> None:
    sizes = {name: build_model(name, (1, 16, 16), 4, features=40).feature_size for name in ("lenet5", "cnn8", "mlp")}
    assert set(sizes.values()) == {40}


def test_no_code_of_a_librarys_model_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    with pytest.raises(InputError, match="trust_remote_code is not allowed"):
        library_models.maker("hf:some/model")((6,), 3, trust_remote_code=True)
