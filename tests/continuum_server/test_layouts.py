"""Holds and guards of models with several KV cache groups, in vLLM's own scheduler: a held turn's next one hits."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.facts import TurnFinish
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_server.vllm_plugin.versions import check_version
from continuum_traces.schema import SchedulerEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import DENSE, LATEST, LAYOUTS, SPECULATIVE, Engine
from vllm.config import CacheConfig

PROMPT = [n % 900 for n in range(700)]
NEXT = range(2000, 2050)
PAIRS = [pair for pair in product(LAYOUTS, SPECULATIVE) if pair != ("llama-4", "mtp")]
"""vLLM has no chunked attention with MTP."""
MATCHES_WITHIN = "prefix_match_unit" in {field.name for field in fields(CacheConfig)} and check_version() >= "0.32"
"""Before, vLLM's states within a block behave otherwise, and the guard does not always keep them."""
EACH = pytest.mark.parametrize("retention", [LATEST, DENSE])


def next_hits(
    layout: str,
    retention: int | None,
    speculative: str,
    pressure: str = "none",
    prompt: list[int] = PROMPT,
    **rest: Any,
) -> list[int]:
    """What the next turn finds: a continuation of the answer, and a prompt that leaves the answer out.

    Args:
        pressure: when all free blocks are evicted: ``none``, ``after`` the first turn, or also in its ``steps``.
    """
    found = []
    for continues in (True, False):
        engine = Engine(layout, retention, speculative, blocks=400, **rest)
        request = engine.add("p", prompt, 100)
        while engine.scheduler.requests:
            engine.step()
            if pressure == "steps":
                engine.evict()
        if pressure == "after":
            engine.evict()
        context = [*prompt, *request.output_token_ids] if continues else prompt
        found.append(engine.hit("p", [*context, *NEXT]))
        assert engine.leaked() == 0
    return found


@EACH
@pytest.mark.parametrize(("layout", "speculative"), PAIRS)
def test_the_next_turn_finds_under_pressure_what_an_idle_pool_gives(
    layout: str, speculative: str, retention: int | None
) -> None:
    """With pressure in each step only what the answer adds may be lost, where each block of it has its own state.

    Before 0.30 vLLM itself finds nothing of a changed tail with MTP and a checkpoint at the end of the prompt only.
    """
    idle = next_hits(layout, retention, speculative)
    finds_none = (speculative, retention) == ("mtp", LATEST) and layout != "llama" and check_version() < "0.30"
    assert (min(idle) == 0) if finds_none else (min(idle) >= 576)
    assert next_hits(layout, retention, speculative, "after") == idle
    least = [idle[-1]] * 2 if finds_none or (layout == "qwen3-next" and retention is DENSE) else idle
    assert next_hits(layout, retention, speculative, "steps") == least


@pytest.mark.skipif(not MATCHES_WITHIN, reason="this vLLM matches whole blocks")
@pytest.mark.parametrize("speculative", SPECULATIVE)
@pytest.mark.parametrize("tokens", [687, 688, 689, 700, 704])
def test_a_state_at_the_end_of_a_prompt_within_a_block_is_held(tokens: int, speculative: str) -> None:
    """With a match unit of 16 tokens and blocks of 64, it has a block of its own."""
    of: dict[str, Any] = {"layout": "qwen3-next", "retention": LATEST, "speculative": speculative}
    of["prompt"] = [n % 900 for n in range(tokens)]
    idle = next_hits(**of, match_unit=16)
    assert idle[-1] >= next_hits(**of)[-1]
    assert next_hits(**of, pressure="after", match_unit=16) == idle
    assert next_hits(**of, pressure="steps", match_unit=16)[-1] == idle[-1] >= 656


SPARSE = pytest.mark.parametrize("layout", ["gemma-3", "gpt-oss", "qwen3-next", "window-mla", "mistral"])
"""Layouts in which a request loses windows or states."""


@SPARSE
@pytest.mark.parametrize(("policy", "found"), [("vllm", False), ("vllm-guard", True)])
def test_the_guard_alone_keeps_the_end_of_a_prompt_while_others_take_all_that_is_free(
    layout: str, policy: str, found: bool
) -> None:
    """Stock vLLM frees it and may evict it, though the full attention of the whole context is still there."""
    engine = Engine(layout, policy=policy, blocks=400)
    request = engine.add("p", PROMPT, 150)
    while engine.scheduler.requests:
        assert not engine.scheduler.held.blocks
        engine.step()
        if engine.scheduler.requests:
            engine.evict()
    assert bool(engine.hit("p", [*PROMPT, *request.output_token_ids, *NEXT])) is found
    assert engine.leaked() == 0


def test_a_model_of_full_attention_alone_is_not_guarded() -> None:
    engine = Engine("llama", policy="vllm-guard")
    engine.add("p", PROMPT, 150)
    for _ in range(20):
        engine.step()
    assert engine.scheduler.guard.block_count == 0


