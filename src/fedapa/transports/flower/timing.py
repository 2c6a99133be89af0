"""How often a site's SuperNode asks for messages and says that it is there; set by the site's environment.

FEDAPA_NODE_POLL       seconds between two polls for messages (3)
FEDAPA_NODE_HEARTBEAT  seconds between two heartbeats at most (30, at least 10). The SuperLink counts a site as offline
                       after twice as long, and lets a killed SuperNode's successor in only then.
"""

from __future__ import annotations

import os

from fedapa.errors import InputError


def seconds(name: str, default: float, least: float) -> float:
    """A setting of the environment."""
    word = os.environ.get(name, "") or str(default)
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not least <= value <= 1800.0:
        raise InputError(f"{name} is {word!r}, not a number of seconds from {least:g} to 1800", f"unset {name}")
    return value


def poll() -> float:
    return seconds("FEDAPA_NODE_POLL", 3.0, 0.05)


def heartbeat() -> float:
    return seconds("FEDAPA_NODE_HEARTBEAT", 30.0, 10.0)  # Flower's SuperLink takes nothing shorter
