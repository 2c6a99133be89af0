"""The heart-disease files of four hospitals (Janosi, Steinbrunn, Pfisterer, Detrano; UCI, 1988) as sites.

The files have no header, write missing values as ?, and code a missing cholesterol (all of Switzerland) or blood
pressure as 0. The diagnosis 0 is healthy, 1 to 4 are degrees of the disease, which all papers merge.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedapa.data.dataset import Layout, SourceInfo
from fedapa.data.download import Download

if TYPE_CHECKING:
    from fedapa.data.site_description import Sites

HEADER = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal num"
CODES = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
MD5 = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
FILES = {site: f"processed.{site}.data" for site in MD5}
FOLDERS = ("heart-disease", "heart_disease", "heart+disease", ".")


def heart_disease(sites: Sites, folder: Path) -> Sites:
    """The description of these files; how to split and to scale stays as asked for."""
    return replace(
        sites,
        files={site: str(folder / file) for site, file in FILES.items()},
        header=tuple(HEADER.split()),
        label="num",
        classes={"healthy": ("0",), "disease": ("1", "2", "3", "4")},
        categories=CODES,
        missing_values={"chol": ("0",), "trestbps": ("0",)},
    )


DATASETS = (
    SourceInfo(
        "heart-disease",
        "heart disease at four hospitals: 13 columns, missing values; use it as [sites] source",
        train=920,
        test=0,
        class_names=("healthy", "disease"),
        shape=(13,),
        layouts=tuple(Layout(folder, tuple(FILES.values()), ()) for folder in FOLDERS),
        downloads=tuple(Download(f"{URL}/{file}", MD5[site]) for site, file in FILES.items()),
        sites=tuple(FILES),
        describe=heart_disease,
    ),
)
