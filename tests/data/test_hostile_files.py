"""Files that were made to take the memory, the time or the composure of whoever reads them."""

from __future__ import annotations

import io
import itertools
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from command import Call
from fedapa.config.load import load
from fedapa.data import site_images, tables
from fedapa.data.arrays_file import read_npz
from fedapa.data.parquet_file import count_bytes
from fedapa.data.schema import read_schema
from fedapa.data.site_images import mode_of, paths_beside, read_images
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


@pytest.mark.parametrize(("kind", "shape"), [("|S0", (10**9,)), ("<f4", (10**9, 0)), ("|V0", (10**9, 3))])
def test_rows_of_nothing_are_no_rows(kind: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """A thousand million of them in a file of 300 bytes."""
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, archive.open("x.npy", "w") as x:
        np.lib.format.write_array_header_1_0(x, {"descr": kind, "fortran_order": False, "shape": shape})
    with pytest.raises(InputError, match="x has 1,000,000,000 rows of nothing"):
        read_npz(tmp_path / "x.npz", "hint")


def test_a_header_of_very_many_columns_takes_no_time(tmp_path: Path) -> None:
    names = [f"column-{k}" for k in range(60_000)]
    (tmp_path / "x.csv").write_text(",".join([*names, names[-1]]) + "\n")
    begin = time.process_time()
    with pytest.raises(InputError, match="two columns are called 'column-59999'"):
        read_table(tmp_path / "x.csv")
    assert time.process_time() - begin < 10  # a minute, if each is looked for among all


def test_a_parquet_bomb_takes_no_memory(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    codes = arrow.array(np.zeros(49_000_000, np.int32))
    column = arrow.DictionaryArray.from_arrays(codes, arrow.array(["a" * 100]))
    parquet.write_table(arrow.table({"label": column}), tmp_path / "x.parquet", compression="gzip")
    assert (tmp_path / "x.parquet").stat().st_size < 2**20
    code = READ.format(imports="from fedapa.data.tables import read_table", call="read_table(Path(sys.argv[1]))")
    assert peak_mb(code, tmp_path / "x.parquet") < 700


def test_a_parquet_bomb_of_nested_lists_takes_no_memory(tmp_path: Path) -> None:
    """One row of two columns, and fifty million values in one of its cells."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = np.zeros(5 * 10**7, np.int8)
    cell = arrow.ListArray.from_arrays(arrow.array([0, len(values)], arrow.int32()), arrow.array(values))
    parquet.write_table(arrow.table({"a": cell, "label": ["x"]}), tmp_path / "x.parquet", compression="gzip")
    assert (tmp_path / "x.parquet").stat().st_size < 2**10
    code = READ.format(imports="from fedapa.data.tables import read_table", call="read_table(Path(sys.argv[1]))")
    assert peak_mb(code.replace("refused", "make columns"), tmp_path / "x.parquet") < 400


@pytest.mark.parametrize("cell", [[1, 2], {"a": 1}, [{"a": [1]}]])
def test_a_column_that_is_no_column_is_named(cell: object, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"age": [7], "visits": [cell]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="column 'visits' holds lists or structs"):
        read_table(tmp_path / "x.parquet")


def test_a_parquet_bomb_of_wide_cells_takes_no_memory(tmp_path: Path) -> None:
    """Cells of a fixed width come out of a dictionary as wide as they are, each one."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    column = arrow.array([b"a" * 100_000] * 10_000, arrow.binary(100_000))
    parquet.write_table(arrow.table({"label": column}), tmp_path / "x.parquet", compression="gzip")
    assert (tmp_path / "x.parquet").stat().st_size < 2**10
    with pytest.raises(InputError, match=r"hold 954 MiB of cells"):
        read_table(tmp_path / "x.parquet")


def zigzag(number: int, length: int = 0) -> bytes:
    """As Thrift writes it, or in more bytes than that takes."""
    number, out = 2 * number, bytearray()
    while number > 127 or len(out) + 1 < length:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def test_a_parquet_file_that_lies_about_its_size_takes_no_memory(tmp_path: Path) -> None:
    """Its end says 100 bytes, its pages 300 million."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    table = arrow.table({"label": ["a" * (3 * 10**8)]})
    parquet.write_table(table, path, compression="gzip", use_dictionary=False, write_statistics=False)
    content, size = path.read_bytes(), parquet.read_metadata(path).row_group(0).total_byte_size
    body, end, true = content[: -(2**10)], content[-(2**10) :], zigzag(size)
    assert end.count(true) == 2  # of the column, and of the group
    path.write_bytes(body + end.replace(true, zigzag(100, len(true))))
    assert parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100
    code = READ.format(imports="from fedapa.data.tables import read_table", call="read_table(Path(sys.argv[1]))")
    assert peak_mb(code, path) < 400


def test_a_parquet_file_that_lies_about_its_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, says its end; 5,000 are in its only group."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    parquet.write_table(arrow.table({"label": [0] * 5000}), path)
    content, true = path.read_bytes(), zigzag(5000)
    at = content.index(true, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))  # first in the file's end
    path.write_bytes(content[:at] + zigzag(1, len(true)) + content[at + len(true) :])
    assert parquet.read_metadata(path).num_rows == 1
    monkeypatch.setattr(tables, "LARGEST_CELLS", 4999)
    with pytest.raises(InputError, match="5,000 rows of 1 columns do not fit into memory"):
        read_table(path)


def test_sizes_in_parquet_are_those_of_the_pages(tmp_path: Path) -> None:
    """By every way of writing, what the pages say is what an honest file's end says, without their headers."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, columns = tmp_path / "x.parquet", {"n": range(5000), "text": [f"{k % 70}" * 40 for k in range(5000)]}
    for version, codec, uses in itertools.product(("1.0", "2.0"), ("none", "snappy", "zstd"), (True, False)):
        settings = {"data_page_version": version, "compression": codec, "use_dictionary": uses, "data_page_size": 999}
        parquet.write_table(arrow.table(columns), path, row_group_size=2000, **settings)
        about = parquet.read_metadata(path)
        groups = [about.row_group(k).column(c) for k in range(3) for c in range(2)]
        stated, found = sum(chunk.total_uncompressed_size for chunk in groups), count_bytes(path, about)
        assert max(0.8 * stated, 160_000) <= found <= max(stated, 160_000)
        assert read_table(path).rows == 5000


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


IMAGES = READ.format(
    imports="from fedapa.data.site_images import read_images",
    call="read_images([Path(word) for word in sys.argv[3:]], sys.argv[1], eval(sys.argv[2]))",
)


@pytest.mark.parametrize(("count", "mode", "size"), [(1, "RGB", None), (4, "L", None), (1, "RGB", (8, 8))])
def test_image_bombs_below_the_librarys_own_limit_take_no_memory(
    count: int, mode: str, size: tuple[int, int] | None, tmp_path: Path
) -> None:
    """20 KB each; one is too much as RGB, even to make it smaller, and four are as grey."""
    from PIL import Image

    files = [tmp_path / f"{k}.png" for k in range(count)]
    for file in files:
        Image.new("1", (13_000, 13_000)).save(file)
    assert peak_mb(IMAGES, mode, size, *files) < 300


def test_a_table_that_names_one_image_many_times_takes_no_memory(tmp_path: Path) -> None:
    """A file counts once, by whatever names."""
    from PIL import Image

    pixels = np.zeros((2000, 2000), np.uint8)
    pixels[:30] = np.random.default_rng(0).integers(256, size=(30, 2000))  # an image of 60 KB
    Image.fromarray(pixels).save(tmp_path / "x.png")
    (tmp_path / "y.png").hardlink_to(tmp_path / "x.png")
    names = [tmp_path / "x.png", tmp_path / "y.png", tmp_path / ".." / tmp_path.name / "x.png"] * 100
    assert peak_mb(IMAGES, "L", None, *names) < 300


def test_images_of_one_colour_and_icons_are_read(tmp_path: Path) -> None:
    """1,000 times smaller than their pixels, some of them, and few enough; or large, and not that small."""
    from PIL import Image

    files = [tmp_path / f"{k}.png" for k in range(20)]
    for k, file in enumerate(files):
        Image.new("RGB", (1024, 1024), (k, 0, 0)).save(file)
    read = read_images(files, "RGB")  # 60 MiB of pixels in 108 KB
    assert read.shape == (20, 3, 1024, 1024)
    assert read[:, :, 5, 7].tolist() == [[k, 0, 0] for k in range(20)]
    Image.new("RGB", (16, 16)).save(tmp_path / "icon.png")
    assert read_images([tmp_path / "icon.png"] * 50, "RGB", (224, 224)).shape == (50, 3, 224, 224)


def test_more_pixels_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    monkeypatch.setattr(site_images, "LARGEST_PIXELS", 2**20)
    assert read_images([tmp_path / "x.png"], "L", (1024, 1024)).size == 2**20
    with pytest.raises(InputError, match="2 images take"):
        read_images([tmp_path / "x.png"] * 2, "L", (1024, 1024))


def test_an_image_that_is_a_device_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="/dev/zero does not exist"):
        read_images(list(paths_beside(tmp_path / "x.csv", ["/dev/zero"])), "L")
    os.mkfifo(tmp_path / "x.png")  # nobody will ever write to it
    with pytest.raises(InputError, match="does not exist"):
        mode_of(tmp_path / "x.png")


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
