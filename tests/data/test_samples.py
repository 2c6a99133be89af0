"""Data as they come: token ids, fields, lazily read rows, own sources, subsets, held-out shares, and the examples."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedapa as fa
from fedapa.config.experiment import assemble, load_data
from fedapa.config.load import load
from fedapa.core.tree import distance
from fedapa.data import sources
from fedapa.data.own_source import own_source
from fedapa.data.subset import smaller
from fedapa.errors import InputError

EXAMPLES = Path(__file__).parents[2] / "examples"


def arrays(n: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, n)
    return (random.normal(size=(n, 5)) + y[:, None]).astype(np.float32), y


def four(seed: int = 0) -> tuple[np.ndarray, ...]:
    return (*arrays(24, seed), *arrays(9, seed + 100))


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------------------------------ inputs


def test_whole_numbers_reach_the_model_as_they_are() -> None:
    seen = list[torch.dtype]()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50_000, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.dtype)
            answer: Tensor = self.head(self.embed(x).mean(1))
            return answer

    ids = np.array([[1, 49_999], [2, 3]] * 4, dtype=np.int32)
    data = fa.from_arrays([(ids, np.arange(8) % 2, ids, np.arange(8) % 2)] * 2)
    fa.fit("fedapa", data, Net, 1, batch=4)
    assert set(seen) == {torch.int64}
    with pytest.raises(InputError, match="cannot take samples of shape"):
        fa.fit("fedavg", data, "mlp", 1)


class Summed(nn.Module):
    """Two fields, whose sum is what a single tensor would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: fa.Fields) -> Tensor:
        answer: Tensor = self.head(torch.tanh(self.body(x["half"] + x["rest"])))
        return answer


class Whole(Summed):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(fa.Fields({"half": x, "rest": torch.zeros_like(x)}))


def in_fields(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"half": x, "rest": np.zeros_like(x)}


@pytest.mark.parametrize("method", ["fedapa", "perfedavg", "fedala", "knnper", "fedem", "fedfomo"])
def test_fields_train_the_same_models_as_one_tensor(method: str) -> None:
    plain = fa.from_arrays([four(k) for k in range(3)], 3)
    several = fa.from_arrays([(in_fields(a), b, in_fields(c), d) for a, b, c, d in map(four, range(3))], 3)
    one = fa.fit(method, plain, Whole, 2, batch=8, engine="torch")
    other = fa.fit(method, several, Summed, 2, batch=8)
    gaps = [distance(a.state, b.state) for a, b in zip(one.records, other.records, strict=True)]
    assert max(gaps) < 1e-6


def test_rows_that_stay_on_the_disk_train_the_same_models(tmp_path: Path) -> None:
    clients = [four(k) for k in range(3)]
    lazy = []
    for k, (a, b, c, d) in enumerate(clients):
        np.save(tmp_path / f"{k}.npy", a)
        lazy.append(
            (fa.Lazy(np.load(tmp_path / f"{k}.npy", mmap_mode="r")), b, fa.Lazy(list(zip(c, d, strict=True))), d)
        )
    one = fa.fit("fedavg", fa.from_arrays(clients, 3), "mlp", 2, batch=8, engine="torch")
    other = fa.fit("fedavg", fa.from_arrays(lazy, 3), "mlp", 2, batch=8)
    assert distance(one.state.server, other.state.server) == 0


def test_a_batch_reads_its_own_rows_alone() -> None:
    class Counting(list[np.ndarray]):
        reads = 0

        def __getitem__(self, key: object) -> np.ndarray:  # type: ignore[override]
            Counting.reads += 1
            return super().__getitem__(key)  # type: ignore[index, no-any-return]

    lazy = fa.Lazy(Counting(np.zeros((1000, 4), np.float32)))
    assert (lazy.shape, Counting.reads) == ((1000, 4), 1)
    assert lazy[torch.tensor([5, 900])].shape == (2, 4)
    assert lazy.rows(np.arange(10, 20))[3:5].shape == (2, 4)
    assert Counting.reads == 6  # and one for the shape of the rows


# ------------------------------------------------------------------------------------------------- sources, held out


