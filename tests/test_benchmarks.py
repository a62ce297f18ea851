"""Every module of benchmarks/ can be imported: a rename elsewhere cannot break one unnoticed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_benchmark_can_be_imported(file: Path) -> None:
    assert import_module(file.stem).__file__ == str(file)
