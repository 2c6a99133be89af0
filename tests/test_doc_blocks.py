"""Every command and every Python block of the pages is run as it stands there, in a folder per page.

What the pages name is there, in small: CIFAR-10 has 12,000 images, a preset one round of three clients, experiments/ a
board of digits. `make test` runs what takes seconds, `make test-docs` the rest as well: the demo as it is shipped,
trials, servers, federations of processes, which expect a whole CIFAR-10. NEVER lists what is not run, and why.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tomli_w

import fedapa as fa
import hospitals
from command import SMALL, Call, started
from data import files
from fedapa.config import presets
from fedapa.config.experiment import execute
from fedapa.config.grid import load_scenarios
from fedapa.federation import processes
from fedapa.federation.site_settings import IN_A_KIT
from fedapa.sweep import runner

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WHOLE = bool(os.environ.get("FEDAPA_DOCS"))

# What is not run, by the beginning of the line, and why.
NEVER = {
    "git clone ": "the network; make test-container installs this tree in an empty environment",
    "pip install ": "the network; see git clone",
    "podman build ": "a builder of images; make test-container runs the steps of the recipe",
    "podman volume ": "podman",
    "podman cp ": "podman",
    "fedapa data fetch ": "the network; tests/data/test_fetch.py fetches from a server on this machine",
    "fedapa site join KIT": "a kit; start-coordinator.md and deploy.md have some",
    "fedapa run CONFIG --device cuda": "a GPU; tests/task/test_devices.py pretends to have one",
    "fedapa sweep mine.toml --out runs/mine --on ": "other machines; see tests/sweep/test_places.py",
    "fedapa resume runs/mine --on ray": "a Ray cluster; tests/sweep/test_ray_cluster.py starts one",
}

# What `make test-docs` alone runs, and why.
LATER = {
    "fedapa coordinator start": "processes",
    "fedapa coordinator status": "a federation that is going",
    "fedapa coordinator run": "a federation that is going",
    "fedapa site join": "processes",
    "fedapa site status": "a federation that is going",
    "fedapa site export kits/": "the end of a federation",
    "fedapa predict kits/": "the end of a federation",
    "fedapa compare runs/first": "the end of a federation",
    "fedapa watch": "a server",
    "fedapa bench": "a minute",
    "fedapa tune": "forty trials",
    "fedapa sweep": "processes",
    "fedapa plan cifar10-dirichlet --method all": "a minute",
    "python experiments/tables.py": "seconds; tests/test_experiments.py makes the tables, too",
}

# What is added to a command so that it ends here, and soon.
ADDED = {
    "fedapa bench": ["--quick"],
    "fedapa coordinator init": ["--proxy-port", "0", "--port", str(processes.free_port()), "--host", "127.0.0.1"],
    "fedapa coordinator start": ["--detach"],
    "fedapa silo run": ["--no-baselines", "--deliver-anyway", "--seeds", "1", "--set", "run.rounds=2"],
    "fedapa site join": ["--detach"],
    "fedapa theory": ["--repeats", "1", "--rounds", "2"],
    "fedapa tune": ["--set", "run.rounds=1"],
}


class Line(NamedTuple):
    machine: str  # before the prompt: coordinator, clinic-a, or nothing
    text: str

    def begins(self, beginnings: dict[str, object]) -> str | None:
        return next((start for start in beginnings if self.text.startswith(start)), None)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S)


def lines(page: Path) -> list[Line]:
    """Commands of the page in their order; what podman runs inside a container is a command of ours."""
    found = []
    for block in blocks(page, "console"):
        for machine, text in re.findall(r"^ *([\w-]*)\$ (.*)$", block, re.M):
            command = re.sub(r"^podman (?:run|exec) .*?(?=fedapa )", "", re.split(r"\s+# ", text)[0])
            found.append(Line(machine, command))
    return found


def test_every_line_of_a_console_is_a_command() -> None:
    for page in PAGES:
        for block in blocks(page, "console"):
            assert all(re.match(r" *[\w-]*\$ ", line) for line in block.splitlines()), f"{page.name}: {block}"


def test_nothing_is_excused_that_no_page_shows() -> None:
    shown = [line for page in PAGES for line in lines(page)]
    for start in (*NEVER, *LATER, *ADDED, *BEFORE):
        assert any(line.text.startswith(start) for line in shown), start


# --- what a reader has by then -------------------------------------------------------------------------------------

BOARD = f'seeds = [0, 1, 2]\n{SMALL}\n[scenario]\ndigits.data = {{ source = "digits" }}\n'
LOAD = """

