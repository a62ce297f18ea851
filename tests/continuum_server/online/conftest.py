"""One server of each kind for all tests of this folder: starting one takes ten to twenty seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from live_server import BLOCK, Live, live

POOL_BLOCKS = 1200
FAST: dict[str, Any] = {
    "kv_blocks": POOL_BLOCKS,
    "block_size": BLOCK,
    "max_model_len": 16_000,
    "emulated": EmulatedSettings(time_scale=20.0),
}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The plugin under ``static-ttl`` (2 s), a small pool, twenty times faster than the modelled GPU."""
    with live(tmp_path_factory.mktemp("emulated"), policy="static-ttl", policy_options={"ttl_s": 2.0}, **FAST) as found:
        yield found


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The control: vLLM's own scheduler, all else equal."""
    with live(tmp_path_factory.mktemp("stock"), policy="stock", **FAST) as found:
        yield found