@pytest.mark.parametrize("layout", ["gemma-3", "qwen3-next"])
def test_a_guard_is_given_up_before_a_running_request_is_preempted(layout: str) -> None:
    """The guard of the prompt that was computed last goes first."""
    engine = Engine(layout, policy="vllm-guard", blocks=400)
    for name in "ab":
        engine.add(name, [n % 700 + ord(name) for n in range(200)], 2000)
        engine.step()
    for _ in range(300):
        engine.step()
    guard = engine.scheduler.guard
    both = guard.block_count
    assert both == 2 * guard.blocks_of("a/1") == 2 * guard.blocks_of("b/2") > 0
    taken = engine.pool.get_new_blocks(engine.pool.get_num_free_blocks())
    while guard.blocks_of("b/2"):
        assert guard.blocks_of("a/1") == both // 2
        engine.step()
        assert len(engine.scheduler.running) == 2
    engine.pool.free_blocks(taken)
    engine.abort(engine.scheduler.requests["a/1"])
    assert guard.block_count == 0
    engine.abort(engine.scheduler.requests["b/2"])
    assert engine.leaked() == 0


@SPARSE
def test_the_prefix_cache_can_be_reset_while_requests_run(layout: str) -> None:
    engine = Engine(layout, policy="vllm-guard", blocks=400)
    engine.add("p", PROMPT, 150)
    for _ in range(5):
        engine.step()
    assert engine.scheduler.guard.block_count > 0
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.leaked() == 0


@SPARSE
def test_nothing_is_held_where_the_next_turn_would_find_nothing(layout: str) -> None:
    """The window or the state was evicted: the guard was given up, and its blocks were taken."""
    engine = Engine(layout, blocks=400)
    request = engine.add("p", PROMPT, 150)
    while engine.scheduler.requests:
        engine.scheduler.guard.release_all()
        engine.evict()
        engine.step()
    assert not engine.scheduler.held.blocks
    assert not engine.scheduler.table.pins
    assert engine.hit("p", [*PROMPT, *request.output_token_ids, *NEXT]) == 0


