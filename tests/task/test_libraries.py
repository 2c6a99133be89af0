"""Other people's libraries, run for real where they are installed. Nothing is downloaded: models start at random."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedapa as fa
from command import Call
from fedapa.data.federated import Federated

# Their own warnings are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
_DECLARED: list[torch.library.Library] = []


def needed(package: str) -> Any:
    """The package, or the test is skipped with the reason."""
    if package in ("torchvision", "timm"):
        declare_operators()
    return pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)


def declare_operators() -> None:
    """torchvision from PyPI is built for CUDA. Beside a torch for the CPU its compiled operators are missing, and it
    cannot be imported. Its classifiers do not use them: their names are enough."""
    spec = importlib.util.find_spec("torchvision")
    if _DECLARED or spec is None or spec.origin is None or hasattr(torch.ops.torchvision, "nms"):
        return
    text = (Path(spec.origin).parent / "_meta_registrations.py").read_text()
    _DECLARED.append(torch.library.Library("torchvision", "DEF"))
    for name in sorted(set(re.findall(r'(?:register_meta\("|torchvision::)(\w+)', text))):
        _DECLARED[0].define(f"{name}() -> ()")


def pictures() -> Federated:
    random = np.random.default_rng(0)
    x, y = random.integers(256, size=(24, 3, 32, 32), dtype=np.uint8), np.arange(24) % 3
    return fa.from_arrays([(x[k : k + 8], y[k : k + 8], x[k + 8 : k + 12], y[k + 8 : k + 12]) for k in (0, 12)], 3)


def sentences() -> Federated:
    """Token ids; the class is which of three words is there."""
    random = np.random.default_rng(1)
    y = np.arange(40) % 3
    x = random.integers(4, 30, size=(40, 6))
    x[:, 0] = 1 + y
    return fa.from_arrays([(x[k : k + 12], y[k : k + 12], x[k + 12 : k + 20], y[k + 12 : k + 20]) for k in (0, 20)], 3)


def tiny_bert(transformers: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "part"),
    [("torchvision:resnet18", "layer4*"), ("torchvision:mobilenet_v3_small", ""), ("timm:resnet18", "")],
)
def test_a_model_by_name_is_trained(name: str, part: str) -> None:
    needed(name.partition(":")[0])
    result = fa.fit("fedapa", pictures(), name, rounds=1, lr=0.01, batch=4, epochs=1, shared=[part] if part else [])
    assert np.isfinite(result.curve(score="loss")[-1].pooled)
    assert max(result.logs[0].up_bytes.values()) == 4 * result.task.P
    layer4 = {"torchvision:resnet18": 8_393_728 + 5 * 2 * 512}.get(name)  # its weights, and BatchNorm's statistics
    assert layer4 is None or layer4 == result.task.P


def test_the_last_block_of_a_vision_transformer_federates() -> None:
    timm = needed("timm")
    vit = partial(
        timm.create_model, "vit_tiny_patch16_224", num_classes=3, img_size=32, patch_size=16, depth=2, pretrained=False
    )
    options = {"shared": ["blocks.1*"], "frozen": ["patch_embed*", "blocks.0*"]}
    result = fa.fit("fedapa", pictures(), vit, rounds=1, lr=0.01, batch=4, epochs=1, head="head", **options)
    block = sum(value.numel() for value in vit().blocks[1].parameters())
    assert max(result.logs[0].up_bytes.values()) == 4 * block


def test_a_hugging_face_model_learns_from_token_ids(tmp_path: Path) -> None:
    """By the name of a folder that holds its config, as from the hub by the model's name."""
    transformers = needed("transformers")
    tiny_bert(transformers).save_pretrained(tmp_path / "tiny")
    recipe = {"optimizer": "adamw", "lr": 0.01, "batch": 4, "epochs": 4}
    result = fa.fit("fedper", sentences(), f"hf:{tmp_path / 'tiny'}", rounds=4, **recipe)
    assert result.curve(data="train")[-1].pooled < 0.5 * result.curve(data="train")[0].pooled


