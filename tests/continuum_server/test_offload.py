"""Tiers below GPU memory on vLLM's real offloading code: nothing leaks or is lost, times are those of the links."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from continuum_server.policy.facts import Machine, PrefillCurve, Stored
from continuum_server.policy.limits import LimitError
from continuum_server.virtual.config import EngineShape
from continuum_server.virtual.offload import Offload, OffloadError, Tier, default_preset, read_offload
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import BITING, BLOCK_BYTES, GROUPED, TIERS, Played, build, each_policy, play, program, tier, workloads
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput


@each_policy()
@given(jobs=workloads(), blocks=st.integers(48, 100))
@settings(max_examples=3)
def test_a_tier_without_room_is_no_tier(policy: str, jobs: list[Job], blocks: int) -> None:
    """vLLM's code runs and finds no room for a block.

    That code also steps while copies are under way in an engine without requests. A pin whose deadline has passed is
    released at the first step after it, so it may be released sooner there; the turns take as long all the same. But
    ``concur`` looks at the batch of the first step after a check is due, and may find another window.
    """
    played = [play(jobs, policy, BITING[policy], blocks=blocks, offload=each) for each in (None, Offload(tier(0.5)))]
    assert played[1].loop.transfers is not None
    assert policy == "concur" or played[0].turns == played[1].turns


@each_policy()
@given(jobs=workloads(), blocks=st.integers(48, 100))
@settings(max_examples=3)
def test_with_an_endless_tier_every_returning_turn_hits(policy: str, jobs: list[Job], blocks: int) -> None:
    """All full blocks of the last prompt are found, wherever they were."""
    played = play(jobs, policy, BITING[policy], blocks=blocks, offload=TIERS["endless"])
    for job in jobs:
        prompts = job.program.prompt_tokens()
        hits = {e.turn: e.hit_tokens or 0 for e in played.of("start") if e.program_id == job.program.program_id}
        for index, (before, now) in enumerate(pairwise(prompts), 1):
            assert hits[index] >= min(before, now - 1) // 16 * 16


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize(
    ("policy", "options"),
    [("static-ttl", {"ttl_s": 0.0}), ("static-ttl", {"ttl_s": 1e4}), ("continuum", {}), ("working-set", {})],
)
def test_with_a_tier_a_turn_finds_all_groups_as_in_an_idle_pool(
    name: str, policy: str, options: dict[str, Any]
) -> None:
    """Rivals take the pool while the tool runs: what was held, and what was not, is found in every group."""
    model, blocks = GROUPED[name]

    def hits(**rest: Any) -> list[int | None]:
        rivals = [Job(program(f"r{i}", turns=1, new=800, output=2), 0.1 + 0.12 * i) for i in range(4)]
        jobs = [Job(program("a", turns=3, new=160, output=20, tool_s=1.0), 0.0), *rivals]
        played = play(jobs, rest.pop("policy", policy), rest.pop("options", options), model=model, **rest)
        return [event.hit_tokens for event in played.of("start") if event.program_id == "a"]

    idle = hits(blocks=2000)
    assert min(found or 0 for found in idle[1:]) > 100
    assert hits(blocks=blocks, policy="static-ttl", options={"ttl_s": 0.0})[1] == 0, "the rivals took it"
    assert hits(blocks=blocks, offload=TIERS["endless"]) == idle


# --------------------------------------------------------------------------------------------- hand arithmetic


def crowded_out(tool_s: float = 1.0) -> list[Job]:
    """A program whose KV leaves the GPU while its tool runs: rivals fill the pool, and are gone when it returns."""
    rivals = [Job(program(f"r{i}", turns=1, new=800, output=2), 0.1 + 0.12 * i) for i in range(3)]
    return [Job(program("a", turns=2, new=160, output=2, tool_s=tool_s), 0.0), *rivals]


def slow_back(blocks_s: float, latency_s: float = 0.0) -> Tier:
    """Stores take next to no time, loads so many blocks a second."""
    return replace(tier(400, blocks_s, latency_s), write_gb_s=1e6)


def second_turn(played: Played) -> dict[str, Any]:
    return {e.event: e for e in played.events if (e.program_id, e.turn) == ("a", 1)}


@pytest.mark.parametrize(("blocks_s", "latency_s"), [(100.0, 0.0), (100.0, 0.05), (1e9, 0.25)])
def test_a_reload_takes_latency_and_bytes_over_bandwidth(blocks_s: float, latency_s: float) -> None:
    """Ten blocks come back; the load begins when the turn arrives and is seen by the next step after its end."""
    events = second_turn(play(crowded_out(), offload=Offload(slow_back(blocks_s, latency_s))))
    assert (events["reload"].tokens, events["reload"].bytes) == (160, 10 * BLOCK_BYTES)
    assert events["start"].hit_tokens == 160
    assert events["reload"].t == events["arrive"].t
    assert events["start"].t - events["reload"].t == pytest.approx(latency_s + 10 / blocks_s)


def test_a_load_behind_another_waits_for_it() -> None:
    """Two programs of ten blocks return 10 ms apart: the second's KV comes 0.1 s after the first's."""
    jobs = crowded_out()
    jobs.append(Job(program("b", turns=2, new=160, output=2, tool_s=1.0), 0.0))
    played = play(jobs, offload=Offload(slow_back(100.0)))
    starts = {e.program_id: e.t for e in played.of("start") if e.turn == 1}
    reloads = {e.program_id: e.t for e in played.of("reload")}
    assert 0.0 < reloads["b"] - reloads["a"] < 0.02
    assert starts["a"] - reloads["a"] == pytest.approx(0.1)
    assert starts["b"] - reloads["a"] == pytest.approx(0.2, abs=0.03)  # seen after the step that runs meanwhile


def test_what_only_the_ssd_holds_comes_through_dram() -> None:
    """The DRAM tier is filled by the rivals: ten blocks at 50 a second from the SSD, then at 100 to the GPU."""
    rivals = [Job(program(f"r{i}", turns=1, new=800, output=2), 0.5 + 0.2 * i) for i in range(3)]
    jobs = [Job(program("a", turns=2, new=160, output=2, tool_s=60.0), 0.0), *rivals]
    tiers = Offload(tier(55, 100.0, 0.0), replace(tier(400, 50.0, 0.01), write_gb_s=1.0))
    played = play(jobs, offload=tiers)
    events = second_turn(played)
    assert events["start"].hit_tokens == 160
    assert events["reload"].t - events["arrive"].t == pytest.approx(0.01 + 10 / 50)
    assert events["start"].t - events["reload"].t == pytest.approx(10 / 100)
    assert played.loop.transfers is not None
    assert played.loop.transfers.facts()["ssd_to_dram"]["bytes"] == 10 * BLOCK_BYTES


def test_blocks_on_their_way_out_are_not_overwritten() -> None:
    """A link so slow that the pool is wanted again before the copy is done: the step stands still until then."""
    jobs = [Job(program("a", turns=1, new=800, output=2), 0.0), Job(program("b", turns=1, new=800, output=2), 0.0)]
    fast, slow = (play(jobs, offload=Offload(tier(400, speed))) for speed in (1e9, 20.0))
    ends = [max(turn.finish_s or 0.0 for turn in played.turns) for played in (fast, slow)]
    assert ends[1] - ends[0] > 1.0
    assert fast.loop.counters.busy_s == pytest.approx(slow.loop.counters.busy_s, rel=0.1)


def test_turns_of_one_step_end_in_the_same_order_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight end at once. vLLM tells the tier in the order of a set of names, which is another one in each process."""
    ended: list[str] = []
    end = CPUOffloadingManager.on_request_finished
    monkeypatch.setattr(
        CPUOffloadingManager, "on_request_finished", lambda self, of: (ended.append(of.req_id), end(self, of))
    )
    play([Job(program(f"p{i}", turns=1, new=32, output=2), 0.0) for i in range(8)], offload=TIERS["endless"])
    assert len(ended) == 8
    assert ended == sorted(ended)


