"""The heart-disease files of four hospitals (Janosi, Steinbrunn, Pfisterer, Detrano; UCI, 1988) as sites.

The files have no header, write missing values as ?, and code a missing cholesterol (all of Switzerland) or blood
pressure as 0. The diagnosis 0 is healthy, 1 to 4 are degrees of the disease, which all papers merge.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedapa.data.datasets.sources import SOURCES, locate

if TYPE_CHECKING:
    from fedapa.data.sites import Sites

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
CODES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")


def heart_disease(sites: Sites, data_dir: Path | None) -> Sites:
    """The description of these files; how to split and to scale stays as asked for."""
    folder = locate("heart-disease", data_dir)
    return replace(
        sites,
        files={name: str(folder / f"processed.{name}.data") for name in SOURCES["heart-disease"].sites},
        header=COLUMNS,
        label="num",
        classes={"healthy": ("0",), "disease": ("1", "2", "3", "4")},
        categories=CODES,
        missing_values={"chol": ("0",), "trestbps": ("0",)},
    )
