"""Why a returning turn found its KV or did not: one by one, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_analysis.metrics import measure
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.misses import CAUSES, HITS, Limits, Return, cause_rows, explain, limits_of
from continuum_analysis.records.reading import add_arrivals, add_client_records, client_events, order_events
from continuum_analysis.records.timeline import ProgramTimes
from continuum_traces.records.scheduler_timestamps import read_preview, write_preview
from continuum_traces.schema import ArrivalRecord, Engine, Hardware, KvPool, Manifest, SchedulerEvent, TurnRecord
from recorded_runs import served

E = SchedulerEvent
BLOCK = Limits(block_tokens=16)


def first(tool: str | None = "ls", status: str = "stop", program: str = "p") -> list[SchedulerEvent]:
    """100 tokens in, 20 out, 1 s to 3 s."""
    return served(program, 0, 0.0, 100, status=status, output_tokens=20, tool=tool)


def second(arrive_s: float, hit_tokens: int, prompt_tokens: int = 200, program: str = "p") -> list[SchedulerEvent]:
    return served(program, 1, arrive_s, prompt_tokens, hit_tokens, 0.5, 1.5)


def pin(until_s: float, reason: Any, program: str = "p") -> list[SchedulerEvent]:
    return [E(3.0, "pin", program, 0, ttl_s=2.0, tokens=112), E(until_s, "unpin", program, 0, reason=reason)]


RELOAD = E(4.2, "reload", "p", 1, tokens=96, bytes=1000)
OTHER_PINS = [*first(program="q"), *pin(5.0, "expired", "q")]


def cause_of(events: Sequence[SchedulerEvent], limits: Limits = BLOCK) -> Return:
    (found,) = [found for found in explain(order_events(events), limits) if found.program_id == "p"]
    return found


@pytest.mark.parametrize(
    ("cause", "events"),
    [
        ("pinned", [*first(), *pin(4.5, "hit"), *second(4.0, 112)]),
        ("cached", [*first(), *second(4.0, 96)]),
        ("cached", [*first(), *pin(5.0, "expired"), *second(9.0, 112)]),  # expired, and nobody took the blocks
        ("reloaded", [*first(), *second(4.0, 112), RELOAD]),
        ("elsewhere", [*first(), *pin(5.0, "expired"), *(replace(e, replica=1) for e in second(4.0, 0))]),
        ("state", [*first(), *pin(4.0, "gone"), *second(4.0, 0)]),
        ("expired", [*first(), *pin(5.0, "expired"), *second(6.25, 0)]),
        ("pressure", [*first(), *pin(3.5, "pressure"), *second(4.0, 16)]),
        ("dropped", [*first(), *pin(3.5, "shutdown"), *second(4.0, 0)]),
        ("left", [*first(), *pin(3.5, "hit"), *(replace(e, left_at=16) for e in second(4.0, 16))]),
        ("pinned", [*first(), *pin(4.5, "hit"), *(replace(e, left_at=80) for e in second(4.0, 96))]),  # it was cached
        ("no pins", [*first(), *second(4.0, 0)]),
        ("no tool", [*first(tool=None), *second(4.0, 0), *OTHER_PINS]),
        ("ttl 0", [*first(), *second(4.0, 0), *OTHER_PINS]),
        ("failed before", [*first(status="abort"), *second(4.0, 0), *OTHER_PINS]),
        ("overlap", [*first(), *second(2.0, 0), *OTHER_PINS]),
        ("rewritten", [*first(), *second(4.0, 32, prompt_tokens=80)]),
    ],
)
def test_each_cause(cause: str, events: list[SchedulerEvent]) -> None:
    found = cause_of(events)
    assert found.cause == cause
    assert found.hit == (cause in HITS) == CAUSES[cause].startswith("hit")


def test_how_late_and_how_much() -> None:
    found = cause_of([*first(), *pin(5.0, "expired"), *second(6.25, 16)])
    # the first prompt is there again in whole blocks; whether its reply came back is not recorded
    assert (found.late_s, found.tool_s, found.reusable_tokens, found.lost_tokens) == (1.25, 3.25, 96, 80)
    programs = order_events(
        [*first(), *pin(5.0, "expired"), *second(6.25, 16), *OTHER_PINS, *second(6.0, 112, program="q")]
    )
    cached, expired = cause_rows(explain(programs, BLOCK))
    assert (cached.cause, cached.turns, cached.share) == ("cached", 1, 0.5)
    assert (expired.cause, expired.turns, expired.share) == ("expired", 1, 0.5)
    assert (expired.lost_tokens, expired.late_p50_s, expired.wait_mean_s) == (80, 1.25, 0.5)
    events = [*first(), *second(4.0, 112)]
    events.insert(4, RELOAD)
    assert measure(facts_of(order_events(events))).values["reloads"] == 1


def test_a_full_pool_of_pins_is_told_from_a_ttl_of_zero() -> None:
    events = [*first(), *second(4.0, 0), *OTHER_PINS]
    assert cause_of(events, Limits(16, pinned_tokens=119)).cause == "guard"  # p would have held 120 at 3.0
    assert cause_of(events, Limits(16, pinned_tokens=120)).cause == "ttl 0"


def test_a_replay_knows_what_was_there_before() -> None:
    """History cut to 48 tokens: 48 found is all there was; without the replay's word it would look rewritten."""
    programs = order_events([*first(), *second(4.0, 48, prompt_tokens=90)])
    assert explain(programs, BLOCK)[0].cause == "rewritten"
    add_client_records(programs, [TurnRecord("p", 1, 4.0, 4.0, finish_s=6.0, reusable_tokens=50, is_last=True)])
    (found,) = explain(programs, BLOCK)
    assert (found.cause, found.reusable_tokens, found.lost_tokens) == ("cached", 48, 0)


