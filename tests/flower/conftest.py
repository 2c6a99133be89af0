"""Without the extra fedapa[flower] there is nothing here that could run."""

import warnings
from importlib.util import find_spec

MISSING = find_spec("flwr") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []

if not MISSING:
    with warnings.catch_warnings():  # of Flower's own imports; in tests they would be errors
        warnings.simplefilter("ignore")
        import flwr  # noqa: F401


def pytest_report_header() -> list[str]:
    return ["tests/flower are left out: pip install 'fedapa[flower]'"] if MISSING else []
