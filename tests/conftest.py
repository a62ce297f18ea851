"""Shared fixtures. Real traces are used where ../shared/traces exists beside the checkout."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["COLUMNS"] = "160"  # several test processes have 80, one has none

gc.disable()  # until all tests are collected: a fifth of that time is spent on imports that leave no garbage

REAL_TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "traces"


@pytest.fixture(scope="session")
def real_traces() -> Path:
    if not REAL_TRACES.is_dir():
        pytest.skip("no real traces beside this checkout (../shared/traces)")
    return REAL_TRACES


@pytest.fixture(autouse=True)
def _our_log(caplog: pytest.LogCaptureFixture) -> None:
    """Parts of vLLM that a test imports set the root logger's level; ours is what it is in a server."""
    caplog.set_level(logging.WARNING, logger="continuum")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For several processes: tests that share a server or another costly fixture run in one, slow tests run first."""
    for item in items:
        group = _shared_by(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _shared_by(item: pytest.Item) -> str | None:
    """The folder or file whose module or session fixtures this test uses; None where it uses none of ours."""
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest names it privately
    homes = [
        definitions[-1].baseid
        for definitions in fixtures.values()
        if definitions[-1].scope != "function" and definitions[-1].baseid.startswith("tests/")
    ]
    return min(homes, key=len) if homes else None


settings.register_profile(
    "shared",
    max_examples=100 if os.environ.get("CI") else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared")  # machines are slow at times: no test depends on how fast it runs