def of_the_preview(events: Sequence[SchedulerEvent], tmp_path: Path) -> list[ProgramTimes]:
    write_preview(tmp_path / "preview", sorted(events, key=lambda event: event.t))
    return order_events(read_preview(tmp_path / "preview"))


PREVIEWS: list[tuple[str, str, list[SchedulerEvent]]] = [
    ("pinned", "pinned", [*first(), *pin(4.5, "hit"), *second(4.0, 112)]),
    ("overlap", "overlap", [*first(), *second(2.0, 0), *OTHER_PINS]),
    ("ttl 0", "unknown", [*first(), *second(4.0, 0), *OTHER_PINS]),
    ("pressure", "unknown", [*first(), *pin(4.2, "pressure"), *second(4.0, 16)]),  # given up while the turn waited
]


@pytest.mark.parametrize(("native", "preview", "events"), PREVIEWS)
def test_the_preview_says_the_same_or_that_it_does_not_know(
    tmp_path: Path, native: str, preview: str, events: list[SchedulerEvent]
) -> None:
    assert cause_of(events).cause == native
    assert [found.cause for found in explain(of_the_preview(events, tmp_path), BLOCK)][:1] == [preview]


PROMPTS = (1003, 1333, 2087, 2477)


def growing(program: str, lost: int = 0) -> list[SchedulerEvent]:
    """Four turns whose prompts are no whole number of blocks, each with a hit of whole blocks less ``lost``."""
    events = []
    for turn, (prompt, before) in enumerate(zip(PROMPTS, (0, *PROMPTS), strict=False)):
        t, hit = 10.0 * turn, max(0, before // 16 * 16 - lost)
        events += served(program, turn, t, prompt, hit, run_s=1.0, tool="ls")
        events += [
            E(t + 2, "pin", program, turn, ttl_s=20.0, tokens=prompt),
            E(t + 11, "unpin", program, turn, reason="hit"),
        ]
    return events


def test_without_a_manifest_the_block_size_is_read_from_the_hits(tmp_path: Path) -> None:
    """A server that does not tell its block size, and the preview's files: whole blocks are hits there too."""
    events = growing("p")
    for programs in (order_events(events), of_the_preview(events, tmp_path)):
        assert limits_of(None, programs).block_tokens == 16
        assert [found.cause for found in facts_of(programs).returns] == ["pinned"] * 3
    assert limits_of(Manifest(hardware=Hardware(kv_capacity=KvPool(block_size=32))), programs).block_tokens == 32
    assert limits_of(None, order_events(growing("p", lost=7))).block_tokens == 1  # a server that caches single tokens
    assert limits_of(None, order_events(first())).block_tokens == 16  # too few hits to tell


def test_a_client_alone_knows_hits_from_misses_and_no_reasons() -> None:
    """What the client recorded of a server that is not ours; the scheduler's events are made from it."""
    hits = (None, 992, 1328, 0)
    records = []
    for turn, (prompt, before, hit) in enumerate(zip(PROMPTS, (0, *PROMPTS), hits, strict=False)):
        counts = {"prompt_tokens": prompt, "cached_tokens": hit, "reusable_tokens": before, "is_last": turn == 3}
        records.append(TurnRecord("p", turn, 10.0 * turn, 10.0 * turn, finish_s=10.0 * turn + 2, **counts))  # type: ignore[arg-type]
    run = facts_of(add_client_records(order_events(client_events(records)), records))
    assert [found.cause for found in run.returns] == ["found", "found", "unknown"]
    assert [found.hit for found in run.returns] == [True, True, False]


def test_a_machine_of_two_gpus_and_a_window() -> None:
    """Tokens by GPU; a warm-up's program is in no metric, one that never came back in the denominator."""
    programs = order_events([*first(), *second(4.0, 96), *first(program="warm")])
    warm_up = ArrivalRecord("warm", 0, 0.0, counted=False)
    arrivals = [warm_up, ArrivalRecord("p", 1, 0.0), ArrivalRecord("lost", 2, 1.0)]
    manifest = Manifest(hardware=Hardware(tensor_parallel=2), engine_options=Engine(block_size=16))
    run = measure(facts_of(add_arrivals(programs, arrivals), manifest))
    assert run.facts.unfinished == ("lost",)
    expected = {"programs": 2, "programs_finished_share": 0.5, "wall_s": 6.0, "jct_p50_s": None}
    expected["throughput_output_tokens_per_s_per_gpu"] = (20 + 5 + 20) / 6 / 2  # the warm-up's tokens too
    assert {name: run.values[name] for name in expected} == expected
    assert [p.program_id for p in run.facts.machine] == ["p", "warm"]


@pytest.mark.parametrize(("hits", "block"), [((96, 224), 16), ((96, 224, 352), 32), ((96, 224, 352, 359), 1)])
def test_a_block_size_is_read_from_three_different_hits(hits: tuple[int, ...], block: int) -> None:
    """Two may agree by chance in twice the block or more; then the usual size is assumed."""
    events = [event for turn, hit in enumerate(hits) for event in served("p", turn, 10.0 * turn, 500, hit)]
    repeated = served("p", len(hits), 10.0 * len(hits), 500, hits[0])  # tells nothing new
    assert limits_of(None, order_events([*events, *repeated])).block_tokens == block


@pytest.mark.parametrize(("hit", "whole"), [(96, True), (80, True), (79, False)])
def test_a_hit_may_lack_one_block(hit: int, whole: bool) -> None:
    """Of the prompt's 100 tokens six blocks can be there; vLLM may compute the last one again."""
    returned = cause_of([*first(), *second(4.0, hit)])
    assert (returned.reusable_tokens, returned.hit) == (96, whole)