SOURCE = """
import numpy as np
def load():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(200, 4)).astype(np.float32), np.arange(200) % 4
    return x[:160], y[:160], x[160:], y[160:]
def by_client():
    x, y, a, b = load()
    return {"north": (x[:90], y[:90], a[:20], b[:20]), "south": (x[90:], y[90:], a[20:], b[20:])}
def wrong():
    return 3
"""
CONFIG = """
[data]
source = "my.py:load"
clients = 4
min_train = 0
min_test = 0
[model]
name = "mlp"
[run]
rounds = 2
"""


def test_data_of_ones_own_from_a_config(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(SOURCE)
    (tmp_path / "c.toml").write_text(CONFIG)
    data = load_data(load(str(tmp_path / "c.toml")), 0)
    assert (len(data.clients), data.classes) == (4, 4)
    assert 150 < int(data.sizes.sum()) <= 160  # a rule may leave a remainder out
    own = load_data(load(str(tmp_path / "c.toml"), ["data.source=my.py:by_client", "data.validation=0.1"]), 0)
    assert [client.name for client in own.clients] == ["north", "south"]
    assert [len(client.train.y) for client in own.clients] == [81, 63]
    with pytest.raises(InputError, match="returned int"):
        own_source(f"{tmp_path / 'my.py'}:wrong")
    assert assemble(load(str(tmp_path / "c.toml"), ["methods=['fedapa']"])).task.clients == 4


def test_arrays_in_a_file(tmp_path: Path) -> None:
    x, y = arrays(40)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (tmp_path / "c.toml").write_text(CONFIG.replace("my.py:load", "a.npz").replace("clients = 4", "clients = 2"))
    config = load(str(tmp_path / "c.toml"), ["data.partition=iid"])
    assert 36 < int(load_data(config, 0).sizes.sum()) <= 40
    whose = np.arange(40) % 3
    np.savez(tmp_path / "b.npz", x_train=x, y_train=y, x_test=x, y_test=y, client_train=whose, client_test=whose)
    assert load_data(load(str(tmp_path / "c.toml"), ["data.source=b.npz"]), 0).sizes.tolist() == [14, 13, 13]
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y)
    with pytest.raises(InputError, match="lacks x_test"):
        own_source(str(tmp_path / "d.npz"))


@pytest.mark.parametrize(("subset", "train"), [(0.1, 150), (300, 300)])
def test_a_subset_keeps_the_share_of_every_class(subset: float, train: int) -> None:
    whole = sources.load("digits")
    part = smaller(whole, subset, 0)
    assert len(part.y_train) == pytest.approx(train, abs=1)
    shares = np.bincount(part.y_train) / np.bincount(whole.y_train)
    assert shares == pytest.approx(train / len(whole.y_train), abs=0.01)
    assert len(part.y_test) / len(whole.y_test) == pytest.approx(train / len(whole.y_train), abs=0.01)
    with pytest.raises(InputError, match=r"data\.subset is 5000"):
        smaller(whole, 5000, 0)


def test_a_config_may_ask_for_a_subset() -> None:
    config = load("demo", ["data.subset=0.5", "data.clients=4"])
    assert 700 < int(load_data(config, 0).sizes.sum()) <= 751


def test_held_out_samples_are_no_train_samples() -> None:
    whole = fa.from_arrays([four(k) for k in range(2)], 3)
    data = whole.held_out(0.25, seed=1)
    for old, new in zip(whole.clients, data.clients, strict=True):
        assert new.validation is not None
        assert len(new.train.y) + len(new.validation.y) == len(old.train.y)
        both = torch.cat([new.train.x, new.validation.x])
        assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, old.train.x.tolist()))
    assert data.fingerprint != whole.fingerprint
    assert data.held_out(0.5).clients[0].validation is data.clients[0].validation
    result = fa.fit("fedavg", whole, "mlp", 1, validation=0.25, batch=8)
    assert result.curve("after", "validation")


@pytest.mark.parametrize(("name", "least"), [("speakers", 50), ("machines", 60), ("photographs", 40)])
def test_examples_run_and_learn(name: str, least: float) -> None:
    assert example(name).main(rounds=3) > least


def test_an_augmentation_of_ones_own() -> None:
    spec = f"{EXAMPLES / 'photographs.py'}:shifted"
    assert example("photographs").main(rounds=1, augment=spec) > 5