# ------------------------------------------------------------------------------------------- policies see the tiers


@pytest.mark.parametrize(
    ("offload", "pins"),
    [
        (None, [1, 2]),  # computing 2,400 tokens again takes 0.25 s, the tool 0.2 s
        (Offload(tier(400, 10000.0, 0.0)), []),  # bringing 150 blocks back 0.015 s
        (Offload(tier(400, 100.0, 0.0)), [1, 2]),  # 1.5 s: it is sooner computed than brought back
        (Offload(tier(1)), [1, 2]),  # the tier holds next to nothing of it
    ],
)
def test_continuum_holds_where_the_return_would_cost_more_than_the_hold(
    offload: Offload | None, pins: list[int]
) -> None:
    call = (ToolCall("ls", 0.2),)
    turns = (Turn(2400, 2, tool_calls=call), *[Turn(16, 2, tool_calls=call)] * 2, Turn(16, 2))
    played = play([Job(Program("a", turns), 0.0)], "continuum", {"cold_samples": 0}, blocks=400, offload=offload)
    assert [event.turn for event in played.of("pin")] == pins  # after turn 0 no tool time is known yet


def test_rebuilding_takes_the_faster_way() -> None:
    machine = Machine(PrefillCurve(1e-6, 1e-4, 0.01), 1000, swap_token_s=1e-5, ssd_token_s=4e-5)
    whole_s = 1.0 + 0.1 + 0.01
    assert machine.rebuild_s(1000) == machine.rebuild_s(1000, Stored(0)) == pytest.approx(whole_s)
    assert machine.rebuild_s(1000, Stored(1000)) == pytest.approx(0.01)
    assert machine.rebuild_s(1000, Stored(1000, deep_tokens=500)) == pytest.approx(0.01 + 0.02)
    assert machine.rebuild_s(1000, Stored(600)) == pytest.approx(0.006 + whole_s - (0.36 + 0.06 + 0.01))
    slow = replace(machine, swap_token_s=1.0)
    assert slow.rebuild_s(1000, Stored(1000)) == pytest.approx(whole_s)
    assert replace(machine, swap_token_s=None).rebuild_s(1000, Stored(1000)) == pytest.approx(whole_s)


