"""Which local user is at the other end of a connection; works on Linux, which shows the owner of a socket."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Address = tuple[str, int]
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ROOT = 0


def can_tell() -> bool:
    return TABLES[0].exists()


def is_ours(peer: Address, own: Address) -> bool:
    """Does the socket at ``peer`` that is connected to ``own`` belong to this user or to root? Where the
    system does not show it, every local user is trusted."""
    return not can_tell() or owner(peer, own) in (os.geteuid(), ROOT)


class Callers:
    """Who makes a request, asked once per connection: the table of a machine with many connections is long.

    A server gives every request of a connection the same ``client``, which is kept here: no other one is taken for it.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most, self._known = most, dict[int, tuple[object, bool]]()

    def is_us(self, scope: Mapping[str, Any]) -> bool:
        """Does a request, as ASGI describes it, come from this user or from root? The server must not take the caller's
        word for where it comes from (uvicorn's ``proxy_headers``)."""
        client, server = scope.get("client"), scope.get("server")
        if client is None or server is None:
            return False
        known = self._known.get(id(client))
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(client)] = client, is_ours((client[0], client[1]), (server[0], server[1]))
        return known[1]


def owner(peer: Address, own: Address) -> int | None:
    """The user who holds the socket at ``peer``; None where nobody does. One that was closed at once after its request
    is listed under root, without an inode: it belongs to nobody."""
    ends = {(one, other) for one, other in zip(_spelled(peer), _spelled(own), strict=True)}
    for local, remote, user, inode in _sockets():
        if (local, remote) in ends and inode:
            return user
    return None


def _sockets() -> Iterator[tuple[str, str, int, int]]:
    for table in TABLES:
        if table.exists():
            for line in table.read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                yield words[1], words[2], int(words[7]), int(words[9])


def _spelled(address: Address) -> list[str]:
    """As the tables write it: words of the host's byte order; an IPv4 address may also stand in the table of IPv6."""
    ip = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    plain = mapped or ip
    packed = [plain.packed]
    packed.append(ipaddress.IPv6Address(f"::ffff:{plain}").packed if plain.version == 4 else plain.packed)
    return [f"{_words(one)}:{address[1]:04X}" for one in packed]


def _words(packed: bytes) -> str:
    words = (int.from_bytes(packed[k : k + 4], sys.byteorder) for k in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words)
