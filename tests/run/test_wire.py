import json
from pathlib import Path

import pytest
import torch

from fedapa.errors import InputError
from fedapa.federation import manifest

UP = {"theta": torch.zeros(5), "n": torch.zeros(1)}


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    path = tmp_path / "wire.json"
    manifest.write(path, manifest.agreement("north", "fedavg", [({"theta": torch.zeros(5)}, UP)], ["names of columns"]))
    return path


def test_what_is_listed_may_leave(agreed: Path) -> None:
    found = manifest.read(agreed)
    assert found["up"] == [
        [
            {"name": "theta", "shape": [5], "dtype": "float32", "bytes": 20},
            {"name": "n", "shape": [1], "dtype": "float32", "bytes": 4},
        ]
    ]
    assert found["bytes_up_per_round"] == 24
    manifest.check(found, "fedavg", UP)
    manifest.check(found, "fedavg", {"theta": torch.ones(5)})  # less than agreed is no harm


@pytest.mark.parametrize(
    ("up", "said"),
    [
        ({**UP, "rows": torch.zeros(9, 3)}, "rows is not listed"),
        ({**UP, "theta": torch.zeros(6)}, r"theta has shape \[6\], listed is \[5\]"),
        ({**UP, "theta": torch.zeros(5, dtype=torch.float64)}, "theta has dtype float64, listed is float32"),
    ],
)
def test_anything_else_is_refused(agreed: Path, up: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(manifest.Refused, match=said) as caught:
        manifest.check(manifest.read(agreed), "fedavg", up)
    assert caught.value.exit_code == 2


def test_another_method_is_refused(agreed: Path) -> None:
    with pytest.raises(manifest.Refused, match="the server runs fedapa, this site agreed to fedavg"):
        manifest.check(manifest.read(agreed), "fedapa", UP)


def test_a_method_that_sends_nothing() -> None:
    silent = manifest.agreement("north", "local", [({}, {})], [])
    manifest.check(silent, "local", {})
    with pytest.raises(manifest.Refused, match="theta is not listed"):
        manifest.check(silent, "local", UP)


def test_an_edited_file_is_found_out(agreed: Path) -> None:
    content = json.loads(agreed.read_text())
    content["up"][0][0]["shape"] = [6]
    agreed.write_text(json.dumps(content))
    with pytest.raises(InputError, match="was edited after it was written"):
        manifest.read(agreed)


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_is_no_wire_json(agreed: Path, text: str) -> None:
    agreed.write_text(text)
    with pytest.raises(InputError):
        manifest.read(agreed)
    with pytest.raises(InputError, match="cannot read"):
        manifest.read(agreed.with_name("gone.json"))