@pytest.mark.parametrize("blocks_s", [100.0, 1e5])
def test_the_time_of_a_load_is_learned(monkeypatch: pytest.MonkeyPatch, blocks_s: float) -> None:
    """At first that of PCIe 4, as on a server. From the first load on that of the link, without its latency."""
    monkeypatch.setattr(EngineShape, "swap_token_s", None)
    scheduler, loop = build(crowded_out(), "vllm", {}, offload=Offload(slow_back(blocks_s, latency_s=0.05)))
    machine = scheduler.table.policy.machine
    assert machine.swap_token_s == pytest.approx(BLOCK_BYTES / 16 / 25e9)
    loop.run()
    assert machine.swap_token_s == pytest.approx(1 / blocks_s / 16)
    assert scheduler._new_table().policy.machine.swap_token_s == machine.swap_token_s  # after a failure too
    assert build([], "vllm", {})[0].table.policy.machine.swap_token_s is None


def test_loads_of_several_workers_and_steps_are_averaged_by_size() -> None:
    """vLLM adds up what its workers report. A small load, which takes longer by the byte, counts for less."""
    scheduler = build([], "vllm", {}, offload=Offload(tier(400)))[0]
    for size, seconds in ((3200, 0.3), (800, 0.2)):
        reports = []
        for _ in range(2):
            reports.append(OffloadingWorkerMetadata())
            reports[-1].transfer_stats.load.record(size, seconds)
            reports[-1].transfer_stats.store.record(10**9, 1.0)
        scheduler.loads.reported(KVConnectorOutput(kv_connector_worker_meta=reports[0].aggregate(reports[1])), 0.0)
    assert scheduler.loads.token_s == pytest.approx(BLOCK_BYTES / 16 * 0.5 / 4000)
    scheduler.loads.reported(KVConnectorOutput(kv_connector_worker_meta=OffloadingWorkerMetadata()), 0.0)
    scheduler.loads.reported(KVConnectorOutput(finished_recving={"x"}), 0.0)
    assert scheduler.loads.token_s == pytest.approx(BLOCK_BYTES / 16 * 0.5 / 4000)


