"""Pins over HTTP on a real vLLM server."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.schema import SchedulerEvent
from live_server import BLOCK, Live, cached, continued, live, tokens
from waiting import until

pytestmark = pytest.mark.slow

_numbers = count(1)


def fresh(name: str) -> tuple[str, int]:
    """A program id and a seed that no other test uses."""
    number = next(_numbers)
    return f"{name}-{number}", 1000 * number


def crowd(server: Live, seed: int, programs: int = 4, length: int = 4800) -> None:
    """Load that together fills the pool, and of which nothing is held."""
    for number in range(programs):
        server.complete(tokens(length, seed + number), output=4, program_id=f"crowd-{seed}-{number}", is_last_step=1)


def said(events: list[SchedulerEvent], kind: str, fact: str = "event") -> list[Any]:
    """One fact of all events of a kind, in order."""
    return [getattr(event, fact) for event in events if event.event == kind]


def endings(server: Live, program: str) -> list[str | None]:
    return said(server.events(program), "finish", "status")


@pytest.fixture(autouse=True)
def _nothing_leaks(request: pytest.FixtureRequest) -> Any:
    """After every test, once the pins have ended, all blocks are free again."""
    yield
    for name in {"emulated", "paced"} & set(request.fixturenames):
        server: Live = request.getfixturevalue(name)
        until(server.is_idle)
        for row in server.state()["program_list"]:
            server.release(row["program_id"])
        state = server.state()
        assert state["pins"] == state["soft_holds"] == []
        assert state["pinned_tokens"] == 0
        assert state["free_blocks"] == server.blocks - 1  # vLLM keeps the null block


POOL: dict[str, Any] = {"kv_blocks": 1200, "block_size": BLOCK, "max_model_len": 16_000, "policy": "static-ttl"}


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Pins of 2 s, and twenty times faster than the modelled GPU."""
    fast = EmulatedSettings(time_scale=20.0)
    with live(tmp_path_factory.mktemp("emulated"), policy_options={"ttl_s": 2.0}, emulated=fast, **POOL) as found:
        yield found


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """At the modelled GPU's own pace: an answer of 8,000 tokens takes a minute, however late anything here is."""
    with live(tmp_path_factory.mktemp("paced"), policy_options={"ttl_s": 600.0}, **POOL) as found:
        yield found


@pytest.mark.parametrize("wish", [{"kv_ttl_s": 600}, {"is_last_step": 1}])
def test_a_soft_hold_survives_a_crowd_that_evicts_what_is_not_held(emulated: Live, wish: dict[str, int]) -> None:
    program, seed = fresh("survives")
    prompt = tokens(6000, seed)
    first = emulated.complete(prompt, output=40, program_id=program, **wish)
    crowd(emulated, seed + 1)
    second = emulated.complete(continued(prompt, first, 200, seed + 99), program_id=program, is_last_step=1)
    assert cached(second) >= 6040 - 2 * BLOCK if "kv_ttl_s" in wish else cached(second) < 6040 // 4


EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
HINTS: list[tuple[dict[str, Any], bool]] = [
    ({"cache_control": EPHEMERAL}, True),
    ({"prompt_cache_retention": "24h"}, True),
    ({"prompt_cache_options": {"ttl": "30m"}}, True),
    ({"kv_hints": {"actions": [{"type": "kv.retain", "duration": 300}]}}, True),
    ({"retention_seconds": 10**12}, True),
    ({"kv_cache_ttl_seconds": 600}, True),
    ({"nvext": {"cache_control": EPHEMERAL}}, True),
    ({"cache_control": {"type": "ephemeral", "ttl": "a year"}}, False),
    ({"retention_seconds": -1}, False),
    ({"kv_cache_ttl_seconds": [600]}, False),
]
"""Fields of requests, and whether they keep KV."""


