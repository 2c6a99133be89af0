"""fedapa doctor"""

from __future__ import annotations

import os
from typing import Any

import click

from fedapa.cli import ui


@click.command(short_help="Say what this installation can do")
@ui.format_option
def command(form: str) -> None:
    """Check versions, engines, data sets and folders, and say how to fix what is missing."""
    ui.show([*_system(), *_engines(), *_extras(), *_data()], form)


def _system() -> list[dict[str, Any]]:
    from fedapa.core.threads import available_cores
    from fedapa.store.file_lock import WINDOWS
    from fedapa.store.run_folder import environment

    found = environment()
    rows = [{"what": name, "state": version, "note": ""} for name, version in found["packages"].items()]
    rows.insert(0, {"what": "python", "state": found["python"], "note": found["platform"]})
    rows += _devices()
    if os.name == "nt":
        rows.insert(0, {"what": "system", "state": "not supported", "note": f"{WINDOWS[0]}: {WINDOWS[1]}"})
    rows.append({"what": "cores", "state": str(available_cores()), "note": "clients are trained side by side"})
    return rows


def _devices() -> list[dict[str, Any]]:
    import torch

    from fedapa.training.devices import accelerators

    build = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built for the CPU"
    found = [{"what": f"device {name}", "state": "ok", "note": f"--device {name}"} for name in accelerators()]
    return found or [{"what": "device cpu", "state": "ok", "note": f"no other device; {build}: docs/devices.md"}]


def _engines() -> list[dict[str, Any]]:
    from fedapa.training.engines.native import available

    built, why = available()
    many = "many clients in one step; small models without BatchNorm and dropout"
    return [
        {"what": "engine torch", "state": "ok", "note": "any model"},
        {"what": "engine vmap", "state": "ok", "note": many},
        {"what": "engine native", "state": "ok" if built else "missing", "note": why},
    ]


def _extras() -> list[dict[str, Any]]:
    from importlib.util import find_spec
    from shutil import which

    extras = {
        "parquet": ("pyarrow", "Parquet files"),
        "onnx": ("onnxscript", "fedapa export --onnx"),
        "dashboard": ("starlette", "fedapa watch"),
        "tune": ("optuna", "fedapa tune --search optuna"),
        "flower": ("flwr", "real federations, docs/deploy.md"),
        "models": ("torchvision", 'model.name = "torchvision:NAME"'),
        "tensorboard": ("tensorboard", "fedapa run --log tensorboard"),
        "mlflow": ("mlflow", "fedapa run --log mlflow"),
        "wandb": ("wandb", "fedapa run --log wandb"),
        "ray": ("ray", "fedapa sweep --on ray"),
        "slurm": ("submitit", "fedapa sweep --on slurm"),
    }
    rows = [
        {
            "what": f"extra {name}",
            "state": "ok" if find_spec(package) else "missing",
            "note": use if find_spec(package) else f"{use}: pip install 'fedapa[{name}]'",
        }
        for name, (package, use) in extras.items()
    ]
    if find_spec("torchvision") and (why := _import_error("torchvision")):
        found = {"what": "extra models", "state": "broken", "note": f"torchvision: {why}; see docs/models.md"}
        rows = [found if row["what"] == "extra models" else row for row in rows]
    nginx = which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    install = "only a coordinator needs it: apt-get install nginx-light libnginx-mod-stream"
    note = "a coordinator's reverse proxy" if nginx else install
    return [*rows, {"what": "nginx", "state": "ok" if nginx else "missing", "note": note}]


def _import_error(package: str) -> str:
    """Why a package cannot be imported; empty if it can. torchvision of PyPI is built for CUDA, whatever torch is."""
    from importlib import import_module

    try:
        import_module(package)
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return ""


def _data() -> list[dict[str, Any]]:
    from fedapa.data.sources import SOURCES, data_folder, is_present

    rows = [
        {
            "what": f"data {name}",
            "state": "present" if is_present(name) else "absent",
            "note": "" if is_present(name) else f"fedapa data fetch {name}",
        }
        for name in SOURCES
    ]
    return [*rows, {"what": "data folder", "state": str(data_folder()), "note": "FEDAPA_DATA or --data-dir change it"}]