def load():
    import numpy as np
    random = np.random.default_rng(0)
    x, y = random.integers(1, 40, (1800, 12)), random.integers(0, 10, 1800)
    return x[:1400], y[:1400], x[1400:], y[1400:]
"""


def furnish(folder: Path, machine: str) -> None:
    """A folder with the examples of a clone, own files, and small experiments in place of those that take hours."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    method = (ROOT / "examples" / "my_method.py").read_text(encoding="utf-8")
    (folder / "my_method.py").write_text(method)
    (folder / "my.py").write_text(method.replace("class HalfWay", "class MyMethod") + LOAD)
    (folder / "experiments" / "results").mkdir(parents=True)
    (folder / "experiments" / "tables.py").symlink_to(ROOT / "experiments" / "tables.py")
    for path in ("experiments/recipes.toml", "experiments/table1.toml"):
        (folder / path).write_text(BOARD)
    (folder / "mine.toml").write_text(SMALL)
    (folder / "silo.toml").write_text(hospitals.CONFIG)
    for seed, name in enumerate(("north", "south", "west", "new", "mine")):
        hospitals.write_hospital(folder / f"{name}.csv", 60, seed + 10 * len(machine))
    tables = {name: (folder / f"{name}.csv").read_text().splitlines() for name in ("north", "south")}
    rows = [f"{row},{name}" for name, table in tables.items() for row in table[1:]]
    (folder / "all.csv").write_text("\n".join([f"{tables['north'][0]},hospital", *rows]) + "\n")
    for k, name in enumerate(("leeds", "york")):  # times until an event
        rows = [f"{(7 * j + k) % 97 + 1},{'yes' if j % 3 else 'no'},{j % 11 + 0.5}" for j in range(60)]
        (folder / f"{name}.csv").write_text("\n".join(["days,died,age", *rows]) + "\n")


SHIPPED = presets.text


def shortened(name: str) -> str:
    """One round of three clients; the four hospitals are two of ours. Under `make test-docs` the demo is as shipped."""
    if name == "heart-disease":
        return hospitals.CONFIG
    if name == "demo" and WHOLE:
        return SHIPPED(name)
    few = {
        "rounds": "1",
        "epochs": "1",
        "min_train": "",
        "min_test": "",
        "clients": "3\nmin_train = 20\nmin_test = 5\nsubset = 300",
    }
    kept = [
        f"{key} = {few[key]}" if (key := line.partition(" = ")[0]) in few else line
        for line in SHIPPED(name).splitlines()
    ]
    return "\n".join(line for line in kept if not line.endswith(" = ")) + "\n"


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The canonical files, with 2,000 images each instead of 10,000 where no other process reads them."""
    top = tmp_path_factory.mktemp("data")
    (top / "cifar-10-batches-bin").mkdir()
    images = 10_000 if WHOLE else 2_000
    content = files.binary_records(files.pixels(images, 3, 32, 32), files.cifar_labels(images, 10))
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (top / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(content)
    return top


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, fedapa: Call, tmp_path: Path, cifar10: Path) -> Iterator[Reader]:
    if not WHOLE:
        files.shrink(monkeypatch, "cifar10", 10_000, 2_000)
    monkeypatch.setenv("FEDAPA_DATA", str(cifar10))
    monkeypatch.setattr("click.launch", lambda address: None)
    monkeypatch.setattr(presets, "text", shortened)
    reader = Reader(tmp_path / "reader", fedapa, monkeypatch)
    yield reader
    reader.leave()


class Reader:
    """Does what a page says; each machine that it names is a folder."""

    def __init__(self, home: Path, fedapa: Call, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.fedapa, self.monkeypatch, self.joined = home, fedapa, monkeypatch, list[Path]()

    def at(self, machine: str) -> Path:
        folder = self.home / machine
        if not (folder / "my.py").exists():
            furnish(folder, machine)
        self.monkeypatch.chdir(folder)
        return folder

    def call(self, text: str) -> None:
        program, *words = shlex.split(text)
        if program != "fedapa":
            subprocess.run(
                [sys.executable if program == "python" else program, *words], check=True, capture_output=True
            )
        elif words[0] == "watch":
            watch(words)
        else:
            answer = self.fedapa(*words)
            assert answer.code == 0, f"{text}: {answer.err}"

    def does(self, line: Line) -> None:
        if line.begins(NEVER) or (line.begins(LATER) and not WHOLE):
            return
        self.at(line.machine)
        if start := line.begins(BEFORE):
            BEFORE[start](self, line)
        words = [*shlex.split(line.text), *ADDED.get(line.begins(ADDED) or "", [])]
        self.call(shlex.join(words))

    def leave(self) -> None:
        for kit in self.joined:
            self.fedapa("site", "leave", kit)
        for settings in self.home.rglob("coordinator.toml"):
            self.fedapa("coordinator", "stop", "--dir", settings.parent)


def watch(words: list[str]) -> None:
    with started(*words) as process:
        assert process.stdout is not None
        assert "watching" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def board_runs(reader: Reader, line: Line) -> None:
    """Runs of an own method on the board, made in this process."""
    runs = Path("runs/mine")
    board = load_scenarios("experiments/recipes.toml", ['methods=["my.py:MyMethod"]'])
    for run in runner.lay_out_all(list(board.items()), runs):
        execute(run)


def silo_runs(reader: Reader, line: Line) -> None:
    """What `silo run` left, where the page has it."""
    shutil.rmtree("runs/mine", ignore_errors=True)
    reader.call("fedapa silo run silo.toml --no-baselines --deliver-anyway --seeds 1 --out runs/mine")
    shutil.copytree("runs/mine/sites", "sites", dirs_exist_ok=True)


def two_sites(reader: Reader, line: Line) -> None:
    """The description that `data inspect` made of two files."""
    reader.call("fedapa data inspect north.csv south.csv --label outcome --out site.toml --force")


def one_site(reader: Reader, line: Line) -> None:
    """A site's own description, and the config of the run that it is asked to join."""
    if " --site " in line.text:
        return two_sites(reader, line)
    config = shlex.split(line.text)[3]
    if config == "site.toml" or not Path(config).read_text().count("[sites]"):
        reader.call(f"fedapa data inspect mine.csv --label outcome --out {config} --force")
    if "--run" in line.text and not sent(reader, "federation.toml"):
        reader.call(f"fedapa site schema {config} --out a.json")
        reader.call("fedapa coordinator new-config a.json")
    return None


