"""Other machines over ssh, which need this package and a key without a passphrase prompt, and nothing that listens."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from fedapa.errors import InputError
from fedapa.sweep import parcel
from fedapa.sweep.dispatch import Lost
from fedapa.sweep.parcel import Item, Parcel
from fedapa.sweep.pool import Event

OPTIONS = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")


class SshPlace:
    """One process on a host. The parcel goes in by standard input, lines of JSON come back."""

    def __init__(self, host: str, number: int, python: str) -> None:
        self.name, self._host = f"{host} {number}", host
        self._command = f"{shlex.quote(python)} -P -m {__name__}"
        self._process: subprocess.Popen[str] | None = None

    def play(self, sent: Parcel) -> Iterator[Item]:
        command = ["ssh", *OPTIONS, "--", self._host, self._command]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                process.stdin.write(to_line(sent))
                process.stdin.close()
                for line in process.stdout:
                    yield from_line(line)
                raise Lost(process.stderr.read().strip().rpartition("\n")[2] or f"code {process.wait()}")
            except (BrokenPipeError, ValueError) as error:
                raise Lost(process.stderr.read().strip().rpartition("\n")[2] or str(error)) from error
            finally:
                process.kill()
                self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()


def places(hosts: Sequence[str], settings: Mapping[str, str], jobs: int | None) -> Sequence[SshPlace]:
    """``HOST`` or ``HOST*PLACES``; at most ``jobs`` places in all, the hosts in turn."""
    if unknown := settings.keys() - {"python"}:
        raise InputError(f"ssh has no setting {sorted(unknown)[0]!r}", "it has python=PATH, the interpreter there")
    counts = [_count(host) for host in hosts]
    python = settings.get("python", "python3")
    by_turn = [
        SshPlace(host, number, python)
        for number in range(1, 1 + max(count for _, count in counts))
        for host, count in counts
        if number <= count
    ]
    return by_turn[:jobs]


def _count(host: str) -> tuple[str, int]:
    name, star, count = host.partition("*")
    if not name or name.startswith("-") or (star and not (count.isdigit() and int(count) > 0)):
        raise InputError(f"{host!r} is not a host", "write HOST or HOST*PLACES, for example ssh:anna*4,ben")
    return name, int(count or 1)


# -------------------------------------------------------------------------------------------------------- the wire


def to_line(item: Item | Parcel) -> str:
    if isinstance(item, bytes):
        return json.dumps({"folder": _text(item)}) + "\n"
    if isinstance(item, Parcel):
        return json.dumps({"path": item.path, "token": item.token, "content": _text(item.content)}) + "\n"
    return json.dumps({"event": [str(item.path), item.what, item.round, item.text]}) + "\n"


def from_line(line: str) -> Item:
    found = json.loads(line)
    if "folder" in found:
        return base64.b64decode(found["folder"])
    path, what, round, text = found["event"]
    return Event(Path(path), what, round, text)


def parcel_of(line: str) -> Parcel:
    found = json.loads(line)
    return Parcel(found["path"], found["token"], base64.b64decode(found["content"]))


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def serve(lines: Iterable[str], out: IO[str]) -> None:
    """At the host: play the parcel of the first line."""
    for line in lines:
        for item in parcel.play(parcel_of(line)):
            out.write(to_line(item))
            out.flush()
        return


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
