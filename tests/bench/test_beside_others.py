"""The benchmark beside code that is not ours: what it gives to that code, what it times, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import fedapa as fa
from fedapa.data.federated import Federated
from maker import load_maker

RELEASED = {  # what the benchmark calls and changes in the released code, in small
    "configs/FedAPA.yaml": """
server: {global_rounds: 50, lowest_join_rate: 0.6, learning_rate: 0.01}
client: {num_clients: 20, batch_size: 8, learning_rate: 0.5, local_epochs: 1}
""",
    "src/FedAPA/__init__.py": "",
    "src/server_base.py": """
def load_data(train, test):
    raise OSError("there are no files")

class ServerBase:
    def select_join_clients(self):
        return []
""",
    "main.py": """
import json, time
from pathlib import Path
from tqdm import tqdm
from src import server_base

def generate_dataset(args):
    raise OSError("there is no network")

def save_result(**result):
    raise OSError("nothing is to be written")

def run(args):
    generate_dataset(args)
    train, test = server_base.load_data(None, None)
    time.sleep(1)
    server = server_base.ServerBase()
    for _ in tqdm(range(args.server["global_rounds"])):
        server.select_join_clients()
        time.sleep(0.02)
    (Path(__file__).parent / "seen.json").write_text(json.dumps({
        "server": args.server, "client": args.client, "sizes": [[len(s) for s in part] for part in (train, test)]}))
    save_result(result={})
