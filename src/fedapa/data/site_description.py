"""The section [sites]: files, columns, split and scaling of own data; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictFloat, StrictInt

from fedapa.data.missing import MISSING
from fedapa.data.site_layout import Range
from fedapa.toml_table import TABLE, Texts

RISK = "log risk of "  # before the name of an event: what models of survival predict
SplitRule = Literal["stratified", "group", "time", "order"]


def _by_name(value: Any) -> Any:
    """A list of files means sites that are named after their files."""
    if not isinstance(value, list) or not all(isinstance(file, str) for file in value):
        return value
    names = [Path(file).stem for file in value]
    if len(set(names)) < len(names):
        raise ValueError('two files have one name; write { north = "a/data.csv", south = "b/data.csv" }')
    return dict(zip(names, value, strict=True))


def _merged(value: Any) -> Any:
    """A list of labels means classes that are named after their labels."""
    if isinstance(value, list):
        return {str(label): [label] for label in value}
    return value


def _as_texts(value: Any) -> Any:
    """Cells are texts: a number in a list of values is the text of it."""
    if isinstance(value, dict):
        return {key: _as_texts(inner) for key, inner in value.items()}
    return [str(item) for item in value] if isinstance(value, list) else value


Files = Annotated[Mapping[str, str], BeforeValidator(_by_name)]
Values = Annotated[Mapping[str, Texts], BeforeValidator(_as_texts)]
Classes = Annotated[Values | None, BeforeValidator(_merged)]
Size = Annotated[StrictInt, Field(ge=1, le=4096)]


@dataclass(frozen=True)
class Sites:
    """Where the data is and what its columns mean, one client per site: the section [sites].

    It replaces [data], except for data_dir.
    """

    __pydantic_config__ = TABLE

    files: Annotated[
        Files,
        Field(description="files or image folders: a list, or { name = file }; relative to the config"),
    ] = field(default_factory=dict)
    source: Annotated[str | None, Field(description="built-in sites instead of files: heart-disease")] = None
    site_column: Annotated[
        str | None, Field(description="column that names the site, where one file holds all sites")
    ] = None
    label: Annotated[str, Field(description="column to predict")] = "label"
    event: Annotated[
        str | None,
        Field(description="column that says if it happened (1, yes) at the time under label, or not yet"),
    ] = None
    classes: Annotated[
        Classes,
        Field(description="classes in order: a list of labels, or { name = [labels] } to merge some"),
    ] = None
    drop: Annotated[Texts, Field(description="columns to leave out")] = ()
    categories: Annotated[Texts, Field(description="columns whose numbers are codes")] = ()
    units: Annotated[Mapping[str, str], Field(description='of columns, which sites compare: { age = "years" }')] = (
        field(default_factory=dict)
    )
    target_range: Annotated[
        Range | None, Field(description="[lowest, highest] number that a label may be, for sites to agree on")
    ] = None
    missing: Annotated[Texts, Field(description="texts that mean a missing value")] = MISSING
    missing_values: Annotated[Values, Field(description="more of them for one column: { chol = [0] }")] = field(
        default_factory=dict
    )
    header: Annotated[Texts, Field(description="names of the columns of files without a header")] = ()
    encoding: Annotated[str, Field(description="of text files")] = "utf-8"
    decimal: Annotated[Literal[".", ","], Field(description="sign before the decimals of a number")] = "."
    thousands: Annotated[str, Field(max_length=1, description="sign between thousands, where there is one")] = ""
    dates: Annotated[
        Mapping[str, str],
        Field(description='columns that become numbers of days: { seen = "%d.%m.%Y" }, or "ISO 8601"'),
    ] = field(default_factory=dict)
    booleans: Annotated[Texts, Field(description="columns of yes and no, in words: 1 and 0")] = ()
    image_column: Annotated[str | None, Field(description="column of image files, relative to the table")] = None
    image_size: Annotated[
        tuple[Size, Size] | None, Field(description="[height, width] that all images are resized to")
    ] = None
    split: Annotated[
        SplitRule, Field(description="how test rows are chosen; order: the last rows of every file test")
    ] = "stratified"
    split_column: Annotated[str | None, Field(description="column to split by: group or time")] = None
    test: Annotated[StrictFloat, Field(gt=0, lt=1, description="share of every site's rows kept for testing")] = 0.25
    validation: Annotated[
        StrictFloat, Field(ge=0, lt=1, description="share of the train rows held out to select a round")
    ] = 0.0
    scaling: Annotated[
        Literal["local", "federated"], Field(description="scales of columns: own, or from summed sums")
    ] = "local"
    duplicates: Annotated[
        Literal["together", "keep", "refuse"],
        Field(description="equal rows: on one side of the split, wherever they fall, or an error"),
    ] = "together"
    subgroups: Annotated[
        Texts, Field(description="columns by whose values a site's own card tells the scores apart")
    ] = ()

    @property
    def predicted(self) -> str:
        """What a model of these data tells: the label, or of times the risk of the event."""
        return self.label if self.event is None else f"{RISK}{self.event}"

    schema_file: Annotated[str | None, Field(description="agreed schema.json of a federation")] = None
