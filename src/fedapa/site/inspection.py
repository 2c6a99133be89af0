"""Inspection of a site's files: how they are written, what is in them, everything that is wrong, and a proposal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedapa.data.cell_format import (
    ISO,
    Numbers,
    as_number,
    date_formats,
    has_points_between_thousands,
    is_boolean,
    number_format,
)
from fedapa.data.profile import Profile, Warned, profile
from fedapa.data.schema import some
from fedapa.data.site_description import Sites
from fedapa.data.site_problems import problems
from fedapa.data.sites import Material, Own, assemble, is_measurement, read_files, table_of
from fedapa.data.tables import TEXT, Table, encoding_of
from fedapa.errors import InputError

Target = Literal["class", "number"]
FEWEST_RARE = 20  # train rows of a rare class at the middle site, to hold some of them out
RARE_CLASS = 0.2  # share of the rarer of two classes below which the accuracy says little
FEW_TRAIN, FEW_TEST = 20, 10  # rows of a site below which its scores say next to nothing
OTHER_UNIT = 5  # times larger: the numbers of a site that may be in another unit
SPLITS = ("alike", "order", "date", "group")  # kinds of warnings that another split answers
SEVERAL = {  # what is said of many columns at once
    "identifier": "identify a row or a person and are left out",
    "constant": "have one value",
    "leakage": "predict the class alone: are they known beforehand?",
    "missing": "are missing in more than half of the rows",
    "nothing": "have -1 or nines apart from their other values: no value? --missing COLUMN=NUMBER",
    "codes": "have 3 to 10 whole numbers each: codes go under categories",
    "text": "have text among numbers, or numbers written in another way",
    "free text": "hold free text, which no model here reads, and are left out",
    "date": "hold dates: --time COLUMN tests on the latest rows; --dates A,B makes numbers of days",
    "order": "count upwards through the file: if rows follow in time, --time COLUMN tests on the later ones",
    "group": "may name whoever several rows are of: --group COLUMN keeps these rows on one side",
}


ABOUT_SITES = re.compile(r"(?:site .+: |sites .+ share )(?P<rows>\d+) (?P<what>equal rows|rows [^,]+)")


class Inspection(NamedTuple):
    sites: Sites  # as given, with what was found about the files
    target: Target
    profiles: Mapping[str, Profile]
    own: Own | None  # None where something is wrong
    notes: list[str]
    problems: list[InputError]

    @property
    def score(self) -> str | None:
        """The primary score that fits the classes: of two classes with one rare, the AUC."""
        return None if self.own is None or rare_share(self.own) is None else "AUC"


def inspected(wanted: Sites, given: Iterable[str] = ()) -> Inspection:
    """Look at all files; what was ``given`` is not looked for."""
    sites, notes, found = _written(wanted, set(given))
    tables = _readable(sites)
    target = _target(sites, tables)
    columns = tuple(c for c in (sites.site_column, sites.split_column, sites.event) if c)
    profiles = {
        name: profile(table, sites.label, (*columns, *sites.dates, *sites.drop), target == "number")
        for name, table in tables.items()
        if sites.label in table.columns
    }
    asked = {name: [w for w in p.warnings if not _is_answered(w, sites)] for name, p in profiles.items()}
    notes += summary(asked, sites.split == "stratified")
    sites = replace(sites, drop=tuple(dict.fromkeys((*sites.drop, *left_out(list(profiles.values()))))))
    found += [error for error in problems(sites, target) if error.message not in [one.message for one in found]]
    own = assemble(sites, target=target) if not found else None
    notes += [] if own is None else [*shortened(own.notes), *_doubts(own)]
    notes += [f"left out: {some(sites.drop)}"] if sites.drop else []
    notes += list(_far_apart(sites, tables)) if own is not None else []
    if sites.event is not None:
        notes.append(f"'{sites.label}' is a time until '{sites.event}': its risk is predicted (survival)")
    elif target == "number":
        notes.append(f"'{sites.label}' holds numbers: they are predicted as numbers (regression)")
    return Inspection(sites, target, profiles, own, notes, found)


def _is_answered(warned: Warned, sites: Sites) -> bool:
    return warned.kind == "codes" and warned.column in sites.categories


def left_out(profiles: Sequence[Profile]) -> list[str]:
    """Columns that cannot help: names of rows and persons, dates, free text, and what is constant at every site."""
    names = dict.fromkeys(name for p in profiles for name in p.named("identifier", "date", "free text"))
    always = [p.named("constant") for p in profiles]
    names |= dict.fromkeys(name for name in (always[0] if always else []) if all(name in other for other in always))
    return list(names)


def rare_share(own: Own) -> float | None:
    """The share of the rarer of two classes over all sites, where it is so rare that the accuracy says little."""
    if own.data.classes != 2:
        return None
    counts = _counts(own)
    share = float(counts.min() / counts.sum())
    return share if share < RARE_CLASS else None


def rare_last(own: Own) -> list[str]:
    """The two classes with the rare one last, which recall and thresholds are about; empty where it is last already."""
    if rare_share(own) is None or int(_counts(own).argmin()) == 1:
        return []
    return list(reversed(own.schemas[0].class_names))


def held_out_share(own: Own) -> float:
    """Of train rows, to choose a threshold for a rare class on; none where there are too few of that class."""
    if rare_share(own) is None:
        return 0.0
    rare = median(int(client.train.y.bincount(minlength=2).min()) for client in own.data.clients)
    return 0.2 if rare >= FEWEST_RARE else 0.0


def _counts(own: Own) -> Tensor:
    """Rows of every class, at all sites."""
    parts = [part.y for client in own.data.clients for part in (client.train, client.test)]
    return torch.cat(parts).bincount(minlength=2)


def _doubts(own: Own) -> list[str]:
    notes = []
    if (share := rare_share(own)) is not None:
        notes.append(
            f"one class has {100 * share:.1f} % of the rows: a model that never predicts it is right on"
            f" {100 * (1 - share):.1f} %, so the AUC is the primary score (objective.score)"
        )
        if order := rare_last(own):
            notes.append(f"classes = {order}: recall and thresholds are about the last class, so it is the rare one")
        if held_out_share(own):
            notes.append("a fifth of the train rows is held out, to choose a threshold between the classes on")
    few = [c.name for c in own.data.clients if len(c.train.y) < FEW_TRAIN or len(c.test.y) < FEW_TEST]
    if few:
        rows = f"fewer than {FEW_TRAIN} train or {FEW_TEST} test rows"
        notes.append(f"site{'s' if len(few) > 1 else ''} {some(few)}: {rows}; scores there say next to nothing")
    return notes


def _far_apart(sites: Sites, tables: Mapping[str, Table]) -> Iterator[str]:
    """Columns whose numbers at one site are all larger than at another, several times over: another unit?"""
    first = next(iter(tables.values()), None)
    for name in [] if first is None else first.columns:
        known = name not in (*sites.drop, *sites.categories, sites.site_column, sites.split_column)
        found = {site: values for site, table in tables.items() if len(values := _positive(table, name)) >= FEW_TEST}
        ranked = sorted(found, key=lambda site: median(found[site]))
        if known and len(ranked) > 1 and min(found[ranked[-1]]) > max(found[ranked[0]]):
            low, high = found[ranked[0]], found[ranked[-1]]
            if median(high) >= OTHER_UNIT * median(low):
                spans = [f"{min(v):g} to {max(v):g} at {s}" for s, v in ((ranked[0], low), (ranked[-1], high))]
                yield f"column '{name}': {' and '.join(spans)}: in another unit? Correct it before you train"


def _positive(table: Table, name: str) -> list[float]:
    """The numbers of a column that holds nothing but numbers above 0."""
    cells = [cell for cell in table.columns.get(name, ()) if cell is not None]
    found = [number for cell in cells if (number := as_number(cell)) is not None and number > 0]
    return found if len(found) == len(cells) else []


# --- how files are written -----------------------------------------------------------------------


def _written(sites: Sites, given: set[str]) -> tuple[Sites, list[str], list[InputError]]:
    """Encoding, decimal sign, dates and booleans, where they were not given."""
    notes: list[str] = []
    if "encoding" not in given and (encoding := _encoding(sites)) != "utf-8":
        sites = replace(sites, encoding=encoding)
        notes.append(f"files that are not UTF-8 are read as {encoding}: check that names with accents look right")
    tables = _readable(sites)
    columns = _columns(tables.values())
    changes, more, found = _numbers(sites, tables, given)
    dates, trouble = _dates(sites, columns)
    aside = {sites.label, sites.event, sites.site_column, sites.split_column}
    aside |= {*sites.categories, *sites.drop, *sites.dates}
    words = tuple(name for name, texts in columns.items() if name not in aside and is_boolean(texts))
    if words and "booleans" not in given:
        changes["booleans"] = words
        more.append(f"yes and no in words become 1 and 0: {some(words)}")
    return replace(sites, dates=dates, **changes), notes + more, found + trouble


def _encoding(sites: Sites) -> str:
    """Of the files that are not UTF-8; the others are read as UTF-8 all the same."""
    paths = [Path(file).expanduser() for file in sites.files.values()]
    texts = [path for path in paths if path.suffix.lower() in TEXT and path.is_file()]
    found = {_encoding_of(path) for path in texts}
    return next((name for name in ("cp1252", "latin-1", "utf-16") if name in found), "utf-8")


def _encoding_of(path: Path) -> str:
    said = encoding_of(path, "latin-1")
    return _western(path) if said == "latin-1" else said


def _western(path: Path) -> str:
    """Of Western Europe: Windows writes signs such as the euro where Latin-1 has none."""
    with open(path, "rb") as file:
        windows = any(re.search(rb"[\x80-\x9f]", piece) for piece in iter(lambda: file.read(2**20), b""))
    return "cp1252" if windows else "latin-1"


def _readable(sites: Sites) -> dict[str, Table]:
    """Tables by file; those that cannot be read are problems, found later."""
    found = {}
    for name, file in sites.files.items():
        path = Path(file).expanduser()
        if not path.is_dir() and path.suffix.lower() != ".npz" and sites.image_column is None:
            try:
                found[name] = table_of(path, sites)
            except InputError:
                continue
    return found


def _columns(tables: Iterable[Table]) -> dict[str, list[str]]:
    """The different texts of every column, over all files."""
    found: dict[str, set[str]] = {}
    for table in tables:
        for name, cells in table.columns.items():
            found.setdefault(name, set()).update(cell for cell in cells if cell is not None)
    return {name: sorted(texts) for name, texts in found.items() if texts}


def _numbers(
    sites: Sites, tables: Mapping[str, Table], given: set[str]
) -> tuple[dict[str, Any], list[str], list[InputError]]:
    """The decimal sign and the sign between thousands that make numbers of all columns that look like it, of all files
    together or of one of them."""
    if {"decimal", "thousands"} & given:
        return {}, [], []
    columns, by_file = _columns(tables.values()), [_columns([table]) for table in tables.values()]
    seen = {name: written for name, texts in columns.items() if (written := number_format(texts)) is not None}
    for mine in by_file:
        new = {name: number_format(texts) for name, texts in mine.items() if name not in seen}
        seen |= {name: written for name, written in new.items() if written is not None}
        columns |= {name: mine[name] for name, written in new.items() if written is not None}  # to show one of them
    unsure = [name for name, written in seen.items() if not written.is_sure]
    sure = {written for written in seen.values() if written.is_sure}
    if not seen:
        return {}, [], []
    if not sure:
        name, hint = unsure[0], "say which: --decimal , or --thousands ,"
        said = f"column '{name}' has numbers such as '{_example(columns[name])}': decimals or thousands?"
        return {}, [], [InputError(said, hint)]
    decimals, thousands = {w.decimal for w in sure}, {w.thousands for w in sure if w.thousands}
    if len(decimals) > 1 or len(thousands) > 1:
        both = " and ".join(f"'{_example(columns[name])}' in '{name}'" for name in _one_of_each(seen))
        return {}, [], [InputError(f"numbers are written in several ways: {both}", "write them in one way")]
    sign, between = decimals.pop(), thousands.pop() if thousands else ""
    if sign == "," and not between and any(map(has_points_between_thousands, columns.values())):
        between = "."
    if between == "." and (odd := _pointed(by_file)):
        said = f"numbers are written in several ways: '{_example(columns[next(iter(seen))])}' and '{odd}'"
        return {}, [], [InputError(said, "write them in one way")]
    note = f"numbers are written as '{_example(columns[next(iter(seen))])}' in {some(list(seen))}"
    note += f": read with decimal '{sign}'"
    return {"decimal": sign, "thousands": between}, [note + (f", thousands '{between}'" if between else "")], []


def _pointed(by_file: Sequence[Mapping[str, list[str]]]) -> str:
    """A number with a decimal point in a file that has no decimal commas; empty where there is none."""
    for columns in by_file:
        if not any(written.decimal == "," for texts in columns.values() if (written := number_format(texts))):
            for texts in columns.values():
                if number_format(texts) is None and (dotted := [t for t in texts if "." in t and as_number(t)]):
                    return dotted[0]
    return ""


def _example(texts: Sequence[str]) -> str:
    return next((text for text in texts if as_number(text) is None), texts[0])


def _one_of_each(seen: Mapping[str, Numbers]) -> list[str]:
    return list({written: name for name, written in seen.items()}.values())


def _dates(sites: Sites, columns: Mapping[str, list[str]]) -> tuple[dict[str, str], list[InputError]]:
    """Formats of the dates that become numbers: those asked for, and the one that splits."""
    found, trouble = dict(sites.dates), []
    asked = [name for name, form in sites.dates.items() if not form]
    if sites.split == "time" and sites.split_column in columns:
        texts = columns[str(sites.split_column)]
        if any(as_number(text) is None for text in texts) and date_formats(texts)[:1] != [ISO]:
            asked.append(str(sites.split_column))
    for name in dict.fromkeys(asked):
        found.pop(name, None)
        forms = date_formats(columns.get(name, ()))
        if len(forms) == 1:
            found[name] = forms[0]
        elif forms:
            both = " or ".join(f"--dates '{name}={form}'" for form in forms)
            trouble.append(InputError(f"column '{name}': day and month cannot be told apart", f"say which: {both}"))
        else:
            odd = next((text for text in columns.get(name, ()) if not date_formats([text])), "")
            trouble.append(
                InputError(
                    f"column '{name}' holds no dates that are known, such as '{odd}'",
                    f"say the format: --dates '{name}=%d.%m.%Y'",
                )
            )
    return found, trouble


def _target(sites: Sites, tables: Mapping[str, Table]) -> Target:
    cells = [table.columns[sites.label] for table in tables.values() if sites.label in table.columns]
    cells += [material.labels for material in _arrays(sites)]
    if sites.event is not None:
        return "number"
    if sites.classes is not None or not cells:
        return "class"
    labels = [label for label in np.concatenate(cells) if label is not None]
    return "number" if is_measurement(list(set(labels)), len(labels)) else "class"


def _arrays(sites: Sites) -> Iterator[Material]:
    """Of files of arrays that can be read; what is wrong with the others is found later."""
    for name, file in sites.files.items():
        if Path(file).suffix.lower() == ".npz" and Path(file).expanduser().is_file():
            with suppress(InputError):
                yield from read_files(replace(sites, files={name: file})).values()


# --- notes ---------------------------------------------------------------------------------------


def summary(warnings: Mapping[str, Sequence[Warned]], is_random: bool = True, most: int = 3) -> list[str]:
    """A line per column, with the files that it is said of; one line for many columns of a kind."""
    found: dict[str, dict[str, list[tuple[str, Warned]]]] = {}
    for file, mine in warnings.items():
        for warned in mine:
            found.setdefault(warned.kind, {}).setdefault(_key(warned), []).append((file, warned))
    notes = []
    for kind, columns in found.items():
        if kind in SPLITS and not is_random:
            continue  # the split that it asks for was chosen
        if len(columns) > most and kind in SEVERAL:
            notes.append(f"{len(columns)} columns {SEVERAL[kind]}: {some(list(columns))}")
            continue
        for said in columns.values():
            files = [file for file, _ in said]
            where = f" ({some(files, 3)})" if len(warnings) > 1 else ""
            notes.append(f"{said[0][1].text}{where}{_ways_out(kind)}")
    return notes


def shortened(notes: Sequence[str], most: int = 3) -> list[str]:
    """Notes that say the same of many sites become one, with the rows added up."""
    found: dict[str, list[tuple[str, int]]] = {}
    for note in notes:
        parts = ABOUT_SITES.fullmatch(note)
        found.setdefault(parts["what"] if parts else note, []).append((note, int(parts["rows"]) if parts else 0))
    return [line for what, said in found.items() for line in _at_once(what, said, most)]


def _at_once(what: str, said: Sequence[tuple[str, int]], most: int) -> list[str]:
    if len(said) <= most:
        return [note for note, _ in said]
    who = "pairs of sites share" if what == "equal rows" else "sites:"
    return [f"{len(said)} {who} {sum(rows for _, rows in said)} {what}"]


def _key(warned: Warned) -> str:
    """Small classes are told one by one, all else by column."""
    return warned.text if warned.kind == "class" else warned.column


def _ways_out(kind: str) -> str:
    if kind != "alike":
        return ""
    return "; --time COLUMN, --group COLUMN, or --in-order to test on the last rows of every file"
