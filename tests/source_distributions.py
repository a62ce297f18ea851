"""Downloads source distributions from PyPI. They have other projects' tests and test servers, which wheels lack."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest


def source_of(python: Path, package: str, folder: Path) -> Path:
    """Unpack the source distribution of the package that this Python has, into the folder, and return its root."""
    pip = [str(python), "-m", "pip"]
    shown = subprocess.run([*pip, "show", package], capture_output=True, text=True, check=True).stdout
    version = shown.split("Version: ")[1].split()[0]
    words = [*pip, "download", "-q", "--no-deps", "--no-binary", package, "-d", folder, f"{package}=={version}"]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip(f"pip could not install it from source: PyPI has no source distribution of {package} here")
    (archive,) = folder.glob(f"{package.replace('-', '_')}-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")
