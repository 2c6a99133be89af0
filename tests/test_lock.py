"""The lock file and the bill of materials of a deployment fit the project and each other."""

import json
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"([\w.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


def locked() -> dict[str, tuple[str, str]]:
    lines = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8").splitlines()
    found = [LINE.fullmatch(line) for line in lines if not line.startswith(("#", "--extra-index-url "))]
    assert all(found), "a line without a version or a hash"
    return {canonicalize_name(one[1]): (one[2], one[3]) for one in found if one}


def test_what_the_project_needs_is_locked_in_a_version_that_it_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    known = locked()
    for word in (*project["dependencies"], *extras["flower"], *extras["parquet"]):
        wanted = Requirement(word)
        version, _ = known[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version), f"{word}: {version} is locked; run python deploy/make_lock.py"


def test_a_build_that_pypi_does_not_have_comes_with_its_place() -> None:
    """PyPI refuses versions with a local part, such as 2.13.0+cpu: pip would find none and stop."""
    text = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
    local = {version.partition("+")[2] for version, _ in locked().values() if "+" in version}
    assert set(re.findall(r"^--extra-index-url https://download\.pytorch\.org/whl/(\w+)$", text, re.M)) == local


def test_the_bill_of_materials_lists_the_same() -> None:
    bill = json.loads((ROOT / "deploy" / "sbom.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {
        canonicalize_name(part["name"]): (part["version"], part["hashes"][0]["content"]) for part in bill["components"]
    }
    assert listed == locked()
