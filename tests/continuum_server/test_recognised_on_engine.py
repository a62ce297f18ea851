"""Programs without ids on vLLM's scheduler: they are recognised by their prompts, held and found again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from nano import Played, each_policy, play, program

TURNS, AGENTS = 10, 8


def jobs_of(programs: Sequence[Program], tagged: bool) -> list[Job]:
    return [Job(replace(each, tagged=tagged), 0.5 * number) for number, each in enumerate(programs)]


def agents(**changes: object) -> list[Program]:
    made = [program(f"agent-{number}", turns=TURNS, new=64, output=24, tool_s=0.3) for number in range(AGENTS)]
    return [replace(each, turns=tuple(replace(turn, **changes) for turn in each.turns)) for each in made]  # type: ignore[arg-type]


def names(played: Played) -> list[str]:
    """The programs as the server saw them, in the order of requests of programs."""
    arrived = {event.request_id: event.program_id for event in played.of("arrive")}
    return [arrived[turn.turn_id or ""] for turn in sorted(played.turns, key=lambda turn: (turn.program_id, turn.turn))]


@each_policy()
@pytest.mark.parametrize("carried", [24, 10])  # the whole answer, or without its reasoning
def test_each_conversation_is_one_program(policy: str, carried: int) -> None:
    seen = names(play(jobs_of(agents(carried_tokens=carried), tagged=False), policy, blocks=121))
    assert [len(set(seen[start : start + TURNS])) for start in range(0, len(seen), TURNS)] == [1] * AGENTS
    assert len(set(seen)) == AGENTS


def test_an_answer_after_which_nobody_returns_is_soon_hardly_held() -> None:
    """Chats of two turns, the second of which calls no tool."""
    call = (ToolCall("search", 0.1),)
    chats = [
        Program(f"chat-{number}", (Turn(64, 8, tool_calls=call), Turn(64, 8)), tagged=False) for number in range(120)
    ]
    played = play([Job(each, 1.0 * number) for number, each in enumerate(chats)], "working-set", blocks=600)
    ttl_s = [(event.t, event.ttl_s or 0.0) for event in played.of("pin") if event.turn == 1]
    assert max(ttl for t, ttl in ttl_s if t < 30.0) > 1.0
    assert max((ttl for t, ttl in ttl_s if t > 90.0), default=0.0) < 0.2


@pytest.mark.parametrize("tagged", [True, False])
def test_a_compacted_history(tagged: bool) -> None:
    """A program with an id goes on, and the hold of its old history ends when it arrives. Without an id, it is a new
    program."""
    call = (ToolCall("ls", 0.5),)
    long = (Turn(400, 16, tool_calls=call), Turn(64, 16, tool_calls=call))
    compacts = Program("agent", (*long, Turn(100, 16, kept_tokens=32, tool_calls=call), Turn(16, 16)))
    played = play(jobs_of([compacts], tagged), "static-ttl", {"ttl_s": 2.0}, blocks=121)
    seen = names(played)
    assert len(set(seen)) == (1 if tagged else 2)
    released = [(event.t, event.turn) for event in played.of("unpin") if event.reason == "pressure"]
    arrived = [event.t for event in played.of("arrive")]
    assert released == ([(arrived[2], 1)] if tagged else [])