@given(
    pair=st.sampled_from(PAIRS),
    retention=st.sampled_from([LATEST, DENSE]),
    in_flight=st.sampled_from([0, 1]),
    policy=st.sampled_from(["static-ttl", "vllm-guard", "working-set"]),
    blocks=st.integers(110, 300),
    within=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_no_block_leaks(
    pair: tuple[str, str], retention: int | None, in_flight: int, policy: str, blocks: int, within: bool, seed: int
) -> None:
    """Programs that return, whose prompts change, that are aborted and preempted, in a pool that is too small."""
    layout, speculative = pair
    random = Random(seed)
    engine = Engine(
        layout,
        retention,
        speculative,
        policy=policy,
        blocks=blocks,
        chunk_tokens=128,
        in_flight=in_flight,
        accepts=lambda drafts: random.randint(0, drafts),
        match_unit=16 if within and layout == "qwen3-next" and MATCHES_WITHIN else None,
    )
    contexts: dict[str, list[int]] = {}
    for _ in range(random.randint(5, 40)):
        name = random.choice("abcdef")
        prompt = contexts.get(name, [])[: random.choice([10_000, 10_000, 64])] + [random.randrange(900)] * 60
        if random.random() < 0.5 and not engine.runs(name) and len(prompt) < 300:
            contexts[name] = prompt
            engine.add(name, prompt, random.randint(1, 60), is_last_step=int(random.random() < 0.1))
        elif random.random() < 0.1 and engine.scheduler.requests:
            engine.abort(random.choice([*engine.scheduler.requests.values()]))
        elif random.random() < 0.1 and not engine.scheduler.running:
            engine.evict()
        for _ in range(random.randint(0, 20)):
            engine.step()
    assert engine.leaked() == 0
    assert engine.scheduler.wall.errors == 0
    assert engine.scheduler.guard.block_count == 0


# --------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 700])
def test_what_a_waiting_request_wants_is_what_vllm_takes(layout: str, tokens: int) -> None:
    """Its prompt is computed in one step: vLLM then took as many blocks of the pool as were wanted."""
    engine = Engine(layout, blocks=1000, chunk_tokens=2048)
    request = engine.add("p", PROMPT[:tokens], 20)
    wanted = kv_groups.blocks_wanted(engine.scheduler, request, {})
    engine.step()
    taken = {block.block_id for block in touch_points.blocks_of(engine.scheduler, request) if not block.is_null}
    states = 3 if layout == "qwen3-next" and tokens > 64 else 0  # vLLM takes a block for the prompt's state besides
    assert len(taken) <= wanted <= len(taken) + states


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_footprint_is_what_a_request_keeps_while_it_decodes(layout: str) -> None:
    """Within a block of each group, at lengths of less and of more than a window."""
    for tokens in (20, 100, 700):
        engine = Engine(layout, policy="vllm", blocks=1000, chunk_tokens=2048)
        request = engine.add("p", PROMPT[:tokens], 200)
        for _ in range(150):
            engine.step()
        kept = {block.block_id for block in touch_points.blocks_of(engine.scheduler, request) if not block.is_null}
        machine = engine.scheduler.table.policy.machine
        room = machine.room(request.num_tokens) / engine.scheduler.table.block_tokens
        groups = engine.scheduler.kv_cache_config.kv_cache_groups
        assert len(kept) - 1 <= room
        assert layout == "llama-4" or room <= len(kept) + 2 * len(groups)  # a chunk is full at its end only


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_have_the_bytes_of_one_group_s_blocks(layout: str) -> None:
    """The pool's bytes are those of its blocks, which all groups share."""
    scheduler = Engine(layout).scheduler
    page = scheduler.kv_cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    assert kv_groups.token_bytes(scheduler) * kv_groups.kv_tokens(scheduler) == pytest.approx(1000 * page)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pin_has_the_tokens_that_the_next_turn_finds(layout: str) -> None:
    """Of two pins that share a part of their blocks, both; together they have that part once."""
    engine = Engine(layout, blocks=1000)
    contexts = {name: engine.turn(name, [*PROMPT[:320], *[ord(name)] * 340], 16) for name in "ab"}
    pins = engine.scheduler.table.pins
    kept = {pin.program.name: pin.kept_tokens for pin in pins.values()}
    assert pins.block_count == engine.free_at_start - engine.pool.get_num_free_blocks()
    assert max(kept.values()) < pins.kept_tokens <= sum(kept.values())
    for name, context in contexts.items():
        assert engine.hit(name, [*context, *NEXT]) == kept[name] > 0
    assert engine.leaked() == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_policy_decides_by_what_the_next_turn_finds(layout: str) -> None:
    """Where that is less than the context: to compute the rest again is no loss that a hold saves."""
    engine = Engine(layout, blocks=400)
    policy, seen = engine.scheduler.table.policy, list[TurnFinish]()
    decide = policy.turn_finished
    policy.turn_finished = lambda finish: (seen.append(finish), decide(finish))[1]
    context = engine.turn("p", PROMPT, 100)
    (finish,) = seen
    assert finish.context_tokens == len(context)
    expected = len(context) if layout == "llama" else engine.hit("p", [*context, *NEXT])
    assert finish.kept_tokens == expected


@SPARSE
@pytest.mark.parametrize(("repeated", "how"), [(700, "hit"), (500, "gone")])
def test_a_pin_is_hit_if_its_kv_is_found(layout: str, repeated: int, how: str) -> None:
    """A prompt that changes before its end goes on where no window or state was kept."""
    engine, events = Engine(layout, blocks=400), list[SchedulerEvent]()
    engine.scheduler.sink = SimpleNamespace(write=events.append)
    context = engine.turn("p", PROMPT, 8)
    found = engine.hit("p", [*context[:repeated], *NEXT])
    assert (found > 0) is (how == "hit")
    assert [event.reason for event in events if event.event == "unpin"] == [how]


@pytest.mark.parametrize(
    ("layout", "retention", "said"),
    [
        (
            "llama",
            LATEST,
            ["1 x full attention (blocks of 16 tokens)", "a hold keeps all full blocks of a finished turn"],
        ),
        (
            "gemma-3",
            LATEST,
            ["1 x full attention (blocks of 16 tokens)", "5 x windows of 256 tokens (blocks of 16 tokens)"],
        ),
        (
            "llama-4",
            LATEST,
            ["1 x full attention (blocks of 16 tokens)", "3 x chunks of 512 tokens (blocks of 16 tokens)"],
        ),
        ("qwen3-next", DENSE, ["1 x full attention (blocks of 64 tokens)", "3 x states (blocks of 64 tokens)"]),
    ],
)
def test_the_groups_are_said(layout: str, retention: int | None, said: list[str]) -> None:
    engine = Engine(layout, retention)
    lines = kv_groups.described(engine.scheduler)
    assert lines[:2] == said
    if layout != "llama":
        assert ("at the end of each block" in lines[2]) is (engine.retention is DENSE)


@pytest.mark.parametrize(
    ("first", "missing", "tokens"),
    [
        ({}, set(), 80),
        ({}, {"f3", "f4"}, 48),
        ({"window": 2}, {"f4", "w2"}, 32),  # full attention has 64 tokens, but the window before that has a hole
        ({"window": 2}, {"w4", "w3"}, 48),
        ({"window": 2}, {"w1", "w3"}, 16),  # the context's beginning is shorter than the window
        ({"window": 2}, {"w0", "w2", "w4"}, 0),
        ({"window": 1}, {"w4", "w3", "w1"}, 48),  # a state
    ],
)
def test_what_tiers_could_load_needs_each_group(first: dict[str, int], missing: set[str], tokens: int) -> None:
    groups = [touch_points.Chunks([f"f{n}" for n in range(5)], 16, None)]
    if first:
        groups.append(touch_points.Chunks([f"w{n}" for n in range(5)], 16, first["window"]))
    for order in (groups, groups[::-1]):
        assert touch_points.loadable(order, missing.__contains__) == tokens
