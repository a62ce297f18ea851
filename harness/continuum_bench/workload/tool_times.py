"""Changes the tool times of a workload: ``constant``, ``bimodal``, ``shift``, ``hang``. Seeded.

A change is part of the workload. It depends only on the programs, the order of their arrival and the seed, so it is the
same for every policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from continuum_traces.schema import Program, Turn

from continuum_bench.options.forms import TOOL_TIMES

Change = Callable[[random.Random, Sequence[Program]], list[Program]]
"""Takes a run's programs in the order of their arrival, and returns them with other tool times."""

RECORDED = "recorded"
HANG_S = 3600.0


def tool_times(spec: str) -> Change:
    """Return the change that ``--tool-times`` asks for.

    recorded                   the tool times of the trace
    constant:S                 the tools of every turn take S seconds
    bimodal:SHARE:SHORT:LONG   the tools of a turn take SHORT seconds with probability SHARE, else LONG seconds
    shift:F                    from the middle program on, tools take F times as long
    hang:SHARE[:S]             with probability SHARE, one tool call of a program (in a random turn) takes S seconds
                               (default: an hour)

    Tools keep their names. Turns without tools, and time between turns outside of tools, stay as they are.

    Raises:
        OptionError: the text has another form.
    """
    match TOOL_TIMES.read(spec):
        case "constant:SECONDS", [seconds]:
            return lambda rng, programs: [_with_tools(program, lambda: seconds) for program in programs]
        case "bimodal:SHARE:SHORT_S:LONG_S", shares:
            return lambda rng, programs: [_with_tools(program, lambda: _mixed(rng, *shares)) for program in programs]
        case "shift:FACTOR", [factor]:
            return lambda rng, programs: _shifted(programs, factor)
        case "hang:SHARE[:SECONDS]", shares:
            return lambda rng, programs: _hanging(rng, programs, *shares)
    return lambda rng, programs: list(programs)


def _mixed(rng: random.Random, share: float, short_s: float, long_s: float) -> float:
    return short_s if rng.random() < share else long_s


def _with_tools(program: Program, seconds: Callable[[], float]) -> Program:
    return replace(
        program, turns=tuple(_taking(turn, seconds()) if turn.tool_calls else turn for turn in program.turns)
    )


def _taking(turn: Turn, seconds: float) -> Turn:
    """Return the turn with a single tool call of this duration, named as the turn's slowest tool."""
    assert turn.slowest_tool is not None
    return replace(turn, tool_calls=(replace(turn.slowest_tool, start_s=0.0, duration_s=seconds),))


def _shifted(programs: Sequence[Program], factor: float) -> list[Program]:
    middle = len(programs) // 2
    return [*programs[:middle], *(_slower(program, factor) for program in programs[middle:])]


def _slower(program: Program, factor: float) -> Program:
    def longer(turn: Turn) -> Turn:
        calls = (
            replace(call, start_s=factor * call.start_s, duration_s=call.duration_s and factor * call.duration_s)
            for call in turn.tool_calls
        )
        return replace(turn, tool_calls=tuple(calls))

    return replace(program, turns=tuple(longer(turn) for turn in program.turns))


def _hanging(rng: random.Random, programs: Sequence[Program], share: float, seconds: float = HANG_S) -> list[Program]:
    return [_hung(rng, program, seconds) if rng.random() < share else program for program in programs]


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