class Classifier(nn.Module):
    """Logits alone, of a model that returns more."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(input_ids=x, attention_mask=(x != 0).long()).logits
        return found


def test_adapters_of_peft_travel_and_the_backbone_does_not() -> None:
    transformers, peft = needed("transformers"), needed("peft")
    torch.manual_seed(0)
    bert = transformers.BertForSequenceClassification(tiny_bert(transformers))
    kind = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.0)
    model = Classifier(peft.get_peft_model(bert, kind))
    before = {name: value.clone() for name, value in model.named_parameters()}
    adapters = sum(value.numel() for name, value in before.items() if "lora" in name)
    result = fa.fit("fedapa", sentences(), model, rounds=2, lr=0.05, batch=4, epochs=2, shared=["*lora*"])
    assert max(result.logs[-1].up_bytes.values()) == 4 * adapters
    state = result.records[0].state
    trained = dict(result.task.model.module(state["theta"], state["phi"]).named_parameters())
    moved = {name for name, value in trained.items() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora" in name or "modules_to_save" in name for name in moved)


TRAINER = """
import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

class Lit(lightning.LightningModule):
    def __init__(self, module, recipe):
        super().__init__()
        self.module, self.recipe = module, recipe

    def training_step(self, batch, _):
        x, y = batch
        return cross_entropy(self.module(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.module.parameters(), self.recipe.lr, self.recipe.momentum)

def train(module, data, recipe, generator):
    loader = DataLoader(data, recipe.batch, shuffle=True, generator=generator)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    lightning.Trainer(max_epochs=recipe.epochs, accelerator="cpu", devices=1, **quiet).fit(Lit(module, recipe), loader)
"""


def test_a_lightning_trainer_works_under_fedapa(tmp_path: Path, fedapa: Call) -> None:
    needed("lightning")
    (tmp_path / "lit.py").write_text(TRAINER)
    small = ["--set", "data.clients=4", "--set", "data.min_train=20", "--set", "run.rounds=2"]
    done = fedapa(
        "run", "demo", "--method", "fedapa", *small, "--set", "training.trainer=lit.py:train", "--out", "runs"
    )
    assert done.code == 0, done.err
    again = fedapa(
        "run", "demo", "--method", "fedapa", *small, "--set", "training.trainer=lit.py:train", "--out", "two"
    )
    assert again.code == 0, again.err
    curves = [[row.pooled for row in fa.open(folder)[0].curve()] for folder in ("runs", "two")]
    assert curves[0] == curves[1]  # its loader draws from the client's stream
    assert curves[0][-1] > curves[0][0]


def test_every_log_gets_the_numbers_of_a_real_run(
    tmp_path: Path, fedapa: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, _, _ = needed("mlflow"), needed("wandb"), needed("tensorboard")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    small = ["--set", "data.clients=4", "--set", "data.min_train=20", "--set", "run.rounds=2"]
    done = fedapa("run", "demo", "--method", "fedavg", *small, "--log", "tensorboard,mlflow,wandb", "--out", "runs")
    assert done.code == 0, done.err
    run = fa.open("runs")[0]
    loss = run.curve(data="train")[-1].pooled
    found = mlflow.search_runs(search_all_experiments=True)
    assert found["metrics.train/loss"].tolist() == [pytest.approx(loss)]
    assert found["params.training.lr"].tolist() == [str(run.config["training"]["lr"])]
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    seen = events.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    assert [event.step for event in seen.Scalars("train/loss")] == [1, 2]
    assert seen.Scalars("train/loss")[-1].value == pytest.approx(loss)
    assert list((run.folder / "wandb").glob("offline-run-*/*.wandb"))


def test_tables_become_data_frames(tmp_path: Path) -> None:
    needed("pandas")
    data = fa.load("digits", "dirichlet", clients=4, alpha=0.5, min_train=20, min_test=5)
    fa.fit("fedapa", data, "mlp", rounds=2, lr=0.1, out=tmp_path / "one")
    run = fa.open(tmp_path / "one")
    frame = run.scores.to_pandas()
    during = frame[(frame.data == "train") & (frame.score == "loss")]
    assert during["round"].tolist() == [1, 2]
    assert set(run.clients.to_pandas().columns) >= {"name", "train", "before", "after"}
    assert len(run.weights.to_pandas()) == 16
