"""What the plugin takes from vLLM: all of it is checked at start, and a preemption loses no request."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.virtual.loop import Job
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.versions import UnsupportedVllm
from nano import build, program
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import RequestStatus

PLUGIN = Path(touch_points.__file__).parent


@pytest.mark.parametrize("owner", ["scheduler", "request"])
def test_every_name_that_is_read_is_checked(owner: str) -> None:
    files = [PLUGIN / "touch_points.py"] if owner == "scheduler" else list(PLUGIN.glob("*.py"))
    files = [file for file in files if file.name not in ("loose_json.py", "form_tags.py", "middleware.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) == owner}
    of_class = touch_points._NAMES[touch_points.Scheduler]
    checked = (*touch_points._OF_SCHEDULERS, *of_class) if owner == "scheduler" else touch_points._OF_REQUESTS
    assert len(read) > 8
    assert read <= {*checked}


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(BlockPool, "touch")
    with pytest.raises(UnsupportedVllm, match=r"lacks BlockPool.touch, which Continuum relies on"):
        touch_points.check_supported()
    with pytest.raises(UnsupportedVllm, match=r"lacks Scheduler.vllm_config, .*Scheduler.running"):
        touch_points.refuse_what_cannot_work(SimpleNamespace(), "vllm")  # type: ignore[arg-type]


@pytest.fixture
def running() -> Any:
    """A scheduler with one running request."""
    scheduler, loop = build([Job(program("p"), 0.0)], "vllm", {})
    loop.advance()
    return scheduler


def test_a_preemption_needs_nothing_that_vllm_s_next_model_runner_drops(running: Any) -> None:
    del running.prev_step_scheduled_req_ids
    (request,) = running.running
    touch_points.preempt(running, request, 1.0)
    assert (list(running.waiting), running.running) == ([request], [])
    assert request.status == RequestStatus.PREEMPTED
    assert not request.drop_stale_output


def test_stale_output_is_dropped_where_vllm_drops_it(running: Any) -> None:
    running.requires_kv_delivery = True
    (request,) = running.running
    touch_points.preempt(running, request, 1.0)
    assert request.drop_stale_output


def test_a_batch_is_full_at_the_largest_number_of_active_requests(running: Any) -> None:
    assert not touch_points.batch_is_full(running)
    running.max_num_active_reqs = 2
    assert not touch_points.batch_is_full(running)
    running.num_waiting_for_streaming_input = 1
    assert touch_points.batch_is_full(running)
