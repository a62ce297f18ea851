"""One server for the tests that replay against a real one: starting it takes ten to twenty seconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_cli import small_trace
from continuum_server.emulated.settings import EmulatedSettings
from live_server import Live, live


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """At the modelled GPU's own pace; every turn is held for a minute."""
    config = {"kv_blocks": 2000, "max_model_len": 16_000, "emulated": EmulatedSettings()}
    folder = tmp_path_factory.mktemp("server")
    with live(folder, policy="static-ttl", policy_options={"ttl_s": 60.0}, **config) as found:
        yield found


@pytest.fixture(scope="session")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_trace(tmp_path_factory.mktemp("trace") / "small.jsonl")
