"""Tiny models with windows and states, which vLLM computes on this CPU: a held turn's next one finds its KV after other
requests used the whole pool, and a turn that was not held is found no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_server import cached, continued, live, tokens
from tiny_models import KINDS, write_tiny

pytestmark = pytest.mark.slow

PROMPT, LONGEST = 640, 2048
BLOCKS = {"gemma-3": 400, "gpt-oss": 200, "qwen3-next": 40}
"""Enough for two requests of ``PROMPT`` tokens and some more: a context takes blocks in each group."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_turn_is_found_after_the_pool_was_used(kind: str, tmp_path: Path) -> None:
    """gpt-oss gets vLLM's parser for it, though none was named."""
    model = str(write_tiny(kind, tmp_path / kind))
    policy = {"policy": "static-ttl", "policy_options": {"ttl_s": 600.0}}
    with live(tmp_path, engine="cpu", model=model, max_model_len=LONGEST, kv_blocks=BLOCKS[kind], **policy) as server:
        turns = {}
        for seed, (name, tags) in enumerate({"lost": {"is_last_step": 1}, "held": {}}.items()):
            prompt = tokens(PROMPT, seed)
            turns[name] = prompt, server.complete(prompt, 100, program_id=name, **tags)
        for seed in range(10, 18):
            server.complete(tokens(900, seed), 2, program_id=f"other-{seed}", is_last_step=1)
        assert list(server.pins()) == ["held"]
        hits = {}
        for name in ("held", "lost"):  # the lost one last: it would take blocks that the held one has
            prompt = continued(*turns[name], 50, seed=3)
            hits[name] = cached(server.complete(prompt, 2, program_id=name, is_last_step=1))
    assert hits["lost"] == 0
    assert hits["held"] >= PROMPT // 2
