"""Everything that keeps the files of some sites from being learned from, not only the first of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from fedapa.data import schema as schemas
from fedapa.data.site_description import Sites
from fedapa.data.sites import Material, assemble, class_problems, labelled, read_files
from fedapa.data.splits import too_few
from fedapa.errors import InputError


def problems(sites: Sites, target: Literal["class", "number"] = "class") -> list[InputError]:
    """Each once, in the order of the files; later steps are tried with what earlier ones leave."""
    found: list[InputError] = []
    materials: dict[str, Material] = {}
    for name, file in sites.files.items():
        try:
            read = read_files(replace(sites, files={name: file}))
            materials |= {who: labelled(who, sites, material)[0] for who, material in read.items()}
        except InputError as error:
            found.append(error)
    found += _together(sites, materials, target)
    if not found:
        try:
            assemble(sites, target=target)
        except InputError as error:
            found.append(error)
    return list({error.message: error for error in found}.values())


def _together(sites: Sites, materials: dict[str, Material], target: Literal["class", "number"]) -> Iterator[InputError]:
    yield from (too_few(f"site {name}", 1) for name, material in materials.items() if len(material.labels) == 1)
    if materials and target == "class":
        yield from class_problems(sites, materials)
    tables = {name: material.table for name, material in materials.items() if material.table is not None}
    if tables:
        yield from schemas.problems(tables, sites.categories)
