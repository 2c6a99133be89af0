"""Write requirements.lock (versions and hashes) and sbom.json (CycloneDX) of what `fedapa[flower]` installs.

    python deploy/make_lock.py          # resolves for this Python and this platform

Install from it with `pip install --require-hashes -r deploy/requirements.lock`, then fedapa itself with `--no-deps`.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT, HERE = Path(__file__).parents[1], Path(__file__).parent
EXTRAS = ("flower", "parquet")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"  # PyTorch's own; PyPI has no version that ends in +cpu


def resolve() -> list[dict[str, Any]]:
    """What pip would install, as its own report says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(word for name in EXTRAS for word in project["optional-dependencies"][name])]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-c", str(ROOT / "constraints.txt"), *wanted]
        subprocess.run(command, check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(found, key=lambda item: str(item["metadata"]["name"]).lower())


def lock(found: list[dict[str, Any]]) -> str:
    lines = [f"# Made by deploy/make_lock.py for {where()}: pip install --require-hashes -r requirements.lock"]
    if any(str(item["metadata"]["version"]).endswith("+cpu") for item in found):
        lines.append(f"--extra-index-url {CPU_BUILDS}")
    for item in found:
        lines.append(f"{item['metadata']['name']}=={item['metadata']['version']} --hash=sha256:{digest(item)}")
    return "\n".join(lines) + "\n"


def sbom(found: list[dict[str, Any]]) -> str:
    content = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": [*map(component, found)]}
    return json.dumps(content, indent=1) + "\n"


def component(item: dict[str, Any]) -> dict[str, Any]:
    name, version = str(item["metadata"]["name"]), str(item["metadata"]["version"])
    made: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}",
        "hashes": [{"alg": "SHA-256", "content": digest(item)}],
    }
    licence = item["metadata"].get("license_expression")
    return made | ({"licenses": [{"expression": licence}]} if licence else {})


def digest(item: dict[str, Any]) -> str:
    return str(item["download_info"]["archive_info"]["hashes"]["sha256"])


def where() -> str:
    return f"CPython {sys.version_info.major}.{sys.version_info.minor} on {platform.system()} {platform.machine()}"


if __name__ == "__main__":
    packages = resolve()
    (HERE / "requirements.lock").write_text(lock(packages), encoding="utf-8")
    (HERE / "sbom.json").write_text(sbom(packages), encoding="utf-8")
    print(f"{len(packages)} packages")
