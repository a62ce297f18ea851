"""What holds of every framework's records beside the server's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_batches import Batch, events_of
from bench_cli import succeeded
from continuum_traces.importers.registry import read_any
from continuum_traces.programs.jsonl import validate
from continuum_traces.records import read_turns
from continuum_traces.schema import Program
from live_server import Live


def all_is_well(batch: Batch, server: Live, status: str, names: set[str], all_pins_are_hit: bool) -> dict[str, Any]:
    """Programs that ran side by side and passed their tests: all records of them agree, and a replay has their turns.

    Returns:
        programs.jsonl, by program.
    """
    batch.ended()
    programs = batch.programs()
    assert batch.ends() == dict.fromkeys(names, (status, True))
    assert max(done["start_s"] for done in programs.values()) < min(done["end_s"] for done in programs.values())
    the_trace_is_what_the_server_saw(server, batch.out, names)
    pins_are_hit_by_the_next_turn(server, names, all_pins_are_hit)
    a_replay_has_the_same_turns_and_tokens(batch.out, batch.out.with_name("replayed"))
    return programs


def the_trace_is_what_the_server_saw(server: Live, out: Path, names: set[str]) -> None:
    """Ids, turns, tokens, tools: the scheduler's record, the client's records and the trace agree."""
    assert list(validate(out / "trace.jsonl")) == []
    traced = programs_of(out / "trace.jsonl")
    assert set(traced) == names
    for name, program in traced.items():
        events = events_of(server, name, len(program.turns))
        finishes = [event for event in events if event.event == "finish"]
        starts = [event for event in events if event.event == "start"]
        assert [event.turn for event in finishes] == list(range(len(program.turns)))
        assert [event.output_tokens for event in finishes] == [turn.output_tokens for turn in program.turns]
        assert [event.prompt_tokens for event in starts] == program.prompt_tokens()
        assert [event.tool for event in finishes] == [tools_of(turn.tool_calls) for turn in program.turns]
        assert {event.status for event in finishes} == {"stop"}
        for turn in program.turns:
            assert all(call.duration_s is not None for call in turn.tool_calls)
    recorded = [(turn.program_id, turn.turn) for turn in read_turns(out)]
    assert len(recorded) == len(set(recorded)) == sum(len(program.turns) for program in traced.values())


def pins_are_hit_by_the_next_turn(server: Live, names: set[str], all_of_them: bool) -> None:
    """A release ends the last. ``continuum`` holds no turn without a tool, and a slow tool may outlast a hold."""
    for name in names:
        events = events_of(server, name, 1)
        ends = [event.reason for event in events if event.event == "unpin"]
        if all_of_them:
            turns = sum(event.event == "finish" for event in events)
            assert ends == ["hit"] * (turns - 1) + ["last"]
            assert all(event.hit_tokens for event in events if event.event == "start" and event.turn > 0)
        assert "hit" in ends
        assert set(ends) <= {"hit", "last", "expired"}
        assert ends.count("last") <= 1
    assert not server.pins()


def a_replay_has_the_same_turns_and_tokens(out: Path, replayed: Path) -> None:
    """The emitted trace, on the virtual engine."""
    succeeded("replay --policy continuum --no-report", out / "trace.jsonl", "--out", replayed)
    (run,) = {file.parent for file in replayed.glob("*/turns.jsonl")}
    assert tokens_of(run) == tokens_of(out)


def programs_of(trace: Path) -> dict[str, Program]:
    return {program.program_id: program for program in read_any(trace, None)}


def tools_of(calls: Any) -> str | None:
    """As the server names what runs after a turn."""
    return "+".join(sorted({call.name for call in calls})) or None


def tokens_of(run: Path) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    return {(turn.program_id, turn.turn): (turn.prompt_tokens, turn.output_tokens) for turn in read_turns(run)}
