"""Answers that vLLM's engine aborts because the server stops: an error, never a success with too few tokens."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from continuum_server.vllm_plugin.stopping import STOPPING, WholeOrError

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"70")]}
TOKEN = b'data: {"choices":[{"index":0,"text":"w","finish_reason":null}]}\n\n'
GOOD = b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n'
ABORT = b'data: {"choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'
WHOLE = b'{"choices":[{"index":0,"text":"w","finish_reason":"abort"}]}'
QUOTED = json.dumps({"text": '"finish_reason":"abort"', "finish_reason": "stop"}).encode()
DONE = b"data: [DONE]\n\n"
EVENT = b"data: " + json.dumps(STOPPING).encode() + b"\n\n"


def sent(draining: bool, *parts: bytes) -> tuple[int, list[bytes]]:
    """Status and bodies that a client gets of an answer in these parts."""
    messages: list[Any] = []
    stops = threading.Event()

    async def note(message: Any) -> None:
        messages.append(message)

    async def answer() -> None:
        send = WholeOrError(note, stops)
        await send(START)
        for number, part in enumerate(parts):
            if (draining and number == len(parts) - 2) or (len(parts) == 1 and draining):
                stops.set()
            await send({"type": "http.response.body", "body": part, "more_body": part != parts[-1]})

    asyncio.run(answer())
    assert [message["type"] for message in messages].count("http.response.start") == 1
    assert not messages[-1].get("more_body")
    if messages[0]["status"] == 503:
        length = str(len(messages[1]["body"])).encode()
        assert dict(messages[0]["headers"]) == {b"content-type": b"application/json", b"content-length": length}
    return messages[0]["status"], [message["body"] for message in messages[1:]]


@pytest.mark.parametrize("parts", [(WHOLE,), (ABORT, DONE), (WHOLE.replace(b'":"', b'": "'),)])
def test_an_answer_that_has_not_begun_is_503(parts: tuple[bytes, ...]) -> None:
    status, bodies = sent(True, *parts)
    assert (status, [json.loads(body) for body in bodies]) == (503, [STOPPING])


def test_a_stream_that_has_begun_ends_with_an_error_event() -> None:
    assert sent(True, TOKEN, ABORT, DONE) == (200, [TOKEN, EVENT])


@pytest.mark.parametrize("parts", [(TOKEN, GOOD, DONE), (QUOTED,)])
def test_whole_answers_pass_while_the_server_stops(parts: tuple[bytes, ...]) -> None:
    assert sent(True, *parts) == (200, list(parts))


@pytest.mark.parametrize("parts", [(TOKEN, ABORT, DONE), (WHOLE,)])
def test_aborts_of_a_server_that_does_not_stop_are_vllm_s_own(parts: tuple[bytes, ...]) -> None:
    """Such as those of ``POST /pause?mode=abort``."""
    assert sent(False, *parts) == (200, list(parts))
