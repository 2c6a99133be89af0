"""The ClientApp: a request becomes a visit of the site whose folder the node is configured with."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapa.federation import messages
from fedapa.federation.kit import KIT
from fedapa.federation.messages import Question, Terms, TrainRequest
from fedapa.federation.site_agent import Site
from fedapa.federation.site_status import complain, note
from fedapa.transports.flower.serialization import pack, unpack

SITE = "site"  # the key of a node's configuration that names the site's folder


@lru_cache(maxsize=64)
def open_site(folder: Path) -> Site:
    return Site.open(folder)


def folder_of(context: Context) -> Path:
    """Where the node's site lives; in Flower's simulation, by the partition's number among FEDAPA_SITES."""
    if SITE in context.node_config:
        return Path(str(context.node_config[SITE]))
    folders = sorted(path.parent for path in Path(os.environ["FEDAPA_SITES"]).glob(f"*/{KIT}"))
    return folders[int(str(context.node_config["partition-id"]))]


def train(message: Message, context: Context) -> Message:
    """A visit, with or without training."""
    folder, content = folder_of(context), message.content
    terms, ask = messages.read(Terms, content.get("terms")), messages.read(TrainRequest, content.get("ask"))
    answer, up = open_site(folder).visit(terms, ask, unpack(content.get("down")))
    facts = {"run": terms.run, "round": ask.round + 1, "trained": answer.trained, "fault": answer.fault}
    note(folder, state="ready", **facts)
    if answer.fault:
        complain(f"round {ask.round + 1} of run {terms.run}: {answer.fault}")
    return _reply(message, RecordDict({"answer": ConfigRecord(messages.write(answer)), "up": pack(up or {})}))


def query(message: Message, context: Context) -> Message:
    """What the site says about its data."""
    asked = messages.read(Question, message.content.get("question"))
    found = open_site(folder_of(context)).describe(asked.config, asked.site)
    return _reply(message, RecordDict({"description": ConfigRecord(messages.write(found))}))


def _reply(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


app = ClientApp()
app.train()(train)
app.query()(query)
