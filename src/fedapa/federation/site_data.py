"""The data that a site takes part with: its own files, or for trials a share of a built-in data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedapa.config.experiment import load_data, load_own
from fedapa.config.load import load
from fedapa.config.sections import Config
from fedapa.data.federated import Federated
from fedapa.data.sites import Own
from fedapa.data.sources import OWN
from fedapa.federation.messages import Refused

Share = Callable[[Config], Federated]  # the site's own data, as a federation of one


def shared_data(number: int) -> Share:
    """Share ``number`` of a built-in data set that the run's config names; for trials."""

    def share(config: Config) -> Federated:
        if (named := _named_file(config)) is not None:
            raise Refused(f"the run's config names files at this site: {named}", "fedapa site join KIT --data FILE")
        if config.data.source == OWN:
            hint = "fedapa site join KIT --data FILE"
            raise Refused("this run is on the sites' own data, and this site joined with none", hint)
        return _only(load_data(config, config.seeds[0]), number)

    return share


def _named_file(config: Config) -> str | None:
    """The first key of a config that names a file or folder. Only the site decides which of its files are read."""
    sites, data = config.sites, config.data
    named = {
        "sites.files": sites is not None and bool(sites.files),
        "sites.schema_file": sites is not None and sites.schema_file is not None,
        "data.data_dir": data.data_dir is not None,
        "data.partition": data.partition.endswith(".npz"),
        "data.source": data.source.endswith(".npz"),
    }
    return next((key for key, is_named in named.items() if is_named), None)


def own_data(path: Path, number: int) -> Share:
    """The data named by a config at the site, regardless of the run's config: its only share, or ``number``."""

    def share(config: Config) -> Federated:
        own = own_rows(path, config)
        data = load_data(load(str(path)), config.seeds[0]) if own is None else own.data
        return _only(data, number if len(data.clients) > 1 else 0)

    return share


def own_rows(path: Path, config: Config) -> Own | None:
    """The files of a config at the site, read by the layout of the run; None where it names none."""
    mine = load(str(path))
    return None if mine.sites is None else load_own(mine.model_copy(update={"layout": config.layout}), config.seeds[0])


def _only(data: Federated, number: int) -> Federated:
    if not 0 <= number < len(data.clients):
        raise Refused(f"there is no share {number} among {len(data.clients)}", "join with another --share")
    return replace(data, clients=(data.clients[number],))