def sent(reader: Reader, name: str) -> bool:
    """A file that another machine of the page made is sent here."""
    for path in reader.home.glob(f"*/{name}"):
        if path.resolve() != Path(name).resolve():
            shutil.copy(path, name)
    return Path(name).exists()


def proposals(reader: Reader, line: Line) -> None:
    assert sent(reader, "a.json")
    assert sent(reader, "b.json")


def no_description(reader: Reader, line: Line) -> None:
    """The page makes it, perhaps in a second way."""
    for name in ("site.toml", "mine.toml"):
        Path(name).unlink(missing_ok=True)


def own_key(reader: Reader, line: Line) -> None:
    """The page's other way to enrol clinic-a, at another coordinator: there the name is free."""
    reader.at("another")
    reader.call("fedapa coordinator init")
    shutil.copy("../clinic-a/kit/site.pub", "site.pub")


def kit_arrives(reader: Reader, line: Line) -> None:
    shutil.copytree("../another/kits/clinic-a", "received")


def join_all(reader: Reader, line: Line) -> None:
    """Every enrolled site gets its kit and joins with what it has."""
    here = Path.cwd()
    for kit in sorted(reader.home.glob("coordinator/kits/*")) or sorted(here.glob("kits/*")):
        folder = reader.at(kit.name if line.machine else "")
        if line.machine:
            shutil.copytree(kit, folder / "kits" / kit.name)
            reader.call("fedapa data inspect mine.csv --label outcome --out mine.toml --force")
        data = ["--data", "mine.toml"] if line.machine else []
        if folder != here:
            reader.call(shlex.join(["fedapa", "site", "join", f"kits/{kit.name}", *data, "--detach"]))
        reader.joined.append(folder / "kits" / kit.name)
    reader.monkeypatch.chdir(here)


def agreed(reader: Reader, line: Line) -> None:
    """The config of the run: what the sites agreed on, or digits; all sites are there."""
    config = Path(shlex.split(line.text)[3])
    kits = [path for path in sorted(Path("kits").iterdir()) if path.is_dir()]
    if Path("federation.toml").exists():  # each site is held to every key of it
        config.write_text(Path("federation.toml").read_text())
    else:
        table = tomllib.loads(SMALL)
        table |= {"methods": ["local", "fedapa"], "seeds": [0], "federation": {"min_sites": len(kits)}}
        table["data"]["clients"], table["run"]["rounds"] = len(kits), 2
        config.write_text(tomli_w.dumps(table))
    for kit in kits if not reader.joined else ():
        reader.call(f"fedapa site join {kit} --detach")
        reader.joined.append(kit.resolve())


