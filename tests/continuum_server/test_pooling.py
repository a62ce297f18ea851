"""Embeddings on vLLM's scheduler: texts that extend each other are no conversation, so nothing is held for the next."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from continuum_server.policy.registry import POLICIES
from layouts import Engine
from live_server import tokens
from nano import each_policy
from vllm.pooling_params import PoolingParams
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

TEXTS = [200, 320, 440, 560]
"""Lengths of texts each of which extends the one before."""


class Pooling(Engine):
    """A scheduler whose model answers with an embedding."""

    def embed(self, prompt: list[int], session: str | None) -> Request:
        self._number += 1
        params = PoolingParams(task="embed")
        request = Request(f"r{self._number}", prompt, None, params, block_hasher=self._hasher)
        request.session_id = session  # type: ignore[attr-defined]  # vLLM 0.26 has none
        self.scheduler.add_request(request)
        while not request.is_finished():
            self.step()
        return request

    def deliver(self) -> None:
        output, samples = self._steps.popleft()
        names = [name for name, _ in samples]
        vectors = [torch.zeros(4) if whole else None for _, whole in samples]
        places = {name: n for n, name in enumerate(names)}
        self.scheduler.update_from_output(
            output, ModelRunnerOutput(names, places, [[]] * len(names), pooler_output=vectors)
        )


@each_policy([name for name, policy in sorted(POLICIES.items()) if policy.label != "bound"])
@pytest.mark.parametrize("session", [None, "s"])
def test_texts_that_extend_each_other_are_never_held(policy: str, session: str | None) -> None:
    options: dict[str, Any] = {"ttl_s": 1e6} if policy == "static-ttl" else {}
    engine, text = Pooling("llama", policy=policy, options=options), tokens(TEXTS[-1], 1)
    for length in TEXTS:
        engine.embed(text[:length], session)
        assert not engine.scheduler.table.pins
        assert engine.pool.get_num_free_blocks() == engine.free_at_start
        assert not [*engine.scheduler.table.programs()]


def test_answers_to_the_same_prompts_are_held() -> None:
    """So the test above can fail."""
    engine, text = Engine("llama", policy="static-ttl"), tokens(TEXTS[-1], 1)
    for length in TEXTS:
        engine.turn("p", text[:length])
    assert len(engine.scheduler.table.pins) == 1
