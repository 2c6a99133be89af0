"""The ClientApp: a request becomes a visit of the site whose folder the node is configured with."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapa.federation import messages
from fedapa.federation.kit import KIT
from fedapa.federation.messages import Question, Terms, TrainRequest, plain
from fedapa.federation.site_agent import Site
from fedapa.federation.site_status import complain, note
from fedapa.transports.flower.serialization import pack, unpack

SITE = "site"  # the key of a node's configuration that names the site's folder


@lru_cache(maxsize=64)
def open_site(folder: Path) -> Site:
    return Site.open(folder)


def folder_of(context: Context) -> Path:
    """The folder of the node's site; in Flower's simulation, chosen by the partition's number below FEDAPA_SITES."""
    if SITE in context.node_config:
        return Path(str(context.node_config[SITE]))
    folders = sorted(path.parent for path in Path(os.environ["FEDAPA_SITES"]).glob(f"*/{KIT}"))
    return folders[int(str(context.node_config["partition-id"]))]


def train(message: Message, context: Context) -> Message:
    """Answer a request to train or to evaluate."""
    folder, content = folder_of(context), message.content
    terms, ask = messages.read(Terms, content.get("terms")), messages.read(TrainRequest, content.get("ask"))
    site = open_site(folder)
    answer, up = site.visit(terms, ask, unpack(content.get("down")))
    fault = plain(site.reason or answer.fault, 1000) if answer.fault else ""  # in full, in the site's own log only
    note(folder, state="ready", run=plain(terms.run), round=ask.round + 1, trained=answer.trained, fault=fault)
    if fault:
        complain(f"round {ask.round + 1} of run {plain(terms.run)}: {fault}")
    return _reply(message, RecordDict({"answer": ConfigRecord(messages.write(answer)), "up": pack(up or {})}))


def query(message: Message, context: Context) -> Message:
    """Describe the site's data."""
    asked = messages.read(Question, message.content.get("question"))
    folder = folder_of(context)
    found = (site := open_site(folder)).describe(asked.config, asked.site)
    if found.fault:
        fault = plain(site.reason, 1000)
        note(folder, fault=fault)
        complain(f"cannot take part in a run: {fault}")
    return _reply(message, RecordDict({"description": ConfigRecord(messages.write(found))}))


def _reply(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


app = ClientApp()
app.train()(train)
app.query()(query)