def test_infercept_preserves_for_no_longer_than_a_reload_is_worth() -> None:
    """Beside a long rival. A fast link ends the hold early, one that is slower than recomputing changes nothing."""
    rival = Job(program("b", turns=1, new=1500, output=300), 0.0)
    jobs = [Job(program("a", turns=2, new=96, output=5, tool_s=3.0), 0.0), rival]

    def kept_s(offload: Offload | None) -> float:
        played = play(jobs, "infercept", blocks=160, offload=offload)
        return played.of("unpin")[0].t - played.of("pin")[0].t

    assert kept_s(Offload(tier(400, 1e6, 0.0))) < 0.2 * kept_s(None)
    assert kept_s(Offload(tier(400, 1.0))) == kept_s(None)


def test_whose_wait_t_is() -> None:
    """Two programs lose their KV to rivals; whether a tier has it when they return or not, their waits count."""
    jobs = crowded_out()
    jobs.append(Job(program("b", turns=2, new=160, output=2, tool_s=1.0), 0.0))

    def samples(offload: Offload | None) -> int:
        policy = play(jobs, "continuum", offload=offload).scheduler.table.policy
        return len(policy.delay._recent)

    assert samples(None) == samples(Offload(tier(400))) == 2


def test_reload_time_is_no_queueing_delay() -> None:
    """T counts the wait for a place, not for the KV on its way, which takes 1 s here."""
    for policy in ("static-ttl", "continuum"):
        scheduler = play(crowded_out(), policy, BITING[policy], offload=Offload(tier(400, 10.0))).scheduler
        assert scheduler.table.policy.delay.mean_s < 0.2


# ------------------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    ("preset", "gpu", "dram", "ssd"),  # GB, read and write in GB/s
    [
        ("dram-100+ssd-400", "a100-80gb", (100.0, 25.0, 25.0), (400.0, 6.5, 3.5)),
        ("DRAM-12.5", "b200", (12.5, 50.0, 50.0), None),
        ("dram-100@pcie3", "h100", (100.0, 12.5, 12.5), None),
        ("dram-100+ssd-400@pcie4/8", "h100", (100.0, 3.125, 3.125), (400.0, 0.8125, 0.4375)),  # for 8 GPUs
    ],
)
def test_presets(preset: str, gpu: str, dram: tuple[float, ...], ssd: tuple[float, ...] | None) -> None:
    made = read_offload(preset, gpu)
    assert made.name == preset.lower().split("@")[0]
    tiers = [(each.gb, each.read_gb_s, each.write_gb_s) if each else None for each in (made.dram, made.ssd)]
    assert tiers == [dram, ssd]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((partial(read_offload, preset, "h100"), "expected dram-100") for preset in ("ssd-400", "dram-")),
        (partial(read_offload, "dram-0+ssd-4", "h100"), "gb = 0.0: must be a number above 0"),
        (partial(read_offload, "dram-1@pcie2", "h100"), "expected"),
        *((partial(replace, tier(1), **{name: -1.0}), name) for name in ("gb", "read_gb_s", "write_gb_s")),
        (partial(replace, tier(1), latency_s=math.nan), "latency_s"),
    ],
)
def test_bad_tiers(make: Callable[[], object], message: str) -> None:
    assert [default_preset(gpu) for gpu in ("a100", "h100", "b200")] == ["dram-100", *["dram-200"] * 2]
    with pytest.raises((OffloadError, LimitError), match=message):
        make()


@pytest.mark.parametrize("policy", ["vllm", "working-set"])
def test_a_loaded_turn_starts_once_the_only_running_request_was_preempted(policy: str) -> None:
    """The turn's KV is loaded, but the rest of its prompt finds no room beside a stream that grows. The stream fills
    the pool, and is preempted. vLLM starts no other request in the same call."""
    back = Program("back", (Turn(480, 2, tool_calls=(ToolCall("t", 1.6),)), Turn(100, 2)))
    rival, stream = program("rival", turns=1, new=900, output=2), program("stream", turns=1, new=340, output=500)
    jobs = [Job(back, 0.0), Job(rival, 0.5), Job(stream, 1.0)]
    played = play(jobs, policy, offload=Offload(slow_back(1e6, 0.5)))
    (preempted,) = played.of("preempt")
    (started,) = (event for event in played.of("start") if (event.program_id, event.turn) == ("back", 1))
    assert preempted.program_id == "stream"
    assert started.t == pytest.approx(preempted.t, abs=0.05)
