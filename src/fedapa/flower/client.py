"""The ClientApp: a request becomes a visit of the site whose folder the node is configured with."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapa.flower import letters
from fedapa.flower.letters import Ask, Terms
from fedapa.flower.pack import Unsound, pack, unpack
from fedapa.flower.site import Site

SITE = "site"  # the key of a node's configuration that names the site's folder


@lru_cache(maxsize=64)
def open_site(folder: str) -> Site:
    return Site.open(Path(folder))


def train(message: Message, context: Context) -> Message:
    """A visit, with or without training."""
    site, content = open_site(str(context.node_config[SITE])), message.content
    terms, ask = letters.read(Terms, content.get("terms")), letters.read(Ask, content.get("ask"))
    answer, up = site.visit(terms, ask, unpack(content.get("down")))
    return _reply(message, RecordDict({"answer": letters.write(answer), "up": pack(up or {})}))


def query(message: Message, context: Context) -> Message:
    """What the site says about its data."""
    asked: Any = message.content.get("describe")
    if not isinstance(asked, dict) or not isinstance(asked.get("config"), str):
        raise Unsound("it holds no config")
    site = open_site(str(context.node_config[SITE]))
    found = site.describe(asked["config"], str(asked.get("site")))
    return _reply(message, RecordDict({"description": letters.write(found)}))


def _reply(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


app = ClientApp()
app.train()(train)
app.query()(query)
