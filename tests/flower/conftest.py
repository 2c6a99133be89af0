import pytest

pytest.importorskip("flwr", reason="the extra fedapa[flower] is not installed")
