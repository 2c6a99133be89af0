"""One run played somewhere else: its folder travels packed, unless the file system is shared.

``play`` runs there and yields what happens; ``receive`` runs here. A place that dies in the middle loses what it played
since it began the run on its own disk; on a shared file system it loses nothing.
"""

from __future__ import annotations

import io
import queue
import secrets
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedapa.store.run_folder import CONFIG, lock
from fedapa.sweep import pool
from fedapa.sweep.pool import ENDS, Event

TOKEN = ".sender"
LEFT_OUT = (".lock", TOKEN)


class Parcel(NamedTuple):
    """A run folder on its way."""

    path: str  # of the folder at the sender
    token: str  # in the folder's file ``TOKEN``: who can read it shares the file system
    content: bytes


Item = Event | bytes  # what happens, or the packed folder, just before the run ends


def send(path: Path, shared: bool | None = None) -> Parcel:
    """``shared`` = False does not let the receiver use the folder itself."""
    path, token = path.resolve(), secrets.token_hex(16)
    if shared is not False:
        (path / TOKEN).write_text(token, encoding="ascii")
    return Parcel(str(path), token, pack(path))


def play(parcel: Parcel) -> Iterator[Item]:
    """Play the run and yield what happens; at the end its folder, unless it was played in place."""
    with _folder(parcel) as folder:
        for event in _events(folder):
            if event.what in ENDS and str(folder) != parcel.path:
                yield pack(folder)
            yield event._replace(path=Path(parcel.path))


def receive(item: Item, path: Path) -> Event | None:
    """Unpack a folder into its place; events pass."""
    if isinstance(item, Event):
        return item._replace(path=path)
    unpack(item, path)
    return None


@contextmanager
def _folder(parcel: Parcel) -> Iterator[Path]:
    path = Path(parcel.path)
    if _is_shared(parcel):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fedapa-") as top:
        folder = Path(top) / path.name
        unpack(parcel.content, folder)
        yield folder


def _is_shared(parcel: Parcel) -> bool:
    try:
        return (Path(parcel.path) / TOKEN).read_text(encoding="ascii") == parcel.token
    except (OSError, UnicodeDecodeError):
        return False


def _events(folder: Path) -> Iterator[Event]:
    """The run is played in a thread, so that its events can be handed on while it goes on."""
    said: queue.Queue[Event] = queue.Queue()
    threading.Thread(target=pool.play_one, args=(folder, lambda *event: said.put(Event(*event))), daemon=True).start()
    while (event := said.get()).what not in ENDS:
        yield event
    yield event


# ---------------------------------------------------------------------------------------------------------- packing


def pack(path: Path) -> bytes:
    """The folder's files; locks and temporary files stay."""
    kept = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_left_out(file)]
    with io.BytesIO() as memory:
        with tarfile.open(fileobj=memory, mode="w") as tar:
            for file in kept:
                tar.add(file, str(file.relative_to(path)), recursive=False)
        return memory.getvalue()


def _is_left_out(file: Path) -> bool:
    return file.name in LEFT_OUT or file.name.endswith((".mapped", ".tmp"))


def unpack(content: bytes, path: Path) -> None:
    """Put the packed files in the place of the folder's; ``filter`` keeps a foreign archive inside it."""
    fresh = path.with_name(f".{path.name}.incoming")
    shutil.rmtree(fresh, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(fresh, filter="data")
    if not (fresh / CONFIG).is_file():
        raise ValueError(f"the archive of {path.name} holds no {CONFIG}")
    if path.exists():
        with closing(lock(path)):
            shutil.rmtree(path)
    fresh.rename(path)
