import pytest

from fedapa.bench import side_by_side


@pytest.fixture(autouse=True)
def _one_thread():  # type: ignore[no-untyped-def]
    """Threads inside one small operation fight with everything else that runs."""
    with side_by_side.threads():
        yield
