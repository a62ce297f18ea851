"""Shared fixtures. Real traces are used where ../shared/traces exists beside the checkout."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

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


settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")  # machines are slow at times: no test depends on how fast it runs
