"""tests/conftest.py: the same examples every time, and no skip in CI that nobody expects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

TESTS = """
import pytest

@pytest.fixture(scope="module")
def shared(): ...

def test_expected(shared): pytest.skip("no real traces beside this checkout")

def test_surprise(): pytest.skip("the moon is full")
"""


@pytest.mark.parametrize(("variables", "counted"), [({"CI": "1"}, "1 failed, 1 skipped"), ({"CI": ""}, "2 skipped")])
def test_skips(tmp_path: Path, variables: dict[str, str], counted: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--strict-markers", "tests"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert counted in done.stdout
    assert "1  no real traces beside this checkout" in done.stdout
    assert ("CI expects no skip for this reason: the moon is full" in done.stdout) == bool(variables["CI"])


def test_no_luck() -> None:
    assert (settings.default.derandomize, settings.default.database) == (True, None)
    assert not settings.get_profile("fuzz").derandomize
