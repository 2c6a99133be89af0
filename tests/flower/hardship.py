"""What befalls a machine: a pulled cable, a disk that fills up, another user of it. All are real, and need root."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
TOOLS = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Network:
    """A network namespace with one cable to this machine, whose end here has the address ``host``."""

    name: str
    host: str

    @property
    def within(self) -> list[str]:
        """Put before a command, it runs there."""
        return [_ip(), "netns", "exec", self.name]

    def pull(self) -> None:
        _do("-n", self.name, "link", "set", "site", "down")

    def plug(self) -> None:
        _do("-n", self.name, "link", "set", "site", "up")


@contextmanager
def network() -> Iterator[Network]:
    """PermissionError or FileNotFoundError where this machine does not allow it."""
    number = os.getpid() % 4000
    made = Network(f"fedapa-{number}", f"10.213.{number // 64}.{4 * (number % 64) + 1}")
    cable = f"fedapa{number}"
    _do("netns", "add", made.name)
    try:
        _do("link", "add", cable, "type", "veth", "peer", "name", "site", "netns", made.name)
        _do("addr", "add", f"{made.host}/30", "dev", cable)
        _do("link", "set", cable, "up")
        far = made.host.rpartition(".")[0] + f".{4 * (number % 64) + 2}"
        _do("-n", made.name, "addr", "add", f"{far}/30", "dev", "site")
        for device in ("lo", "site"):
            _do("-n", made.name, "link", "set", device, "up")
        yield made
    finally:
        with suppress(OSError):
            _do("netns", "del", made.name)  # the cable goes with it, once nobody is left in there


@dataclass(frozen=True)
class Disk:
    folder: Path

    def fill(self) -> None:
        """To the last byte."""
        block = bytes(4096)
        with suppress(OSError), open(self.folder / "ballast", "ab", buffering=0) as file:
            while file.write(block) == len(block):
                pass

    def free(self) -> None:
        (self.folder / "ballast").unlink()


@contextmanager
def disk(folder: Path, megabytes: int) -> Iterator[Disk]:
    """A disk of its own for what is in a folder. PermissionError where this machine does not allow it."""
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir(mode=0o700)
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "fedapa-test", str(folder))
    except OSError:
        folder.rmdir()
        aside.rename(folder)
        raise
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield Disk(folder)
    finally:
        _run("umount", "--lazy", str(folder))
        folder.rmdir()
        aside.rename(folder)


def acting_as(user: int, work: Callable[[], bytes]) -> str:
    """What a process finds out that becomes another user; nothing if it fails."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(user, user, user)
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as told:
        answer = told.read().decode()
    os.waitpid(child, 0)
    return answer


def _ip() -> str:
    found = shutil.which("ip", path=TOOLS)
    if found is None:
        raise FileNotFoundError("there is no `ip` (apt-get install iproute2)")
    return found


def _do(*words: str) -> None:
    _run(_ip(), *words)


def _run(*command: str) -> None:
    if os.geteuid() != 0:
        raise PermissionError(f"{command[0]} needs root")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(f"{' '.join(command)}: {done.stderr.strip()}")
