"""Files that were made to take the memory, the time or the composure of whoever reads them."""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from command import Call
from fedapa.config.load import load
from fedapa.data.arrays_file import read_npz
from fedapa.data.schema import read_schema
from fedapa.data.site_images import read_images
from fedapa.data.sites import Sites, assemble
from fedapa.data.sources import SOURCES
from fedapa.data.tables import read_table
from fedapa.errors import InputError
from fedapa.store import partition_file


def peak_mb(code: str, *words: object) -> float:
    """The largest memory of a process that reads a file, whatever comes of it."""
    done = subprocess.run(
        [sys.executable, "-c", code + PEAK, *(str(word) for word in words)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30)),
    )
    return int(done.stdout.splitlines()[-1]) / 1024


# Not getrusage: after a fork it tells the memory of the parent, too.
PEAK = """
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
READ = """
import sys
from pathlib import Path
from fedapa.errors import InputError
{imports}
try:
    {call}
except InputError as error:
    assert "refused" in error.hint, error
else:
    raise SystemExit("it was read")
"""


def npz_bomb(path: Path, gigabytes: int) -> Path:
    """Zeros, packed about a thousand times smaller."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w", force_zip64=True) as x:
        np.lib.format.write_array_header_1_0(
            x, {"descr": "<f4", "fortran_order": False, "shape": (gigabytes * 2**20, 256)}
        )
        for _ in range(gigabytes * 64):
            x.write(bytes(2**24))
    return path


def test_an_npz_bomb_takes_no_memory(tmp_path: Path) -> None:
    bomb = npz_bomb(tmp_path / "x.npz", 1)
    assert bomb.stat().st_size < 2**21
    code = READ.format(imports="from fedapa.data.arrays_file import read_npz", call="read_npz(Path(sys.argv[1]), '')")
    assert peak_mb(code, bomb) < 700


def test_a_parquet_bomb_takes_no_memory(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    codes = arrow.array(np.zeros(49_000_000, np.int32))
    column = arrow.DictionaryArray.from_arrays(codes, arrow.array(["a" * 100]))
    parquet.write_table(arrow.table({"label": column}), tmp_path / "x.parquet", compression="gzip")
    assert (tmp_path / "x.parquet").stat().st_size < 2**20
    code = READ.format(imports="from fedapa.data.tables import read_table", call="read_table(Path(sys.argv[1]))")
    assert peak_mb(code, tmp_path / "x.parquet") < 700


def test_one_long_text_in_every_row_is_kept_once(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    codes = arrow.array(np.arange(2_000_000) % 2)
    words = arrow.array(["yes" * 1000, "no"])
    parquet.write_table(arrow.table({"label": arrow.DictionaryArray.from_arrays(codes, words)}), tmp_path / "x.parquet")
    code = """
import sys
from pathlib import Path
from fedapa.data.tables import read_table
assert read_table(Path(sys.argv[1])).rows == 2_000_000
"""
    assert peak_mb(code, tmp_path / "x.parquet") < 900  # 3 GB as texts of their own


def test_parquet_cells_read_as_before(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "text": ["a", None, "b", "a"],
        "whole": [1, 2, None, 1],
        "real": [0.5, float("nan"), 2.0, None],
        "truth": [True, False, None, True],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "x.parquet", row_group_size=2)
    table = read_table(tmp_path / "x.parquet")
    assert {name: cells.tolist() for name, cells in table.columns.items()} == {
        "text": ["a", None, "b", "a"],
        "whole": ["1", "2", None, "1"],
        "real": ["0.5", None, "2", None],
        "truth": ["1", "0", None, "1"],
    }


def damaged_npz(how: str) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, x=np.arange(4000.0).reshape(100, 40), y=np.arange(100) % 2)
    content = bytearray(buffer.getvalue())
    if how == "cut":
        return bytes(content[: len(content) // 2])
    if how == "packed badly":
        content[80:200] = bytes(120)
    elif how == "objects":
        np.savez(buffer := io.BytesIO(), x=np.array([{}], dtype=object), y=np.zeros(1))
        return buffer.getvalue()
    elif how == "header":
        at = content.find(b"PK\x01\x02")
        content[at + 10 : at + 12] = b"\x63\x00"  # a way of packing that nobody knows
    elif how == "claims":
        plain = io.BytesIO()
        with zipfile.ZipFile(plain, "w") as archive:
            whole = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                whole, {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**10)}
            )
            archive.writestr("x.npy", whole.getvalue())
        return plain.getvalue()
    elif how == "no zip":
        return b"\x93NUMPY" + bytes(100)
    return bytes(content)


@pytest.mark.parametrize("how", ["cut", "packed badly", "objects", "header", "claims", "no zip"])
def test_damaged_arrays_are_one_line(how: str, tmp_path: Path) -> None:
    path = tmp_path / "north.npz"
    path.write_bytes(damaged_npz(how))
    for read in (
        lambda: read_npz(path, "hint"),
        lambda: assemble(Sites(files={"north": str(path)})),
        lambda: partition_file.load(path),
    ):
        with pytest.raises(InputError) as caught:
            read()
        assert "\n" not in caught.value.message
        assert "allow_pickle" not in caught.value.message


def test_an_image_bomb_is_one_line(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("1", (20_000, 20_000)).save(tmp_path / "x.png")
    with pytest.raises(InputError, match="not a readable image"):
        read_images([tmp_path / "x.png"], "L")


DEEP = 100_000


def test_deep_nesting_is_one_line(tmp_path: Path, fedapa: Call) -> None:
    (tmp_path / "x.toml").write_text(f"methods = {'[' * DEEP}{']' * DEEP}\n")
    with pytest.raises(InputError, match="nested too deeply"):
        load(str(tmp_path / "x.toml"))
    answer = fedapa("run", tmp_path / "x.toml")
    assert (answer.code, "Traceback" in answer.err) == (2, False)
    (tmp_path / "schema.json").write_text("[" * DEEP)
    with pytest.raises(InputError, match="is not JSON"):
        read_schema(tmp_path / "schema.json")
    (tmp_path / "results.json").write_text(json.dumps({"runs": []})[:-1] + "," + '"x":' + "[" * DEEP)
    answer = fedapa("compare", tmp_path / "results.json")
    assert (answer.code, "Traceback" in answer.err) == (2, False)


def test_downloads_are_encrypted_and_no_hash_can_be_made_to_fit() -> None:
    assert all(item.url.startswith("https://") for info in SOURCES.values() for item in info.downloads)
    assert all(len(item.sha256) == 64 and item.hash.startswith("sha256:") for item in SOURCES["fmnist"].downloads)
