"""Own data from files to tensors: tables, images, arrays; splits; the four hospitals."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedapa.data.fetching import fetch
from fedapa.data.site_description import Sites
from fedapa.data.sites import Own, assemble, read_source
from fedapa.data.sources import SOURCES, is_present, load
from fedapa.data.splits import by_group, by_time, equal_rows, kept_together
from fedapa.errors import InputError


def write_table(path: Path, rows: int, seed: int, site: str | None = None) -> Path:
    rng = np.random.default_rng(seed)
    lines = ["age,dose,ward,outcome" + (",site" if site else "")]
    for k in range(rows):
        tail = f",{site}" if site else ""
        lines.append(f"{rng.normal(50, 9):.3f},{rng.integers(4)},{'AB'[k % 2]},{'yes' if k % 3 else 'no'}{tail}")
    path.write_text("\n".join(lines) + "\n")
    return path


def two_sites(folder: Path) -> Sites:
    files = {name: str(write_table(folder / f"{name}.csv", 40 + 8 * k, k)) for k, name in enumerate(("north", "south"))}
    return Sites(files, label="outcome")


def shapes(own: Own) -> list[tuple[str, int, int]]:
    return [(c.name, len(c.train.y), len(c.test.y)) for c in own.data.clients]


def test_one_file_per_site(tmp_path: Path) -> None:
    own = assemble(two_sites(tmp_path))
    assert shapes(own) == [("north", 30, 10), ("south", 36, 12)]
    assert own.data.shape == (4,)
    assert own.schemas[0].class_names == ("no", "yes")
    for client in own.data.clients:  # scaled by its own train rows
        assert torch.allclose(client.train.x[:, 0].mean(), torch.tensor(0.0), atol=1e-5)
        assert torch.allclose(client.train.x[:, 0].std(correction=0), torch.tensor(1.0), atol=1e-5)
        assert abs(float(client.test.y.float().mean()) - 2 / 3) < 0.1  # stratified
    assert own.held_out[0] is not None
    assert own.held_out[0].rows == 10


def test_one_file_with_a_site_column_is_the_same(tmp_path: Path) -> None:
    apart = assemble(two_sites(tmp_path))
    both = [write_table(tmp_path / "n.csv", 40, 0, "north"), write_table(tmp_path / "s.csv", 48, 1, "south")]
    (tmp_path / "all.csv").write_text(both[0].read_text() + "\n".join(both[1].read_text().splitlines()[1:]))
    joined = assemble(Sites({"all": str(tmp_path / "all.csv")}, label="outcome", site_column="site"))
    assert joined.data.fingerprint == apart.data.fingerprint
    assert [c.name for c in joined.data.clients] == ["north", "south"]


def test_the_seed_decides_which_rows_test(tmp_path: Path) -> None:
    sites = two_sites(tmp_path)
    assert assemble(sites, 3).data.fingerprint == assemble(sites, 3).data.fingerprint
    assert assemble(sites, 3).data.fingerprint != assemble(sites, 4).data.fingerprint


def test_an_agreed_scaling_and_an_agreed_schema(tmp_path: Path) -> None:
    import json

    from fedapa.data.schema import to_json

    own = assemble(replace(two_sites(tmp_path), scaling="federated"))
    assert own.schemas[0] == own.schemas[1]
    (tmp_path / "schema.json").write_text(json.dumps(to_json(own.schemas[0])))
    alone = Sites({"south": str(tmp_path / "south.csv")}, label="outcome", schema_file=str(tmp_path / "schema.json"))
    mine = assemble(alone)
    assert mine.schemas == (own.schemas[0],)
    assert torch.equal(mine.data.clients[0].test.x, own.data.clients[1].test.x)  # its split is its own
    (tmp_path / "short.csv").write_text("age,outcome\n1,no\n2,yes\n")
    with pytest.raises(InputError, match=r"site s has no column 'dose' \(short.csv\), the schema has one"):
        assemble(replace(alone, files={"s": str(tmp_path / "short.csv")}))


def test_validation_rows_are_train_rows(tmp_path: Path) -> None:
    own = assemble(replace(two_sites(tmp_path), validation=0.2))
    first = own.data.clients[0]
    assert first.validation is not None
    assert (len(first.train.y), len(first.validation.y), len(first.test.y)) == (24, 6, 10)


# --- splits --------------------------------------------------------------------------------------


def test_groups_stay_together(tmp_path: Path) -> None:
    groups = np.array([str(k // 3) for k in range(60)], dtype=object)
    mask = by_group(groups, 0.25, np.random.default_rng(0), "here")
    assert 12 <= mask.sum() <= 18
    assert not set(groups[mask]) & set(groups[~mask])
    with pytest.raises(InputError, match="one group"):
        by_group(np.array(["a", "a"], dtype=object), 0.5, np.random.default_rng(0), "here")


def test_the_latest_rows_test() -> None:
    dates = np.array(["2024-03-01", "2024-01-01", "2024-03-01", "2024-02-01"], dtype=object)
    assert by_time(dates, 0.25, "here").tolist() == [True, False, True, False]
    assert by_time(np.array(["3", "10", "2"], dtype=object), 0.34, "here").tolist() == [False, True, False]
    with pytest.raises(InputError, match="'spring' is not a time"):
        by_time(np.array(["2024-03-01", "spring"], dtype=object), 0.5, "here")
    with pytest.raises(InputError, match="same time"):
        by_time(np.array(["1", "1"], dtype=object), 0.5, "here")


def test_split_columns_are_not_learned_from(tmp_path: Path) -> None:
    sites = replace(two_sites(tmp_path), split="group", split_column="dose")
    own = assemble(sites)
    assert own.schemas[0].inputs == ["age", "ward=A", "ward=B"]
    held, all_doses = own.held_out[0], {"0", "1", "2", "3"}
    assert held is not None
    assert 0 < len(set(held.columns["dose"])) < len(all_doses)
    with pytest.raises(InputError, match="split is 'time'"):
        assemble(replace(sites, split="time", split_column=None))


def test_copies_stay_on_one_side() -> None:
    x, y = np.array([[1.0], [2.0], [1.0], [1.0]]), np.array([0, 0, 0, 1])
    (twins,) = equal_rows(x, y)
    assert twins.tolist() == [0, 2]
    assert equal_rows(np.zeros((2, 1)), np.array([-0.5, -0.7], np.float32)) == []  # numbers to predict
    assert kept_together(np.array([True, False, False, False]), [twins]).tolist() == [True, False, True, False]


def test_copies_are_found_within_and_across_sites(tmp_path: Path) -> None:
    sites = two_sites(tmp_path)
    lines = (tmp_path / "north.csv").read_text().splitlines()
    (tmp_path / "north.csv").write_text("\n".join([*lines, *lines[1:6]]) + "\n")
    south = (tmp_path / "south.csv").read_text()
    (tmp_path / "south.csv").write_text(south + lines[9] + "\n")
    own = assemble(sites)
    assert own.notes == (
        "site north: 5 rows are copies of others and stay on their side of the split",
        "sites north and south share 1 equal rows",
    )
    first = own.data.clients[0]
    rows = {tuple(row) for row in first.train.x.tolist()}
    assert not rows & {tuple(row) for row in first.test.x.tolist()}
    assert "across the split" in " ".join(assemble(replace(sites, duplicates="keep"), 1).notes)
    with pytest.raises(InputError, match="5 rows are copies"):
        assemble(replace(sites, duplicates="refuse"))


# --- classes and labels --------------------------------------------------------------------------


def test_a_class_that_one_site_lacks(tmp_path: Path) -> None:
    sites = two_sites(tmp_path)
    path = tmp_path / "south.csv"
    path.write_text("\n".join(line for line in path.read_text().splitlines() if not line.endswith("no")))
    with pytest.raises(InputError, match="site south has no row of class 'no'") as caught:
        assemble(sites)
    assert 'classes = ["no", "yes"]' in caught.value.hint
    assert assemble(replace(sites, classes={"no": ["no"], "yes": ["yes"]})).data.classes == 2


def test_labels_that_are_missing_strange_or_numbers(tmp_path: Path) -> None:
    sites = two_sites(tmp_path)
    north = tmp_path / "north.csv"
    text = north.read_text()
    north.write_text(text + "50,1,A,\n")
    assert assemble(sites).notes == ("site north: 1 rows without a label are left out",)
    north.write_text(text + "50,1,A,maybe\n")
    with pytest.raises(InputError, match=r"label 'maybe' \(line 42 of north.csv\) is none of the classes"):
        assemble(replace(sites, classes={"no": ["no"], "yes": ["yes"]}))
    with pytest.raises(InputError, match="no label column 'outcom'") as caught:
        assemble(replace(sites, label="outcom"))
    assert "'outcome'" in caught.value.hint
    with pytest.raises(InputError, match="a measurement rather than a class"):
        assemble(replace(sites, label="age"))


# --- images and arrays ---------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        for kind in ("cat", "dog"):
            folder = tmp_path / site / kind
            folder.mkdir(parents=True)
            for k in range(6):
                pixels = rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{k}.{'png' if k % 2 else 'jpg'}")
    return tmp_path


def test_image_folders(photos: Path) -> None:
    sites = Sites({name: str(photos / name) for name in ("north", "south")})
    own = assemble(sites)
    assert own.data.shape == (3, 5, 4)
    assert own.schemas[0].class_names == ("cat", "dog")
    assert shapes(own) == [("north", 9, 3), ("south", 9, 3)]
    first = np.asarray(Image.open(photos / "north" / "cat" / "1.png"))
    everything = torch.cat([own.data.clients[0].train.x, own.data.clients[0].test.x])
    assert any(torch.equal(image, torch.tensor(first).permute(2, 0, 1)) for image in everything)


def test_a_table_of_images(photos: Path) -> None:
    lines = [f"{f.relative_to(photos)},{f.parent.name},{f.parts[-3]}" for f in sorted(photos.rglob("*.*g"))]
    (photos / "all.csv").write_text("\n".join(["file,kind,site", *lines]))
    table = Sites({"all": str(photos / "all.csv")}, label="kind", site_column="site", image_column="file")
    folders = assemble(Sites({name: str(photos / name) for name in ("north", "south")}))
    assert assemble(table).data.fingerprint == folders.data.fingerprint


def test_images_of_different_sizes_and_broken_ones(photos: Path) -> None:
    sites = Sites({name: str(photos / name) for name in ("north", "south")})
    odd = photos / "south" / "dog" / "3.png"
    Image.new("RGB", (9, 7)).save(odd)
    with pytest.raises(InputError, match=r"3.png has 9x7 pixels, 0.jpg has 4x5"):
        assemble(sites)
    assert assemble(replace(sites, image_size=(8, 6))).data.shape == (3, 8, 6)
    odd.write_bytes((photos / "south" / "dog" / "1.png").read_bytes()[:60])
    with pytest.raises(InputError, match=r"3.png is not a readable image") as caught:
        assemble(sites)
    assert "\n" not in caught.value.message
    (photos / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no class/image.png"):
        assemble(Sites({"empty": str(photos / "empty")}))


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2, 3)).astype(np.float32), np.arange(40) % 2
    where = np.array(["north", "south"])[np.arange(40) // 20]
    np.savez(tmp_path / "all.npz", x=x, y=y, where=where)
    own = assemble(Sites({"all": str(tmp_path / "all.npz")}, site_column="where"))
    assert shapes(own) == [("north", 15, 5), ("south", 15, 5)]
    assert own.data.shape == (2, 3)
    np.savez(tmp_path / "bad.npz", x=x)
    with pytest.raises(InputError, match="no array 'y'"):
        assemble(Sites({"bad": str(tmp_path / "bad.npz")}))
    (tmp_path / "worse.npz").write_bytes(b"no zip")
    with pytest.raises(InputError, match=r"not a readable .npz"):
        assemble(Sites({"worse": str(tmp_path / "worse.npz")}))


# --- the four hospitals --------------------------------------------------------------------------


def write_hospitals(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for k, site in enumerate(SOURCES["heart-disease"].sites):
        rng = np.random.default_rng(k)
        rows = [
            f"{rng.integers(30, 70)},1,{1 + j % 4},130,0,0,2,{rng.integers(90, 180)},0,0,?,?,?,{j % 5}"
            for j in range(25)
        ]
        (folder / f"processed.{site}.data").write_text("\n".join(rows) + "\n")


def test_a_stand_in_for_the_hospitals(tmp_path: Path) -> None:
    assert not is_present("heart-disease", tmp_path)
    with pytest.raises(InputError, match="no data files found") as caught:
        assemble(Sites(source="heart-disease"), data_dir=tmp_path)
    assert "fedapa data fetch heart-disease" in caught.value.hint
    write_hospitals(tmp_path / "heart-disease")
    assert is_present("heart-disease", tmp_path)
    assert read_source("heart-disease", tmp_path) == dict.fromkeys(SOURCES["heart-disease"].sites, 25)
    own = assemble(Sites(source="heart-disease"), data_dir=tmp_path)
    assert own.schemas[0].class_names == ("healthy", "disease")
    chol = own.schemas[0].inputs.index("chol")
    assert own.data.clients[0].train.x[:, chol : chol + 2].tolist() == [[0, 1]] * len(own.data.clients[0].train.y)
    with pytest.raises(InputError, match="comes in sites"):
        load("heart-disease", tmp_path)
    with pytest.raises(InputError, match="no sites called 'heart'"):
        assemble(Sites(source="heart"))


def test_the_hospitals_official_place() -> None:
    urls = SOURCES["heart-disease"].urls
    assert all(url.startswith("https://archive.ics.uci.edu/") for url in urls)
    assert [url.rsplit("/", 1)[1] for url in urls] == [
        f"processed.{site}.data" for site in ("cleveland", "hungarian", "switzerland", "va")
    ]


def test_the_real_hospitals() -> None:
    if not is_present("heart-disease"):
        pytest.skip("FEDAPA_DATA names no folder with heart-disease")
    own = assemble(Sites(source="heart-disease"))
    counts = {c.name: (c.train.y.bincount() + c.test.y.bincount()).tolist() for c in own.data.clients}
    assert counts == {"cleveland": [164, 139], "hungarian": [188, 106], "switzerland": [8, 115], "va": [51, 149]}
    assert fetch("heart-disease", Path(os.environ["FEDAPA_DATA"]), progress=False).is_dir()  # complete: no network
