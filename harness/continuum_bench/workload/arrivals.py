"""When programs arrive: ``poisson``, ``constant``, ``gamma:CV``, ``ramp:FACTOR``, ``recorded`` (open loop, seeded).

In a closed loop (``concurrency:N``, ``steps:N``) a program arrives when others have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from continuum_traces.closed_loop import Lanes
from continuum_traces.schema import CLOSED_LOOPS, Program

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST
from continuum_bench.options.run import uses_rate
from continuum_bench.workload.forms import read_form, refusal

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
Times = Callable[[np.random.Generator, float, Sequence[Program]], Seconds]

LEAST, LARGEST = 1e-6, 1e6
"""Of the number after the colon."""
FORMS = {
    "poisson": "poisson",
    "constant": "constant",
    "gamma": f"gamma:CV, a number from {LEAST:g} to {LARGEST:g}",
    "ramp": f"ramp:FACTOR, a number above 1, at most {LARGEST:g}",
    "recorded": f"recorded[:SPEED], a number from {LEAST:g} to {LARGEST:g}",
    "concurrency": "concurrency:N[:RAMP_S], a number of programs, and seconds",
    "steps": "steps:N[:PAUSE_S], a number of programs, and seconds",
}
"""How each form is written, and its limits."""


def arrival_times(spec: str) -> Times:
    """Return a function that draws the arrivals: seconds from the start of the run, one for each program in order.

    poisson     exponential gaps of mean 1/jps
    constant    equal gaps of 1/jps
    gamma:CV    gamma gaps of mean 1/jps and coefficient of variation CV; above 1 is burstier than poisson
    ramp:F      poisson whose rate grows linearly from jps/F to jps*F over the run's programs
    recorded    the trace's own offsets, scaled so that their mean rate is jps
    recorded:S  the trace's own offsets, S times as fast; jps is ignored
    concurrency:N[:R], steps:N[:P]  all 0: a closed loop (``lanes_of``); jps is ignored

    Raises:
        BenchError: the form is unknown, or a number is out of range. The returned function raises it for ``recorded``
            if a program has no recorded arrival.
    """
    if lanes_of(spec) is not None:
        return lambda rng, jps, programs: np.zeros(len(programs))
    match read_form(spec):
        case "poisson", []:
            return lambda rng, jps, programs: np.cumsum(rng.exponential(1.0 / jps, len(programs)))
        case "constant", []:
            return lambda rng, jps, programs: np.arange(1, len(programs) + 1) / jps
        case "recorded", []:
            return _recorded
        case "recorded", [speed] if LEAST <= speed <= LARGEST:
            return lambda rng, jps, programs: _offsets(programs) / speed
        case "gamma", [variation] if LEAST <= variation <= LARGEST:
            shape = 1.0 / variation**2
            return lambda rng, jps, programs: np.cumsum(rng.gamma(shape, 1.0 / (jps * shape), len(programs)))
        case "ramp", [factor] if 1.0 < factor <= LARGEST:
            return lambda rng, jps, programs: _ramp(rng, jps, len(programs), factor)
    raise refusal("--arrivals", spec, FORMS)


def lanes_of(spec: str) -> Lanes | None:
    """Read a closed loop; None: another form of arrivals.

    concurrency:N[:RAMP_S]  N programs at a time, the next one starts when one ends; the first N start over RAMP_S
    steps:N[:PAUSE_S]       N programs start together, the next N PAUSE_S seconds after all of them have ended

    Raises:
        BenchError: the numbers are invalid.
    """
    name, numbers = read_form(spec)
    if name not in CLOSED_LOOPS:
        return None
    number, seconds, *_ = (*numbers, 0.0, 0.0)
    if len(numbers) > 2 or not (number >= 1 and number.is_integer() and 0 <= seconds <= MOST):
        raise refusal("--arrivals", spec, FORMS)
    return Lanes(int(number), in_steps=True, pause_s=seconds) if name == "steps" else Lanes(int(number), ramp_s=seconds)


def pace(spec: str, jps: float) -> str:
    """Return the arrivals in words."""
    return f"at {jps:g}/s" if uses_rate(spec) else f"with arrivals {spec}"


def _ramp(rng: np.random.Generator, jps: float, count: int, factor: float) -> Seconds:
    rates = np.linspace(jps / factor, jps * factor, count)
    return np.cumsum(rng.exponential(1.0, count) / rates)


def _recorded(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
    offsets = _offsets(programs)
    span = offsets.max()
    return offsets * ((len(programs) - 1) / jps / span) if span > 0 else offsets


def _offsets(programs: Sequence[Program]) -> Seconds:
    """Return the recorded arrivals in seconds after the first one."""
    missing = next((program.program_id for program in programs if program.arrival_s is None), None)
    if missing is not None:
        raise BenchError(f"--arrivals recorded: program {missing!r} has no arrival_s in the trace")
    offsets: Seconds = np.array([program.arrival_s for program in programs], float)
    return offsets - float(offsets.min())
