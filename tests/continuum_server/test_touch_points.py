"""What the plugin takes from vLLM: all of it is checked at start, and a preemption loses no request."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from continuum_server.virtual.loop import Job
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_server.vllm_plugin.preemption import Preemption
from continuum_server.vllm_plugin.versions import PluginError
from nano import build, program
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import DPLBAsyncMPClient
from vllm.v1.request import RequestStatus


def test_the_client_of_several_engines_takes_the_number_of_one() -> None:
    assert "data_parallel_rank" in signature(AsyncLLM.generate).parameters
    assert "engine" in signature(DPLBAsyncMPClient._call_utility_async).parameters


@pytest.fixture
def running() -> Any:
    """A scheduler with one running request."""
    scheduler, loop = build([Job(program("p"), 0.0)], "vllm", {})
    assert loop.step()  # the arrival
    assert loop.step()
    return scheduler


@pytest.mark.parametrize("delivered", [False, True])
def test_a_preemption_needs_nothing_that_vllm_s_next_model_runner_drops(running: Any, delivered: bool) -> None:
    """Stale output is dropped where vLLM drops it."""
    del running.prev_step_scheduled_req_ids
    running.requires_kv_delivery = delivered
    (request,) = running.running
    touch_points.preempt(running, request, 1.0)
    assert (list(running.waiting), running.running) == ([request], [])
    assert request.status == RequestStatus.PREEMPTED
    assert getattr(request, "drop_stale_output", delivered) == delivered  # vLLM 0.26 has no such output


@pytest.mark.parametrize(
    ("section", "name", "value", "why"),
    [
        ("cache_config", "enable_prefix_caching", False, "prefix caching is off"),
        ("vllm_config", "model_config", SimpleNamespace(is_encoder_decoder=True), "encoder-decoder models"),
    ],
)
def test_a_configuration_with_which_kv_cannot_be_held_is_refused(
    running: Any, section: str, name: str, value: object, why: str
) -> None:
    touch_points.refuse_what_cannot_work(running, "continuum")
    setattr(getattr(running, section), name, value)
    with pytest.raises(PluginError, match=why):
        touch_points.refuse_what_cannot_work(running, "continuum")


def test_only_a_server_that_orders_by_priority_lets_requests_be_urgent(running: Any) -> None:
    """vLLM would then preempt by priority itself; our queue lets it preempt who is placed last."""
    assert touch_points.least_priority(running) == 0
    running.policy = SchedulingPolicy.PRIORITY
    assert touch_points.least_priority(running) == -(2**63)
    touch_points.preempt_the_last(running)
    assert running.policy is SchedulingPolicy.FCFS


def test_the_reason_why_prefix_caching_is_off_is_said(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM switches it off by itself for MLA on a CPU, and leaves it off for some models with Mamba layers."""
    running.cache_config.enable_prefix_caching = False
    running.has_mamba_layers = True
    with pytest.raises(PluginError, match="--enable-prefix-caching asks for it"):
        touch_points.refuse_what_cannot_work(running, "continuum")
    running.vllm_config.model_config = SimpleNamespace(is_encoder_decoder=False, use_mla=True)
    monkeypatch.setattr(touch_points, "current_platform", SimpleNamespace(is_cpu=lambda: True))
    with pytest.raises(PluginError, match="models with MLA on most CPUs; --policy vllm serves them"):
        touch_points.refuse_what_cannot_work(running, "continuum")
    touch_points.refuse_what_cannot_work(running, "vllm")


def test_kv_in_a_second_pool_is_refused(running: Any) -> None:
    running.kv_cache_manager.coordinator.single_type_managers[0].block_pool = object()
    with pytest.raises(PluginError, match="second pool"):
        touch_points.refuse_what_cannot_work(running, "vllm")


def test_the_scheduler_asks_whether_it_can_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touch_points, "refuse_what_cannot_work", Mock(side_effect=PluginError("no cache")))
    with pytest.raises(PluginError, match="no cache"):
        build([], "continuum", {})


def test_a_batch_is_full_at_the_largest_number_of_active_requests(running: Any) -> None:
    assert not touch_points.batch_is_full(running)
    running.max_num_active_reqs = 2
    assert not touch_points.batch_is_full(running)
    running.num_waiting_for_streaming_input = 1
    assert touch_points.batch_is_full(running)


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("scheduler_config", "enable_chunked_prefill", False),
        ("scheduler_config", "disable_chunked_mm_input", True),
        (None, "need_mamba_block_aligned_split", True),
    ],
)
def test_prompts_that_vllm_does_not_cut_anywhere_are_left_to_it(
    running: Any, where: str | None, name: str, value: bool
) -> None:
    assert touch_points.cuts_prompts(running)
    setattr(getattr(running, where) if where else running, name, value)
    assert not touch_points.cuts_prompts(running)


