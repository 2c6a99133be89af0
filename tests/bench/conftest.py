import pytest

from fedapa.bench import measure


@pytest.fixture(autouse=True)
def _one_thread():  # type: ignore[no-untyped-def]
    """Threads inside one small operation fight with everything else that runs."""
    with measure.threads():
        yield
