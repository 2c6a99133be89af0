"""The data sets: what each one is, where its canonical files lie, how to read and how to fetch them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedapa.data.datasets.download import Download, download, unpack
from fedapa.errors import InputError

if TYPE_CHECKING:
    from fedapa.data.datasets.file_formats import Bytes, Labels
    from fedapa.data.datasets.readers import Examples


@dataclass(frozen=True)
class Dataset:
    """Images as stored, one byte per pixel; mean and std apply to x / 255."""

    name: str
    x_train: Bytes  # [n, channels, height, width]
    y_train: Labels  # [n]
    x_test: Bytes
    y_test: Labels
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Layout(NamedTuple):
    """One way in which a data set may lie on disk; a data set of sites needs no ``read``."""

    folder: str  # below the data folder, or absolute
    train: tuple[str, ...]
    test: tuple[str, ...]
    read: Callable[[SourceInfo, Sequence[Path], int], Examples] | None = None


@dataclass(frozen=True)
class SourceInfo:
    """All that a listing needs, without opening a file."""

    name: str
    description: str
    train: int
    test: int
    class_names: tuple[str, ...]
    shape: tuple[int, ...]
    layouts: tuple[Layout, ...] = ()  # none: the data set comes with a library
    downloads: tuple[Download, ...] = ()
    sites: tuple[str, ...] = ()  # a data set that comes dealt to clients: their names

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(item.url for item in self.downloads)


# --- reading -------------------------------------------------------------------------------------


def load(name: str, data_dir: Path | None = None) -> Dataset:
    """Read a data set, from scikit-learn (digits) or from its files in the data folder."""
    info = source(name)
    if info.sites:
        raise InputError(f"{name} comes in sites and is not dealt to clients", f'write [sites] source = "{name}"')
    if not info.layouts:
        return _dataset(info, *readers().digits())
    folder, layout = _located(info, data_folder(data_dir))
    train = _read(info, layout, folder, layout.train, info.train)
    test = _read(info, layout, folder, layout.test, info.test)
    return _dataset(info, train, test)


def _read(info: SourceInfo, layout: Layout, folder: Path, files: Sequence[str], count: int) -> Examples:
    assert layout.read is not None
    try:
        return layout.read(info, [_on_disk(folder, file) for file in files], count)
    except InputError as error:
        raise InputError(error.message, hint=error.hint.replace("NAME", info.name)) from error


def source(name: str) -> SourceInfo:
    if name in SOURCES:
        return SOURCES[name]
    close = difflib.get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known data sets: {', '.join(SOURCES)}"
    raise InputError(f"there is no data set called '{name}'", hint=hint)


def data_folder(explicit: Path | str | None = None) -> Path:
    """The folder that was asked for, else FEDAPA_DATA, else ~/.cache/fedapa."""
    return Path(explicit or os.environ.get("FEDAPA_DATA") or "~/.cache/fedapa").expanduser()


def locate(name: str, data_dir: Path | None = None) -> Path:
    """The folder where all files of a data set are."""
    return _located(source(name), data_folder(data_dir))[0]


def is_present(name: str, data_dir: Path | None = None) -> bool:
    """Are all files there? (Whether they are sound is known after reading them.)"""
    info, base = source(name), data_folder(data_dir)
    return not info.layouts or any(not _missing(base, layout) for layout in info.layouts)


def _located(info: SourceInfo, base: Path) -> tuple[Path, Layout]:
    """The first layout whose files are all there."""
    for layout in info.layouts:
        if not _missing(base, layout):
            return base / layout.folder, layout
    raise _not_found(info, base)


def _missing(base: Path, layout: Layout) -> list[str]:
    files = layout.train + layout.test
    return [file for file in files if not _on_disk(base / layout.folder, file).is_file()]


def _on_disk(folder: Path, file: str) -> Path:
    """A .gz file may also lie there unpacked."""
    packed, plain = folder / file, folder / file.removesuffix(".gz")
    return plain if plain.is_file() and not packed.is_file() else packed


def _not_found(info: SourceInfo, base: Path) -> InputError:
    """Name the files that are missing from a half-filled folder, else the folders that were tried."""
    where = base / info.layouts[0].folder
    hint = f"run 'fedapa data fetch {info.name}', or put the files into {where}"
    for layout in info.layouts:
        missing = _missing(base, layout)
        if len(missing) < len(layout.train + layout.test):
            return InputError(f"{info.name}: {base / layout.folder} lacks {', '.join(missing)}", hint=hint)
    folders = ", ".join(dict.fromkeys(str(base / layout.folder) for layout in info.layouts))
    return InputError(f"{info.name}: no data files found (looked in {folders})", hint=hint)


def readers() -> Any:
    """The part that needs NumPy, loaded when data is read."""
    return import_module("fedapa.data.datasets.readers")


def _by_reader(reader: str, info: SourceInfo, paths: Sequence[Path], count: int, **options: Any) -> Examples:
    examples: Examples = getattr(readers(), reader)(info, paths, count, **options)
    return examples


def _dataset(info: SourceInfo, train: Examples, test: Examples) -> Dataset:
    # 0.5 / 0.5 is what the released FedAPA code uses for every data set.
    half = (0.5,) * info.shape[0]
    return Dataset(info.name, *train, *test, info.classes, info.class_names, mean=half, std=half)


# --- fetching ------------------------------------------------------------------------------------


def fetch(name: str, data_dir: Path | None = None, progress: bool = True) -> Path:
    """Download what is missing or damaged; the folder that holds the data set afterwards."""
    info, base = source(name), data_folder(data_dir)
    if not info.downloads or _is_sound(name, base):
        return _located(info, base)[0] if info.layouts else base
    if info.downloads[0].file_name.endswith(".tar.gz"):
        return _fetch_archive(info, base, progress)
    folder = base / info.layouts[0].folder
    for item in info.downloads:
        download(item, folder, progress)
    _check(info, base)
    return folder


def _check(info: SourceInfo, base: Path) -> None:
    """Read all of it once: what can be read is sound."""
    if info.sites:
        import_module("fedapa.data.sites").read_source(info.name, base)
    else:
        load(info.name, base)


def _is_sound(name: str, base: Path) -> bool:
    try:
        _check(source(name), base)
    except InputError:
        return False
    return True


def _fetch_archive(info: SourceInfo, base: Path, progress: bool) -> Path:
    layout = info.layouts[0]
    archive = download(info.downloads[0], base, progress)
    folder = unpack(archive, layout.folder, layout.train + layout.test, partial(load, info.name))
    archive.unlink()
    return folder


# --- the registry --------------------------------------------------------------------------------

_FMNIST_FILES = (
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
_FMNIST_FOLDERS = (
    "FashionMNIST/raw",  # as torchvision lays it out
    "fashion-mnist",
    ".",
    "/usr/share/datasets/fashion-mnist",  # Debian's package dataset-fashion-mnist
)
_FMNIST_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz"
_HEART_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_HEART_SITES = ("cleveland", "hungarian", "switzerland", "va")
_HEART_FILES = tuple(f"processed.{site}.data" for site in _HEART_SITES)
_HEART_FOLDERS = ("heart-disease", "heart_disease", "heart+disease", ".")
_HEART_MD5 = (
    "2d91a8ff69cfd9616aa47b59d6f843db",
    "22e96bee155b5973568101c93b3705f6",
    "9a87f7577310b3917730d06ba9349e20",
    "4249d03ca7711e84f4444768c9426170",
)
_FMNIST_CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""


def _numbered(suffix: str) -> tuple[str, ...]:
    return tuple(f"data_batch_{i}{suffix}" for i in range(1, 6))


SOURCES: dict[str, SourceInfo] = {
    info.name: info
    for info in (
        SourceInfo(
            "digits",
            "handwritten digits, 8 x 8 grey; inside scikit-learn, no download",
            train=1501,
            test=296,
            class_names=tuple("0123456789"),
            shape=(1, 8, 8),
        ),
        SourceInfo(
            "fmnist",
            "Fashion-MNIST: articles of clothing, 28 x 28 grey",
            train=60_000,
            test=10_000,
            class_names=tuple(_FMNIST_CLASSES.split(",")),
            shape=(1, 28, 28),
            layouts=tuple(
                Layout(folder, *_FMNIST_FILES, partial(_by_reader, "idx_pair")) for folder in _FMNIST_FOLDERS
            ),
            downloads=(
                Download(
                    f"{_FMNIST_URL}/train-images-idx3-ubyte.gz",
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                Download(
                    f"{_FMNIST_URL}/train-labels-idx1-ubyte.gz",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                Download(
                    f"{_FMNIST_URL}/t10k-images-idx3-ubyte.gz",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                Download(
                    f"{_FMNIST_URL}/t10k-labels-idx1-ubyte.gz",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            ),
        ),
        SourceInfo(
            "cifar10",
            "CIFAR-10: photos of animals and vehicles, 32 x 32 colour",
            train=50_000,
            test=10_000,
            class_names=tuple(_CIFAR10_CLASSES.split()),
            shape=(3, 32, 32),
            layouts=(
                Layout(
                    "cifar-10-batches-bin",
                    _numbered(".bin"),
                    ("test_batch.bin",),
                    partial(_by_reader, "cifar_binary", label_bytes=1),
                ),
                Layout(
                    "cifar-10-batches-py",
                    _numbered(""),
                    ("test_batch",),
                    partial(_by_reader, "cifar_python", label_key="labels"),
                ),
            ),
            downloads=(Download(f"{_CIFAR_URL}/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        ),
        SourceInfo(
            "cifar100",
            "CIFAR-100: photos of 100 kinds of things, 32 x 32 colour, fine labels",
            train=50_000,
            test=10_000,
            class_names=tuple(_CIFAR100_CLASSES.split()),
            shape=(3, 32, 32),
            layouts=(
                Layout(
                    "cifar-100-binary",
                    ("train.bin",),
                    ("test.bin",),
                    partial(_by_reader, "cifar_binary", label_bytes=2),
                ),
                Layout(
                    "cifar-100-python",
                    ("train",),
                    ("test",),
                    partial(_by_reader, "cifar_python", label_key="fine_labels"),
                ),
            ),
            downloads=(Download(f"{_CIFAR_URL}/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        ),
        SourceInfo(
            "heart-disease",
            "heart disease at four hospitals: 13 columns, missing values; use it as [sites] source",
            train=920,
            test=0,
            class_names=("healthy", "disease"),
            shape=(13,),
            layouts=tuple(Layout(folder, _HEART_FILES, ()) for folder in _HEART_FOLDERS),
            downloads=tuple(
                Download(f"{_HEART_URL}/{file}", md5) for file, md5 in zip(_HEART_FILES, _HEART_MD5, strict=True)
            ),
            sites=_HEART_SITES,
        ),
    )
}