""",
}


@pytest.fixture
def beside() -> ModuleType:
    return load_maker("beside_others", "benchmarks")


@pytest.fixture
def pfllib(tmp_path: Path) -> Path:
    return written(tmp_path / "PFLlib", {"system/main.py": ""})


@pytest.fixture
def authors(tmp_path: Path) -> Path:
    return written(tmp_path / "FedAPA", RELEASED)


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def white_images(clients: int = 2) -> Federated:
    """Three train samples and one test sample each."""
    x, y = np.full((3, 3, 4, 4), 255, dtype=np.uint8), np.array([0, 1, 1])
    return fa.from_arrays([(x, y, x[:1], y[:1])] * clients, 2, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.5))


def test_pfllibs_files_hold_the_normalised_samples_of_every_client(beside: ModuleType, tmp_path: Path) -> None:
    beside.write_theirs(white_images(), tmp_path)
    for client in ("0", "1"):
        for part, count in (("train", 3), ("test", 1)):
            with (tmp_path / "dataset" / "Partition" / part / f"{client}.npz").open("rb") as file:  # as PFLlib does
                found = np.load(file, allow_pickle=True)["data"].tolist()
            assert found["x"].shape == (count, 3, 4, 4)
            assert found["x"][0, :, 0, 0].tolist() == [2.0, 2.0, 1.0]
            assert found["y"].tolist() == [0, 1, 1][:count]


def test_the_released_code_gets_the_same_samples(beside: ModuleType) -> None:
    train, test = beside.tensor_sets(white_images())
    assert [len(part) for part in (*train, *test)] == [3, 3, 1, 1]
    x, y = train[1][2]
    assert x.dtype == torch.float32
    assert x[:, 0, 0].tolist() == [2.0, 2.0, 1.0]
    assert int(y) == 1


def test_the_released_code_plays_our_rounds_with_every_client(beside: ModuleType, authors: Path) -> None:
    spent = beside.play_authors(authors, white_images(3), rounds=4)
    seen = json.loads((authors / "seen.json").read_text())
    assert seen["server"] == {"global_rounds": 4, "lowest_join_rate": 1.0, "learning_rate": 0.01}
    assert seen["client"] == {"num_clients": 3, "batch_size": 64, "learning_rate": 0.01, "local_epochs": 2}
    assert seen["sizes"] == [[3, 3, 3], [1, 1, 1]]
    assert 0.02 <= spent.wall < 0.2  # per round; the second before the first one does not count


def test_the_ratio_is_taken_repeat_by_repeat(beside: ModuleType) -> None:
    pairs = [(beside.Times(8, 10), beside.Times(1, 2)), (beside.Times(6, 9), beside.Times(2, 1))]
    case = next(case for case in beside.CASES if case.method == "fedapa")
    found = beside.row(case, pairs)
    assert found.what == "released FedAPA / fedapa"
    assert found.found == (7.0, 5.0, 9.0)
    assert found.holds is False  # nine are wanted
    assert found.detail[beside.WALL] == {"theirs": (9.5, 9, 10), "ours": (1.5, 1, 2)}
    assert found.detail[beside.RATIO_CPU] == (5.5, 3, 8)
    line = beside.table([found])[-1]
    assert line == "| released FedAPA / fedapa | 9.50 | 1.50 | 7.0 x [5.0, 9.0] | 9 x **not met** | 5.5 x [3.0, 8.0] |"


def test_both_sides_train_by_one_recipe(beside: ModuleType) -> None:
    assert {case.training["momentum"] for case in beside.CASES if case.clone == "pfllib"} == {0.0}
    assert {case.training["momentum"] for case in beside.CASES if case.clone == "authors"} == {0.9}
    assert [(case.method, case.target, case.workers) for case in beside.CASES if case.clone == "authors"] == [
        ("fedapa-reference", 5.0, 0),
        ("fedapa", 9.0, 0),
        ("fedapa", None, 1),
    ]


def test_folders_of_something_else_are_refused(beside: ModuleType, pfllib: Path, authors: Path) -> None:
    with pytest.raises(SystemExit, match=r"is no clone of PFLlib\nhint: git clone https://github.com/TsingZ0/PFLlib"):
        beside.main(["--pfllib", str(authors)])
    with pytest.raises(SystemExit, match=r"is no clone of the released FedAPA code\nhint: git clone .*Yuxia-Sun"):
        beside.main(["--authors", str(pfllib)])
    with pytest.raises(SystemExit, match=r"nothing to compare with\nhint: give --pfllib DIR, --authors DIR or both"):
        beside.main([])


def test_unknown_cases_and_those_of_the_other_code_are_refused(beside: ModuleType, authors: Path, pfllib: Path) -> None:
    with pytest.raises(SystemExit, match=r"no case 'fedx'\nhint: choose from fedapa-reference, fedapa$"):
        beside.main(["--authors", str(authors), "--only", "fedx"])
    with pytest.raises(SystemExit, match=r"ditto is compared with PFLlib\nhint: give --pfllib DIR"):
        beside.main(["--authors", str(authors), "--only", "ditto"])
    with pytest.raises(SystemExit, match="hint: give --rounds 2 or more"):
        beside.main(["--pfllib", str(pfllib), "--rounds", "1"])
    with pytest.raises(SystemExit, match=r"there is no folder .*nothing\nhint: make it first"):
        beside.main(["--pfllib", str(pfllib), "--out", str(pfllib / "nothing" / "table.json")])


def test_missing_images_are_said_in_a_line(beside: ModuleType, authors: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^error: .*\nhint: ") as found:
        beside.main(["--authors", str(authors), "--data-dir", str(tmp_path / "nothing")])
    assert "cifar10" in str(found.value).lower()


def test_the_table_is_kept_with_what_was_run(
    beside: ModuleType,
    authors: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    times: dict[str, Any] = {"theirs": beside.Times(12, 10), "ours": beside.Times(2, 1)}
    monkeypatch.setattr(beside, "in_process", lambda who, case, asked, top: times[who])
    monkeypatch.setattr(beside, "partition", lambda *_: white_images())
    out = tmp_path / "2026-11-20-others.json"
    beside.main(["--authors", str(authors), "--repeats", "2", "--out", str(out)])
    kept = json.loads(out.read_text())
    assert "the released FedAPA code, commit" in kept["about"]
    assert "20 clients with 0.25 of their samples" in kept["about"]
    assert [(row["what"], row["holds"]) for row in kept["rows"]] == [
        ("released FedAPA / fedapa-reference", True),
        ("released FedAPA / fedapa", True),
        ("released FedAPA / fedapa, one worker", None),
    ]
    assert "| 10.00 | 1.00 | 10.0 x [10.0, 10.0] | 9 x met | 6.0 x [6.0, 6.0] |" in capsys.readouterr().out

    maker, row = load_maker("make_performance"), {**kept["rows"][0], "suite": "train", "what": "of suites"}
    newer = {**kept, "machine": {**kept["machine"], "date": "2999-01-01T00:00:00"}, "rows": [row]}
    (tmp_path / "2999-01-01.json").write_text(json.dumps(newer))
    page = maker.page(*maker.gathered(tmp_path))  # no file of all suites has these rows: the older one counts
    assert "## Beside PFLlib and the released FedAPA code" in page
    assert f"Measured alone, `benchmarks/{out.name}`. {maker.machine(kept)} {kept['about']}" in page
    assert "| released FedAPA / fedapa-reference | ≥ 5 x | 10 x | 10, 10 | yes |" in page
