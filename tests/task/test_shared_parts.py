"""Any part of a model may federate; what is frozen is in neither vector."""

import pytest
import torch
from torch import nn

import fedapa as fa
from fedapa.errors import InputError
from fedapa.training.model import build_model
from fedapa.training.selection import is_chosen


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.block2 = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.block2(self.block1(x).relu()).relu())
        return out


class Adapted(nn.Module):
    """A frozen layer beside a trainable one of low rank."""

    def __init__(self, inner: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.lora_A = nn.Linear(inner.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + self.lora_B(self.lora_A(x))
        return out


def adapted() -> nn.Module:
    return nn.Sequential(Adapted(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))


def names(model, side):
    return [model.own_name(slot.name) for slot in getattr(model, f"{side}_slots")]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["layer4"], {"layer4.weight"}),
        (["layer*"], {"layer1.weight", "layer4.weight"}),
        (["re:[14]\\.w"], {"layer1.weight", "layer4.weight"}),
        (["*", "!fc"], {"layer1.weight", "layer4.weight"}),
        (["*", "!layer*", "layer4.weight"], {"fc.bias", "layer4.weight"}),
        (["layer"], set()),
    ],
)
def test_patterns(patterns, chosen):
    assert {n for n in ("layer1.weight", "layer4.weight", "fc.bias") if is_chosen(n, patterns)} == chosen


def test_a_pattern_chooses_weights_and_the_statistics_beside_them():
    model = build_model(Blocks, (4,), 3, shared=["block2", "head.bias"])
    assert names(model, "theta") == [
        "block2.0.weight", "block2.0.bias", "block2.1.weight", "block2.1.bias", "head.bias",
        "block2.1.running_mean", "block2.1.running_var",
    ]  # fmt: skip
    assert names(model, "phi")[-2:] == ["block1.1.running_mean", "block1.1.running_var"]
    assert model.theta_size - model.theta_trainable == model.phi_size - model.phi_trainable == 12
    private = build_model(Blocks, (4,), 3, shared=["block2"], buffers="private")
    assert private.theta_size == private.theta_trainable
    assert not model.is_cut_at_head
    assert build_model(Blocks, (4,), 3, shared=["block*"]).is_cut_at_head


def test_every_cut_is_the_same_model():
    module = Blocks().eval()
    x = torch.randn(5, 4)
    for shared in ([], ["block1"], ["head"], ["*"], ["re:bias"]):
        model = build_model(module, (4,), 3, shared=shared)
        theta, phi = model.init(0)
        found = model.logits(phi, model.features(theta, phi, x), theta)
        torch.testing.assert_close(found, module(x))
        torch.testing.assert_close(model.module(theta, phi).eval()(x), module(x))
        again = model.vectors(model.module(theta + 1, phi - 1))
        assert torch.equal(again[0], theta + 1)
        assert torch.equal(again[1], phi - 1)


def test_a_model_without_a_head_can_be_shared_by_patterns():
    model = build_model(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,), 3, shared="0")
    assert (model.theta_size, model.phi_size) == (30, 21)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"shared": "blok1"}, "model.shared: 'blok1' matches no parameter"),
        ({"shared": ["block1", "!hed"]}, "model.shared: '!hed' matches no parameter"),
        ({"shared": "re:("}, "is no regular expression"),
        ({"frozen": "layer4"}, "model.frozen: 'layer4' matches no parameter"),
        ({"frozen": "*"}, "the model has no trainable parameter"),
        ({"shared": "block1", "frozen": "block1"}, "model.shared: 'block1' matches no parameter"),
    ],
)
def test_patterns_that_choose_nothing_are_refused(option, said):
    with pytest.raises(InputError, match=said.replace("(", "\\(")):
        build_model(Blocks, (4,), 3, **option)


def test_frozen_parameters_and_their_statistics_are_in_neither_vector():
    model = build_model(Blocks, (4,), 3, frozen="block1")
    assert not any(name.startswith("block1") for side in ("theta", "phi") for name in names(model, side))
    assert model.has_frozen
    assert build_model(Blocks, (4,), 3, frozen=["block1", "block2"]).batch_statistics is False


def test_a_module_of_the_users_keeps_its_own_flags():
    module = Blocks()
    build_model(module, (4,), 3, frozen="block1")
    assert all(p.requires_grad for p in module.parameters())


def test_frozen_weights_are_the_same_for_every_seed_and_stay():
    model = build_model(Blocks, (4,), 3, frozen="block1")
    other = build_model(Blocks, (4,), 3, frozen="block1")
    x = torch.randn(8, 4)
    theta, phi = model.init(3)
    before = model.features(theta, phi, x)
    with model.training():
        model.features(theta.clone().requires_grad_(), phi, 5 * x).sum().backward()
    assert torch.equal(model.features(theta, phi, x), before)  # no statistics moved
    assert torch.equal(other.features(theta, phi, x), before)  # drawn again, elsewhere


def digits():
    return fa.load("digits", "dirichlet", clients=3, seed=0, alpha=1.0)


def flat_adapted(shape, classes):
    return nn.Sequential(nn.Flatten(), Adapted(nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, classes))


def test_fedapa_on_adapters_of_a_frozen_backbone_sends_the_adapters_alone():
    done = fa.fit("fedapa", digits(), flat_adapted, rounds=3, head="3", shared=["*lora*"], lr=0.1, batch=16)
    assert done.task.P == 2 * 64 + 2 * 32
    assert set(done.logs[-1].up_bytes.values()) == {4 * done.task.P}
    assert done.curve()[-1].pooled > 1.5 * done.curve("before")[0].pooled
    record = done.records[0].state
    assert not torch.equal(record["theta"], done.task.init(0)[0])
    assert not torch.equal(record["phi"], done.task.init(0)[1])


def test_the_whole_model_of_fedavg_is_remarked_under_a_pattern():
    from fedapa.simulation import doubts, make_task

    data = digits()
    task = make_task(data, "mlp", shared=["fc1"])
    sample = data.clients[0].train.x[0]
    assert "sends the whole model" in doubts(fa.make("fedavg"), task, sample)[0]
    assert doubts(fa.make("fedper"), task, sample) == doubts(fa.make("fedavg"), make_task(data, "mlp"), sample) == []
