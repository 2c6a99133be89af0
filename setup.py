"""Builds the optional native kernel; everything else is in pyproject.toml.

Both libraries come from one source file and are loaded with ctypes at run time, where the better one that
the processor supports is chosen. A missing or failing compiler leaves them out and nothing else changes.
FEDAPA_NATIVE_SANITIZE=1 builds them with AddressSanitizer and UndefinedBehaviorSanitizer.
"""

import os
import platform

from setuptools import Extension, setup

SOURCE = "src/fedapa/training/engines/native/kernel.cpp"
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden", "-Wno-psabi"]
LINK: list[str] = []

if os.environ.get("FEDAPA_NATIVE_SANITIZE", "0") not in ("", "0"):
    SANITIZE = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined"]
    FLAGS = [*FLAGS, "-g", *SANITIZE]
    LINK = SANITIZE


def library(name: str, *flags: str) -> Extension:
    return Extension(
        f"fedapa.training.engines.native.{name}",
        sources=[SOURCE],
        language="c++",
        extra_compile_args=[*FLAGS, *flags],
        extra_link_args=LINK,
        optional=True,
    )


extensions = [library("_portable")]
if platform.machine().lower() in ("x86_64", "amd64", "i686"):
    extensions.append(library("_avx2", "-mavx2", "-mfma"))

setup(ext_modules=extensions)
