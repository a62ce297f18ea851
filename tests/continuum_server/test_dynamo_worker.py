"""What we add to Dynamo's vLLM worker. test_many_machines.py runs it in Dynamo."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.dynamo_worker import tagged, with_routes

SESSION = {"session_id": "p", "parent_session_id": "main", "session_final": True}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"agent_context": SESSION}, {"parent_id": "main", "is_last_step": 1}),
        ({"agent_context": {**SESSION, "parent_session_id": "", "session_final": "true"}}, {}),
        ({"agent_context": None}, {}),
        ({}, {}),
    ],
)
def test_a_session_s_tags_are_passed_on(request_: dict[str, Any], expected: dict[str, Any]) -> None:
    for there in (None, {"kv_transfer_params": {}}):
        built = tagged(lambda request, seed, extra=None: SimpleNamespace(seed=seed, extra_args=extra))
        params = built(request_, 7, extra=there)
        assert (params.seed, params.extra_args or {}) == (7, {**(there or {}), **expected})


def test_routes_ask_the_engine() -> None:
    asked, routes = list[tuple[str, Any]](), dict[str, Any]()

    async def call(method: str, operation: str, argument: str) -> str:
        asked.append((operation, json.loads(argument)))
        return json.dumps({"released": True})

    core = SimpleNamespace(call_utility_async=call)
    handler = SimpleNamespace(engine_client=SimpleNamespace(engine_core=core))
    runtime = SimpleNamespace(register_engine_route=routes.__setitem__)
    register = with_routes(lambda factory, runtime, endpoint, handler, lora=False: routes.update(lora=lora))
    register(None, runtime, None, handler, lora=True)
    assert routes["lora"] is True
    answer = asyncio.run(routes["continuum/release"]({"program_id": "p"}))
    assert answer == {"program_id": "p", "released": True}
    with pytest.raises(ValueError, match="program id"):
        asyncio.run(routes["continuum/release"]({"program_id": ["p"]}))
    assert asked == [("release", {"program_id": "p", "namespace": None})]
