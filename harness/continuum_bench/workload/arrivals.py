"""When programs arrive: ``poisson``, ``constant``, ``gamma:CV``, ``ramp:FACTOR``, ``recorded`` (open loop, seeded).

In a closed loop (``concurrency:N``, ``steps:N``) a program arrives when others have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from continuum_traces.playing.closed_loop import Lanes
from continuum_traces.schema import Program

from continuum_bench.errors import BenchError
from continuum_bench.options.forms import ARRIVALS
from continuum_bench.options.run import uses_rate

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
Times = Callable[[np.random.Generator, float, Sequence[Program]], Seconds]


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
        OptionError: the text has another form. For ``recorded`` the returned function raises ``BenchError`` if a
            program has no recorded arrival.
    """
    match ARRIVALS.read(spec):
        case "poisson", []:
            return lambda rng, jps, programs: np.cumsum(rng.exponential(1.0 / jps, len(programs)))
        case "constant", []:
            return lambda rng, jps, programs: np.arange(1, len(programs) + 1) / jps
        case "recorded[:SPEED]", []:
            return _recorded
        case "recorded[:SPEED]", [speed]:
            return lambda rng, jps, programs: _offsets(programs) / speed
        case "gamma:CV", [variation]:
            shape = 1.0 / variation**2
            return lambda rng, jps, programs: np.cumsum(rng.gamma(shape, 1.0 / (jps * shape), len(programs)))
        case "ramp:FACTOR", [factor]:
            return lambda rng, jps, programs: _ramp(rng, jps, len(programs), factor)
    return lambda rng, jps, programs: np.zeros(len(programs))


def lanes_of(spec: str) -> Lanes | None:
    """Read a closed loop; None: another form of arrivals.

    concurrency:N[:RAMP_S]  N programs at a time, the next one starts when one ends; the first N start over RAMP_S
    steps:N[:PAUSE_S]       N programs start together, the next N PAUSE_S seconds after all of them have ended

    Raises:
        OptionError: the text has no form of arrivals.
    """
    match ARRIVALS.read(spec):
        case "concurrency:N[:RAMP_S]", [number, *ramp_s]:
            return Lanes(number, ramp_s=sum(ramp_s))
        case "steps:N[:PAUSE_S]", [number, *pause_s]:
            return Lanes(number, in_steps=True, pause_s=sum(pause_s))
    return None


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
