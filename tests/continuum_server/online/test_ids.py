"""Two turns of each kind of agent that names its conversations, with its own headers and fields, on a vLLM server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import httpx
import pytest
from live_server import BLOCK, Live, cached, continued, live, tokens
from openai.types import Completion
from test_foreign_ids import SHAPES, U1, Shape

pytestmark = pytest.mark.slow

OF_PROMPTS = ("messages", "input", "model", "max_tokens", "stream", "tools", "system", "instructions")
"""Fields of agents' bodies that are left out: the prompts are token ids."""
_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("ids"), policy="working-set", kv_blocks=4000, max_model_len=16_000) as found:
        yield found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.agent)
def test_an_agent_s_turns_are_one_program_and_the_second_finds_the_first(server: Live, shape: Shape) -> None:
    number = next(_numbers)
    own = json.dumps([shape.headers, shape.body, shape.program]).replace(U1, f"{number:08d}{U1[8:]}")
    if shape.program in json.dumps([shape.headers, shape.body]) and U1 not in shape.program:
        own = own.replace(shape.program, f"{shape.program}{number}")
    headers, body, program = json.loads(own)
    asked = {name: value for name, value in body.items() if name not in OF_PROMPTS}
    asked |= {"model": server.model, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    prompt, found = tokens(2000, number), list[int]()
    for _ in range(2):
        url = f"{server.server.url}/v1/completions"
        sent = httpx.post(url, headers=headers, json={**asked, "prompt": prompt}, timeout=60.0)
        assert sent.status_code == 200, sent.text
        answer = Completion.model_validate(sent.json())
        found.append(cached(answer))
        prompt = continued(prompt, answer, 200, number)
    shared = shape.source == "body:prompt_cache_key"  # a key for caches names no program
    rows = [row for row in server.state()["program_list"] if row["recognised_by"] == shape.source]
    (row,) = [row for row in rows if shared or row["program_id"] == program]
    assert (row["recognised_by"], row["turns"]) == (shape.source, 2)
    assert found[0] == 0
    assert found[1] >= 2040 - 2 * BLOCK
    server.release(row["program_id"])