def left_again(reader: Reader, line: Line) -> None:
    """The page's site has joined already, so that the coordinator's run could end."""
    for kit in reader.joined:
        reader.fedapa("site", "leave", kit)
    made_here = [path.name for path in Path("kits/clinic-a").iterdir() if path.name not in IN_A_KIT]
    shutil.copytree("kits/clinic-a", "kit", ignore=shutil.ignore_patterns(*made_here))
    reader.joined.append(Path("kit").resolve())


def delivered(reader: Reader, line: Line) -> None:
    end = time.monotonic() + 600
    while not Path("kits/clinic-a/site-model/model.json").exists():
        assert time.monotonic() < end, "no model was delivered"
        time.sleep(1)


BEFORE: dict[str, Callable[[Reader, Line], None]] = {
    "fedapa submit runs/mine": board_runs,
    "fedapa predict runs/mine": silo_runs,
    "fedapa predict sites/": silo_runs,
    "fedapa data inspect": no_description,
    "fedapa cp cifar10-dirichlet mine.toml": no_description,
    "fedapa silo run site.toml": two_sites,
    "fedapa site dry-run": one_site,
    "fedapa site schema": one_site,
    "fedapa coordinator new-config": proposals,
    "fedapa coordinator add-site clinic-a --public-key": own_key,
    "cp received/": kit_arrives,
    "fedapa site join kits/": join_all,
    "fedapa site join kit ": left_again,
    "fedapa coordinator run": agreed,
    "fedapa predict kits/": delivered,
}


# --- the pages -----------------------------------------------------------------------------------------------------


METHOD = re.compile(r"fedapa run cifar10-dirichlet --method (?:local,)?([\w-]+)")  # of the pages of methods
OVERVIEW = "commands.md"
SHOWN_ELSEWHERE = {line for page in PAGES if page.name != OVERVIEW for line in lines(page)}


def is_of_a_method(page: Path) -> bool:
    return page.parent.name == "methods"


@pytest.mark.filterwarnings(
    "ignore:'click.utils:DeprecationWarning",  # two of Flower's own
    "ignore:GitWildMatchPattern:DeprecationWarning",
    "ignore:Exception ignored in. <function Popen:pytest.PytestUnraisableExceptionWarning",  # detached on purpose
)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if lines(page) and not is_of_a_method(page)], ids=lambda page: page.stem
)
def test_commands_of_a_page(page: Path, reader: Reader) -> None:
    """The overview repeats commands of other pages, where they have been run."""
    for line in lines(page):
        if WHOLE or page.name != OVERVIEW or line not in SHOWN_ELSEWHERE:
            reader.does(line)


def test_commands_of_the_pages_of_methods(reader: Reader) -> None:
    """All are made by one template: the methods run as one command, beside one Local."""
    shown = {page.stem: line for page in PAGES if is_of_a_method(page) for line in lines(page)}
    for name, line in shown.items():
        found = METHOD.fullmatch(line.text)
        assert found is not None, line
        assert found[1] == name
    names = ["local", *(name for name in shown if name != "local")]
    reader.does(Line("", f"fedapa run cifar10-dirichlet --method {','.join(names)} --seeds 1"))


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((count, 3, 32, 32), dtype=np.float32), np.arange(count) % 10


GIVEN = {"models.md": {"fa": fa, "clients": [(*images(48), *images(10))] * 5}}  # what a block takes as made
SHORTER = {"README.md": ("rounds=20", "rounds=2"), "models.md": ('"resnet18"', '"mlp"')}  # not under `make test-docs`


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_python_of_a_page(page: Path, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    reader.at("")
    for code in blocks(page, "python"):
        shown = code if WHOLE else code.replace(*SHORTER.get(page.name, ("", "")))
        exec(compile(shown, page.name, "exec"), dict(GIVEN.get(page.name, {})))
    said = capsys.readouterr().out
    if page.name == "README.md":
        (printed,) = blocks(page, "text")
        assert (
            said == printed
            if WHOLE
            else [line.split()[0] for line in said.splitlines()] == ["local", "fedavg", "fedapa"]
        )
    elif page.name == "coming-from-other-libraries.md":
        assert "over local" in said
        assert "ClientRow(client=0" in said
