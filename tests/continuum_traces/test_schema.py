"""Programs' arithmetic, by hand."""

from __future__ import annotations

from continuum_traces.schema import Program, ToolCall, Turn


def test_sums_of_a_program() -> None:
    program = Program("p", (Turn(100, 20, carried_tokens=5), Turn(10, 8), Turn(1, 2, kept_tokens=40)))
    assert program.prompt_tokens() == [100, 100 + 5 + 10, 40 + 1]
    assert program.final_context_tokens == 115 + 8  # the longest
    assert program.cumulative_tokens == 100 + 115 + 41 + 20 + 8 + 2


def test_the_gap_waits_for_the_slowest_tool() -> None:
    parallel = Turn(1, 1, tool_calls=(ToolCall("a", 2.0), ToolCall("b", 0.5)), gap_overhead_s=0.25)
    serial = Turn(1, 1, tool_calls=(ToolCall("a", 2.0), ToolCall("b", 0.5, start_s=2.0)))
    assert parallel.gap_s == 2.25
    assert serial.gap_s == 2.5
    assert Turn(1, 1, tool_calls=(ToolCall("a"),)).gap_s == 0.0


def test_what_an_unlimited_cache_would_hold() -> None:
    """A whole reply is a prefix of the next prompt, its last part is not, and a rewritten history cuts both."""
    turns = (Turn(100, 20), Turn(10, 30, carried_tokens=5), Turn(10, 4), Turn(10, 4, kept_tokens=50))
    program = Program("p", turns, shared_prefix_id="system", shared_prefix_tokens=40)
    assert program.prompt_tokens() == [100, 130, 145, 60]
    assert program.reusable_tokens() == [40, 120, 130, 50]
