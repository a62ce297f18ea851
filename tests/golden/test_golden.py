"""Nothing that a user can see changes by accident: it is compared with the golden files beside this test."""

from __future__ import annotations

import pytest
from surface import SURFACES, as_json, golden


@pytest.mark.parametrize("name", SURFACES)
def test_what_users_see_is_as_it_was(name: str) -> None:
    seen, wanted = as_json(SURFACES[name]()), golden(name)
    numbers = wanted.pop("numbers", {})
    assert seen.pop("numbers", {}) == pytest.approx(numbers, rel=1e-6, nan_ok=True)
    assert seen == wanted
