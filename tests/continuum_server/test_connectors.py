"""KV connectors other than vLLM's offloading connector: their hits are a tier's hits.

``standin_connector`` always runs. LMCache's own connector runs where it is installed, without workers, as these need a
GPU.
"""

from __future__ import annotations

import copy
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.facts import Stored, TurnStart
from continuum_server.policy.rules.working_set import WorkingSet
from continuum_server.virtual import vllm_setup
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import SchedulerEvent
from nano import BLOCK_BYTES, OneLoop, build, program
from standin_connector import Workers
from vllm.config import KVTransferConfig
from vllm.v1.request import RequestStatus

LOAD_S = 0.001
"""Seconds to load a token."""


def crowded_out() -> list[Job]:
    """A program whose hold has ended when rivals fill the pool. They are gone when it returns."""
    rivals = [Job(program(f"r{i}", turns=1, new=800, output=2), 2.0 + 0.2 * i) for i in range(3)]
    return [Job(program("a", turns=2, new=160, output=2, tool_s=5.0), 0.0), *rivals]


def connected(
    monkeypatch: pytest.MonkeyPatch, connector: str, extra: dict[str, Any], module: str | None = None
) -> None:
    """Let the schedulers that are built have this connector."""
    plain = vllm_setup._vllm_config

    def config(shape: Any) -> Any:
        made = copy.deepcopy(plain(shape))
        made.kv_transfer_config = KVTransferConfig(
            kv_connector=connector,
            kv_role="kv_both",
            kv_connector_module_path=module,
            kv_connector_extra_config=extra,
        )
        made.scheduler_config.disable_hybrid_kv_cache_manager = True  # as a server does with most connectors
        return made

    monkeypatch.setattr(vllm_setup, "_vllm_config", config)


def with_stand_in(monkeypatch: pytest.MonkeyPatch, events: list[SchedulerEvent], **extra: Any) -> tuple[Any, OneLoop]:
    """Return a scheduler with the stand-in, and its loop with the jobs of ``crowded_out``. Nothing has run yet."""
    connected(monkeypatch, "StandIn", extra, "standin_connector")
    workers = Workers(LOAD_S)
    scheduler, loop = build(crowded_out(), "working-set", {}, events=events, transfers=workers)
    workers.clock = lambda: loop.loop.now_s
    return scheduler, loop


def play(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> tuple[Any, list[SchedulerEvent]]:
    """Play the jobs with the stand-in. Return the scheduler, and its events."""
    events = list[SchedulerEvent]()
    scheduler, loop = with_stand_in(monkeypatch, events, **extra)
    loop.run()
    return scheduler, events


def of(events: list[SchedulerEvent], kind: str, program_id: str = "a", turn: int = 1) -> SchedulerEvent:
    (event,) = [each for each in events if (each.event, each.program_id, each.turn) == (kind, program_id, turn)]
    return event


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[TurnStart]:
    """What the policy hears when a turn of the program ``a`` starts."""
    out = list[TurnStart]()
    turn_started = WorkingSet.turn_started

    def heard(policy: WorkingSet, start: TurnStart) -> None:
        if start.turn.program.program_id == "a":
            out.append(start)
        turn_started(policy, start)

    monkeypatch.setattr(WorkingSet, "turn_started", heard)
    return out


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_connectors_hit_is_a_tiers_hit(
    monkeypatch: pytest.MonkeyPatch, starts: list[TurnStart], asynchronous: bool
) -> None:
    """The rivals need the memory, and vLLM evicts the program's KV. The connector loads 160 tokens of it. So the policy
    learns that the KV was evicted, but not lost."""
    _, events = play(monkeypatch, asynchronous=asynchronous)
    assert of(events, "reload").tokens == of(events, "start").hit_tokens == 160
    assert of(events, "reload").bytes == 10 * BLOCK_BYTES
    waited_s = of(events, "start").t - of(events, "reload").t
    assert waited_s == pytest.approx(160 * LOAD_S if asynchronous else 0.0)
    assert (starts[1].kv_was_evicted, starts[1].hit_tokens) == (True, 160)
    assert starts[1].reload_s == pytest.approx(waited_s)


def test_a_connector_that_holds_nothing_is_no_tier(monkeypatch: pytest.MonkeyPatch, starts: list[TurnStart]) -> None:
    """As on a server that only sends KV: nothing is known of a tier, and evicted KV is lost."""
    scheduler, events = play(monkeypatch, asynchronous=True, keeps=False)
    assert not [event for event in events if event.event == "reload"]
    assert (starts[1].kv_was_evicted, starts[1].hit_tokens, starts[1].reload_s) == (True, 0, 0.0)
    assert scheduler.table.policy.machine.swap_token_s is None
    assert scheduler._stored(SimpleNamespace(num_tokens=100)) is None


@pytest.mark.parametrize(("asynchronous", "token_s"), [(True, LOAD_S), (False, BLOCK_BYTES / 16 / 25e9)])
def test_a_connector_is_a_tier_from_its_first_load_on(
    monkeypatch: pytest.MonkeyPatch, asynchronous: bool, token_s: float
) -> None:
    """A load before the request starts is timed; one within the step is not, and keeps the assumed bandwidth."""
    scheduler = play(monkeypatch, asynchronous=asynchronous)[0]
    assert scheduler.table.policy.machine.swap_token_s == pytest.approx(token_s)
    assert scheduler._stored(SimpleNamespace(num_tokens=100)) == Stored(100)


def test_an_aborted_load_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, loop = with_stand_in(monkeypatch, [], asynchronous=True)
    while not scheduler.loads._running:
        assert loop.step()
    scheduler.finish_requests([*scheduler.loads._running], RequestStatus.FINISHED_ABORTED)
    assert not scheduler.loads._running


def test_lmcaches_own_connector(monkeypatch: pytest.MonkeyPatch, starts: list[TurnStart]) -> None:
    """The real ``LMCacheConnectorV1``. A list of prompts is in the place of its workers' storage."""
    if importlib.util.find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")
    from lmcache.v1.lookup_client.abstract_client import LookupClientInterface  # noqa: PLC0415 - it may be missing

    class LookUp(LookupClientInterface):  # type: ignore[misc]
        """A prompt that was looked up was then computed, and its chunks of 32 tokens are stored."""

        def __init__(self) -> None:
            self.stored: list[list[int]] = []

        def lookup_cache(self, lookup_id: str) -> int:
            return -1

        def lookup(self, token_ids: Any, lookup_id: str, request_configs: Any = None) -> int:
            tokens = list(token_ids)
            sizes = range(len(tokens) // 32 * 32, 0, -32)
            hit = next((size for size in sizes if any(each[:size] == tokens[:size] for each in self.stored)), 0)
            self.stored.append(tokens)
            return hit

        def close(self) -> None:
            return

    connected(monkeypatch, "LMCacheConnectorV1", {"lmcache.chunk_size": 32})
    events = list[SchedulerEvent]()
    scheduler, driver = build(crowded_out(), "working-set", {}, events=events)
    scheduler.connector._lmcache_engine._manager._lookup_client = LookUp()
    driver.run()
    assert of(events, "reload").tokens == of(events, "start").hit_tokens == 160
    assert (starts[1].kv_was_evicted, starts[1].hit_tokens) == (True, 160)
    assert scheduler.table.policy.machine.swap_token_s == pytest.approx(BLOCK_BYTES / 16 / 25e9)
