"""Programs that open with the same tokens: the blocks of a common prefix are there once and count once."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from nano import build, each_policy, play

DEFAULT_POLICIES = ("vllm", "program-fcfs", "static-ttl", "continuum", "working-set")


class Untagged(ProgramScheduler):
    """Hears nothing of programs: every request is one of its own."""

    def add_request(self, request: Any) -> None:
        request.sampling_params.extra_args = None
        super().add_request(request)


def behind_a_prefix(prefix: int, number: int, own: int, tool_s: float) -> list[Job]:
    """Two-turn programs that come together, all with the same first ``prefix`` tokens and ``own`` of their own."""
    turns = (Turn(prefix + own, 24, tool_calls=(ToolCall("ls", tool_s),)), Turn(40, 8))
    return [
        Job(Program(f"p{i}", turns, shared_prefix_id="system", shared_prefix_tokens=prefix), 0.01 * i)
        for i in range(number)
    ]


@pytest.mark.parametrize(("policy", "options", "pins"), [("static-ttl", {"ttl_s": 60.0}, 20), ("working-set", {}, 19)])
def test_pins_count_the_blocks_they_hold(policy: str, options: dict[str, Any], pins: int) -> None:
    """20 programs with one prompt of 100 blocks: all may be held in a pool of 600, and what is held is known. Under
    working-set the first program is a guest, whose KV is not held after its first turn."""
    scheduler, loop = build(behind_a_prefix(1600, 20, 0, tool_s=2.0), policy, options, blocks=600, max_num_seqs=32)
    table, most_pins = scheduler.table, 0
    while loop.step():
        held = {block.block_id for blocks in scheduler.held.blocks.values() for block in blocks}
        assert table.pins.tokens == len(held) * scheduler.block_size
        most_pins = max(most_pins, len(table.pins))
    assert most_pins == pins


@each_policy(DEFAULT_POLICIES)
def test_tags_cost_nothing_where_all_fit(policy: str) -> None:
    """182 blocks for the prefix and 11 for each of 60 programs: 842 of 900 blocks, but counted whole 11,580."""
    jobs = behind_a_prefix(2912, 60, 60, tool_s=0.5)
    tagged, untagged = (
        play(jobs, policy, blocks=900, max_num_seqs=64, scheduler_type=kind).loop.now_s
        for kind in (ProgramScheduler, Untagged)
    )
    assert tagged <= 1.1 * untagged
