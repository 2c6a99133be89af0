"""Every method x every law, under both schedules."""

import pytest

from fedapa.methods.catalogue import METHODS, make
from fedapa.methods.method import Schedule
from fedapa.verify import LAWS
from fedapa.verify.case import Case


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", METHODS)
def test_law(name: str, law: str, schedule: Schedule) -> None:
    LAWS[law](Case(make(name), schedule))
