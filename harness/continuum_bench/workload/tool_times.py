"""Changes the tool times of a workload: ``constant``, ``bimodal``, ``shift``, ``hang``. Seeded.

A change is part of the workload. It depends only on the programs, the order of their arrival and the seed, so it is the
same for every policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from continuum_traces.schema import Program, Turn

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST_S

Change = Callable[[random.Random, Sequence[Program]], list[Program]]
"""Takes a run's programs in the order of their arrival, and returns them with other tool times."""

RECORDED = "recorded"
HANG_S = 3600.0
FORMS = {
    "constant": "constant:SECONDS",
    "bimodal": "bimodal:SHARE:SHORT_S:LONG_S",
    "shift": "shift:FACTOR",
    "hang": "hang:SHARE[:SECONDS]",
}


def tool_times(spec: str) -> Change:
    """The change of that form.

    recorded                   the trace's own
    constant:S                 the tools of every turn take S seconds
    bimodal:SHARE:SHORT:LONG   a mixture of two: SHORT seconds with probability SHARE, else LONG, turn by turn
    shift:F                    a shift in mid-run: from the middle program on, tools take F times as long
    hang:SHARE[:S]             with probability SHARE a program has one tool call, any of its turns, that returns after
                               S seconds only (an hour where not given)

    Tools keep their names. Turns without tools stay as they are, and so does time between turns that is no tool's.

    Raises:
        BenchError: an unknown form, a number out of range.
    """
    if spec == RECORDED:
        return lambda rng, programs: list(programs)
    name, *given = spec.split(":")
    if name not in FORMS:
        raise BenchError(f"--tool-times {spec}: there are {RECORDED}, {', '.join(FORMS.values())}")
    numbers = _numbers(spec, given)
    if name == "constant" and len(numbers) == 1:
        return lambda rng, programs: [_each_turn(program, lambda: numbers[0]) for program in programs]
    if name == "bimodal" and len(numbers) == 3 and numbers[0] <= 1 and numbers[1] < numbers[2]:
        return lambda rng, programs: [_each_turn(program, lambda: _mixed(rng, *numbers)) for program in programs]
    if name == "shift" and len(numbers) == 1 and numbers[0] > 0:
        return lambda rng, programs: _shifted(programs, numbers[0])
    if name == "hang" and len(numbers) in (1, 2) and numbers[0] <= 1:
        return lambda rng, programs: _hanging(rng, programs, *numbers)
    raise BenchError(f"--tool-times {spec}: expected {FORMS[name]}, {_LIMITS[name]}")


_LIMITS = {
    "constant": "seconds at least 0",
    "bimodal": "a share from 0 to 1, the short time below the long one",
    "shift": "a factor above 0",
    "hang": "a share from 0 to 1, seconds at least 0",
}


def _numbers(spec: str, given: Sequence[str]) -> list[float]:
    """The numbers, which must be finite and at least 0."""
    for text in given:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 <= number <= MOST_S:
            name = spec.partition(":")[0]
            raise BenchError(f"--tool-times {spec}: {text!r}: expected {FORMS[name]}, {_LIMITS[name]}")
    return [float(text) for text in given]


def _mixed(rng: random.Random, share: float, short_s: float, long_s: float) -> float:
    return short_s if rng.random() < share else long_s


def _each_turn(program: Program, seconds: Callable[[], float]) -> Program:
    return replace(
        program, turns=tuple(_taking(turn, seconds()) if turn.tool_calls else turn for turn in program.turns)
    )


def _taking(turn: Turn, seconds: float) -> Turn:
    """The turn with one tool call of so many seconds, named as the turn's slowest tool."""
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
    """The same program, but one tool call between two of its turns takes so many seconds."""
    between = [index for index, turn in enumerate(program.turns[:-1]) if turn.tool_calls]
    if not between:
        return program
    index = rng.choice(between)
    turn = program.turns[index]
    calls = (replace(turn.tool_calls[0], duration_s=seconds), *turn.tool_calls[1:])
    turns = (*program.turns[:index], replace(turn, tool_calls=calls), *program.turns[index + 1 :])
    return replace(program, turns=turns)
