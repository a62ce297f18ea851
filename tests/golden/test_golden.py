"""Nothing that a user can see changes by accident: it is compared with the golden files beside this test."""

from __future__ import annotations

import inspect
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
