"""Many steps on real data: rounding drifts, but no farther than it does between two layouts of torch itself.

`fedapa bench --only numerics` does the same at full size for three seeds.
"""

import pytest

from fedapa.bench import images
from fedapa.bench.numerics import agreement
from fedapa.data import sources


@pytest.mark.skipif(not sources.is_present("cifar10"), reason="cifar10 is not in the folder that FEDAPA_DATA names")
def test_four_rounds_of_cifar10_end_where_torch_ends() -> None:
    data = images.unbalanced("cifar10", 8, 4_000, 5_000)
    found = agreement(data, seed=0)
    assert found.layouts > 1e-6, "the two layouts of torch are one"
    assert 0 < found.native <= 1.5 * found.layouts
    assert found.gap <= 0.3  # points: 15 of the 5,000 test samples
