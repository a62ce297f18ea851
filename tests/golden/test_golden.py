"""Nothing that a user can see changes by accident: it is compared with the golden files beside this test."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from surface import MODULES, SURFACES, as_json, golden, public

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SURFACES)
def test_what_users_see_is_as_it_was(name: str) -> None:
    seen, wanted = as_json(SURFACES[name]()), golden(name)
    numbers = wanted.pop("numbers", {})
    assert seen.pop("numbers", {}) == pytest.approx(numbers, rel=1e-6, nan_ok=True)
    assert seen == wanted


def test_stable_names_are_documented() -> None:
    page = (ROOT / "docs" / "stability.md").read_text()
    for name in MODULES:
        assert f"`{name}`" in page
        undocumented = [f"{name}.{key}" for key, value in public(import_module(name)) if not inspect.getdoc(value)]
        assert undocumented == []


def test_what_is_deprecated_is_gone_in_time() -> None:
    """No version has a name that it was to have lost."""
    version = re.search(r'^version = "([\d.]+?)(?:\.dev0)?"', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert version is not None
    folders = ("continuum_client", "traces", "server_patch", "agents", "analysis", "harness")
    code = "".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    promised = re.findall(r'gone="([\d.]+)"', code)
    assert promised
    assert all(_parts(each) > _parts(version[1]) for each in promised)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