def test_what_a_request_decodes_in_a_step(running: Any) -> None:
    """Nothing until its prompt, and what was computed of its answer before a preemption, are computed."""
    (request,) = running.running
    request.num_computed_tokens = request.num_tokens - 1
    assert touch_points.decodes(request)
    assert touch_points.decode_tokens(running) == 1
    running.num_spec_tokens = 2
    assert touch_points.decode_tokens(running) == 3
    request.num_computed_tokens = request.num_tokens - 2
    assert not touch_points.decodes(request)
    assert touch_points.decode_tokens(running) == 0


@pytest.mark.parametrize("reserved", [None, 0, 1, 7])
@pytest.mark.parametrize("plain", [True, False])
def test_what_vllm_reserves_for_others_is_wanted_too(
    running: Any, reserved: int | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``allocate_slots`` leaves so many blocks free for prompts that are being computed."""
    monkeypatch.setattr(kv_groups, "is_plain", lambda scheduler: plain)
    (request,) = running.running
    running.kv_cache_manager.free(request)
    wanted = kv_groups.blocks_wanted(running, request, {})
    assert wanted > 0
    assert kv_groups.blocks_wanted(running, request, {"reserved_blocks": reserved}) == wanted + (reserved or 0)


@pytest.fixture
def three() -> Any:
    """A scheduler with three running requests, and its preemption."""
    scheduler, loop = build([Job(program(name), 0.0) for name in "abc"], "vllm", {})
    while len(scheduler.running) < 3:
        assert loop.step()
    scheduler.preemption = Preemption(scheduler)
    return scheduler


@pytest.mark.parametrize(("beyond", "chosen"), [(0, 1), (1, 2), (100, 0)])
def test_no_more_are_preempted_than_make_room(three: Any, beyond: int, chosen: int) -> None:
    """Room for what is free, and for what the first victim alone has, and for so many blocks more."""
    turns = [three.table.turn(request.request_id) for request in three.running]
    first = touch_points.exclusively_held(touch_points.blocks_of(three, three.running[0]))
    three.preemption._wanted = touch_points.free_block_count(three) + first + beyond
    assert three.preemption._enough(turns) == three.running[:chosen]


@pytest.mark.parametrize("status", [RequestStatus.WAITING, RequestStatus.WAITING_FOR_REMOTE_KVS])
def test_an_idle_engine_needs_no_pin_while_kv_is_loaded(status: RequestStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on by itself once the KV has come."""
    scheduler, loop = build([Job(program("a", turns=2, tool_s=50.0), 0.0)], "static-ttl", {"ttl_s": 90.0})
    while not scheduler.table.pins.values():
        assert loop.step()
    aside = next(name for name in touch_points.SET_ASIDE if hasattr(scheduler, name))
    monkeypatch.setattr(scheduler, aside, [SimpleNamespace(request_id="other", status=status)])
    unknown: Any = SimpleNamespace(request_id="unknown", status=RequestStatus.WAITING)
    pins = [[pin] for pin in scheduler.table.pins.values()]
    assert scheduler.held._yielding(unknown, {}) == (pins if status is RequestStatus.WAITING else [])


@pytest.mark.parametrize(("beyond", "left"), [(0, 3), (1, 2)])
def test_nobody_is_preempted_once_there_is_room(three: Any, beyond: int, left: int) -> None:
    """Other requests may have ended since the choice."""
    three.preemption._wanted = touch_points.free_block_count(three) + beyond
    three.preemption._chosen = three.running[:1]
    three.preemption.carry_out(1.0)
    assert len(three.running) == left


def test_a_preemption_that_vllm_lists_once_more_counts_once(three: Any) -> None:
    (request, *_), turn = three.running, three.table.turn(three.running[0].request_id)
    for _ in range(2):
        three.preempted(request.request_id, 1.0)
    assert turn.preemptions == 1


@pytest.mark.parametrize(("tokens", "token_s"), [(0.0, None), (2.0, 0.5)])
def test_a_report_without_a_load_teaches_nothing(running: Any, tokens: float, token_s: float | None) -> None:
    running.loads._learn(tokens, 1.0)
    assert running.loads.token_s == token_s
