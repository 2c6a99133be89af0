"""Every method through the real ClientApp = the in-process run, bit for bit; states on disk are what was accepted."""

import pytest
from fleet import (
    NAMES,
    Direct,
    client_digests,
    config_text,
    grid,
    in_process,
    make_sites,
    over_grid,
    scores,
    server_digest,
    terms_of,
)  # fmt: skip

from fedapa.federation.site_store import Store
from fedapa.methods.catalogue import METHODS


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_as_in_process(method, tmp_path):
    terms = terms_of(config_text(method))
    transport = grid(Direct(make_sites(tmp_path)), terms)
    there, here = over_grid(transport, terms), in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
    assert scores(there.logs) == scores(here.logs)
    assert [log.trained for log in there.logs] == [log.trained for log in here.logs]
    assert [event for log in there.logs for event in log.events] == []
    for name, standing in zip(NAMES, transport.standings, strict=True):
        if standing.accepted:
            Store(tmp_path / name / "states").load(terms.run, standing.accepted, standing.digest)


@pytest.mark.parametrize("method", ["fedapa", "fedavg"])
def test_one_after_another(method, tmp_path):
    terms = terms_of(config_text(method).replace('schedule = "auto"', 'schedule = "sequential"'))
    transport = grid(Direct(make_sites(tmp_path)), terms)
    there, here = over_grid(transport, terms), in_process(terms)
    assert server_digest(there) == server_digest(here)
    assert client_digests(there, transport) == client_digests(here)
