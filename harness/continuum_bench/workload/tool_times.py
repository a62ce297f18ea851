"""Changes the tool times of a workload: ``constant``, ``bimodal``, ``shift``, ``hang``. Seeded.

A change is part of the workload. It depends only on the programs, the order of their arrival and the seed, so it is the
same for every policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from continuum_traces.schema import Program, Turn

from continuum_bench.workload.forms import Form, read_form

Change = Callable[[random.Random, Sequence[Program]], list[Program]]
"""Takes a run's programs in the order of their arrival, and returns them with other tool times."""

RECORDED = "recorded"
HANG_S = 3600.0


def tool_times(spec: str) -> Change:
    """Return the change that ``--tool-times`` asks for, one of ``FORMS``.

    Tools keep their names. Turns without tools, and time between turns outside of tools, stay as they are.

    Raises:
        BenchError: the form is unknown, or a number is out of range.
    """
    change: Change = read_form("--tool-times", spec, FORMS)
    return change


def _each_turn(draw_s: Callable[[random.Random], float]) -> Change:
    def changed(rng: random.Random, program: Program) -> Program:
        turns = (_taking(turn, draw_s(rng)) if turn.tool_calls else turn for turn in program.turns)
        return replace(program, turns=tuple(turns))

    return lambda rng, programs: [changed(rng, program) for program in programs]


def _bimodal(share: float, short_s: float, long_s: float) -> Change:
    return _each_turn(lambda rng: short_s if rng.random() < share else long_s)


def _taking(turn: Turn, seconds: float) -> Turn:
    """Return the turn with a single tool call of this duration, named as the turn's slowest tool."""
    assert turn.slowest_tool is not None
    return replace(turn, tool_calls=(replace(turn.slowest_tool, start_s=0.0, duration_s=seconds),))


def _shift(factor: float) -> Change:
    def shifted(rng: random.Random, programs: Sequence[Program]) -> list[Program]:
        middle = len(programs) // 2
        return [*programs[:middle], *(_slower(program, factor) for program in programs[middle:])]

    return shifted


def _slower(program: Program, factor: float) -> Program:
    def longer(turn: Turn) -> Turn:
        calls = (
            replace(call, start_s=factor * call.start_s, duration_s=call.duration_s and factor * call.duration_s)
            for call in turn.tool_calls
        )
        return replace(turn, tool_calls=tuple(calls))

    return replace(program, turns=tuple(longer(turn) for turn in program.turns))


def _hang(share: float, seconds: float = HANG_S) -> Change:
    return lambda rng, programs: [_hung(rng, each, seconds) if rng.random() < share else each for each in programs]


def _hung(rng: random.Random, program: Program, seconds: float) -> Program:
    """Return the program with one random tool call between two turns that takes this many seconds."""
    between = [index for index, turn in enumerate(program.turns[:-1]) if turn.tool_calls]
    if not between:
        return program
    index = rng.choice(between)
    turn = program.turns[index]
    calls = (replace(turn.tool_calls[0], duration_s=seconds), *turn.tool_calls[1:])
    turns = (*program.turns[:index], replace(turn, tool_calls=calls), *program.turns[index + 1 :])
    return replace(program, turns=turns)


FORMS: Sequence[Form[Change]] = (
    Form(RECORDED, (0,), lambda: lambda rng, programs: list(programs)),
    Form("constant:SECONDS", (1,), lambda seconds: _each_turn(lambda rng: seconds), limits="seconds at least 0"),
    Form(
        "bimodal:SHARE:SHORT_S:LONG_S",
        (3,),
        _bimodal,
        lambda share, short_s, long_s: share <= 1 and short_s < long_s,
        "a share from 0 to 1, the short time below the long one",
    ),
    Form("shift:FACTOR", (1,), _shift, lambda factor: factor > 0, "a factor above 0"),
    Form(
        "hang:SHARE[:SECONDS]",
        (1, 2),
        _hang,
        lambda share, seconds=HANG_S: share <= 1,
        "a share from 0 to 1, seconds at least 0",
    ),
)
"""The forms of ``--tool-times``.

recorded                   the tool times of the trace
constant:S                 the tools of every turn take S seconds
bimodal:SHARE:SHORT:LONG   the tools of a turn take SHORT seconds with probability SHARE, else LONG seconds
shift:F                    from the middle program on, tools take F times as long
hang:SHARE[:S]             with probability SHARE, one tool call of a program (in a random turn) takes S seconds
                           (default: an hour)
"""