@pytest.mark.parametrize(("hint", "keeps"), HINTS, ids=lambda value: str(value).replace(" ", "") if value else "")
def test_a_retention_hint_leaves_a_soft_hold_that_the_next_turn_finds(
    emulated: Live, hint: dict[str, Any], keeps: bool
) -> None:
    """The hold is no longer than the operator allows. A hint that cannot be read leaves none."""
    program, seed = fresh("hinted")
    prompt = tokens(6000, seed)
    body = {"ignore_eos": True, "return_token_ids": True, "vllm_xargs": {"program_id": program}, **hint}
    first = emulated.client.completions.create(model=emulated.model, prompt=prompt, max_tokens=40, extra_body=body)

    def after_the_pin() -> dict[str, Any] | None:
        (row,) = [row for row in emulated.state()["program_list"] if row["program_id"] == program]
        return row if row["state"] in ("soft", "idle") else None

    row = until(after_the_pin) or {}
    assert row["state"] == ("soft" if keeps else "idle")
    assert not keeps or 0.0 < row["expires_in_s"] <= 600.0
    crowd(emulated, seed + 1)
    second = emulated.complete(continued(prompt, first, 200, seed + 99), program_id=program, is_last_step=1)
    assert cached(second) >= 6040 - 2 * BLOCK if keeps else cached(second) < 6040 // 4
    assert said(emulated.events(program, "unpin"), "unpin", "reason") == ["expired"]


def test_a_conversation_without_an_id_is_held(paced: Live) -> None:
    (_, seed), held = fresh("untagged"), ""
    prompt = tokens(3000, seed)
    for turn in range(3):
        before = set(paced.pins())
        answer = paced.complete(prompt, output=40)
        until(paced.is_idle)
        new = set(paced.pins()) - before
        assert len(new) == (turn == 0)  # it is held after a large first prompt, and later turns are the same program's
        held = next(iter(new), held)
        if turn:
            assert cached(answer) >= 3000 - 2 * BLOCK
        prompt = continued(prompt, answer, 100, seed + turn)
        crowd(paced, seed + 10 * (turn + 1), programs=4 if turn else 0)
    assert said(paced.events(held), "arrive", "turn") == [0, 1, 2]
    paced.release(held)


def test_a_stop_string_ends_a_turn_as_well_as_any_other_end(paced: Live) -> None:
    """An agent in ReAct style: each answer is cut where its tool's output would begin."""
    program, seed = fresh("stops")
    prompt = tokens(3000, seed)
    text = paced.complete(prompt, output=60, program_id=program).choices[0].text
    paced.release(program)
    stop = text[len(text) // 2 :][:6]
    body = {"ignore_eos": True, "return_token_ids": True, "vllm_xargs": {"program_id": program}}
    ask = paced.client.completions.create
    first: Any = ask(model=paced.model, prompt=prompt, max_tokens=3000, stop=[stop], extra_body=body)
    assert first.choices[0].finish_reason == "stop"
    until(lambda: program in paced.pins())
    until(lambda: endings(paced, program) == ["length", "stop"])
    crowd(paced, seed + 1)
    second = paced.complete(continued(prompt, first, 50, seed + 9), program_id=program)
    assert cached(second) >= 3000 - 2 * BLOCK


@pytest.mark.parametrize("stop", [None, ["never"]])
def test_a_client_that_leaves_in_mid_stream_leaves_nothing(paced: Live, stop: list[str] | None) -> None:
    """Also before the stop string of its request."""
    program, seed = fresh("leaves")
    prompt = tokens(2000, seed)
    first = paced.complete(prompt, program_id=program)
    stream = paced.client.completions.create(
        model=paced.model,
        prompt=continued(prompt, first, 50, seed + 1),
        max_tokens=8000,
        stop=stop,
        stream=True,
        extra_body={"ignore_eos": True, "vllm_xargs": {"program_id": program}},
    )
    next(iter(stream))
    stream.close()
    until(lambda: endings(paced, program) == ["length", "abort"])
    assert program not in paced.pins()


def test_an_expired_pin_is_gone(emulated: Live) -> None:
    program, seed = fresh("expiry")
    emulated.complete(tokens(3000, seed), program_id=program)
    until(lambda: program not in emulated.pins())
    events = emulated.events(program, last="unpin")
    assert (said(events, "pin", "ttl_s"), said(events, "unpin", "reason")) == ([2.0], ["expired"])
    assert said(events, "unpin", "t")[0] > said(events, "pin", "t")[0] + 2.0
