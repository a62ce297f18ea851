"""What the logger says at DEBUG."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext

import pytest
from fake_server import FakeServer

from continuum_client import ContinuumWarning, OpenAI


def test_what_was_sent_refused_and_released(serve: Callable[..., FakeServer], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "continuum_client")
    for schema in ("vllm", "openai"):
        server = serve(schema)
        client = OpenAI(base_url=server.url, dialect="vllm")
        expected = nullcontext() if schema == "vllm" else pytest.warns(ContinuumWarning, match="refuses session_id")
        with client.program(f"for {schema}"), expected:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a secret"}])
    said = [record.getMessage() for record in caplog.records if record.name == "continuum_client"]
    sent, released, sent_again, refused = said[:4]
    assert "program for vllm, turn 0-" in sent
    assert "['vllm_xargs', 'session_id', 'prompt_cache_key']" in sent
    assert released.startswith("program for vllm: the release of a program was sent to http://127.0.0.1:")
    assert "for openai" in sent_again
    assert "refuses the body fields" in refused
    assert "a secret" not in " ".join(said)
