"""When programs arrive: ``poisson``, ``constant``, ``gamma:CV``, ``ramp:FACTOR``, ``recorded`` (open loop, seeded).

In a closed loop (``concurrency:N``, ``steps:N``) a program arrives when others have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from continuum_traces.closed_loop import Lanes
from continuum_traces.schema import CLOSED_LOOPS, Program

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST, number_in
from continuum_bench.options.run import uses_rate

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
Times = Callable[[np.random.Generator, float, Sequence[Program]], Seconds]

FORMS = "poisson, constant, gamma:CV, ramp:FACTOR, recorded[:SPEED], concurrency:N[:RAMP_S], steps:N[:PAUSE_S]"


LEAST = 1e-6
"""Smallest number after the colon. The largest is its inverse."""


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
    name, _, value = spec.partition(":")
    if spec == "poisson":
        return lambda rng, jps, programs: np.cumsum(rng.exponential(1.0 / jps, len(programs)))
    if spec == "constant":
        return lambda rng, jps, programs: np.arange(1, len(programs) + 1) / jps
    if spec == "recorded":
        return _recorded
    if lanes_of(spec) is not None:
        return lambda rng, jps, programs: np.zeros(len(programs))
    if name == "recorded":
        speed = _number(spec, value, 0.0)
        return lambda rng, jps, programs: _offsets(programs) / speed
    if name == "gamma":
        shape = 1.0 / _number(spec, value, 0.0) ** 2
        return lambda rng, jps, programs: np.cumsum(rng.gamma(shape, 1.0 / (jps * shape), len(programs)))
    if name == "ramp":
        factor = _number(spec, value, 1.0)
        return lambda rng, jps, programs: _ramp(rng, jps, len(programs), factor)
    raise BenchError(f"--arrivals {spec}: there are {FORMS}")


def lanes_of(spec: str) -> Lanes | None:
    """Read a closed loop; None: another form of arrivals.

    concurrency:N[:RAMP_S]  N programs at a time, the next one starts when one ends; the first N start over RAMP_S
    steps:N[:PAUSE_S]       N programs start together, the next N PAUSE_S seconds after all of them have ended

    Raises:
        BenchError: the numbers are invalid.
    """
    name, *values = spec.split(":")
    if name not in CLOSED_LOOPS:
        return None
    number, seconds, *_ = (*map(number_in, values), 0.0, 0.0)
    in_steps = name == "steps"
    if len(values) > 2 or not (number >= 1 and number.is_integer() and 0 <= seconds <= MOST):
        more = "PAUSE_SECONDS" if in_steps else "RAMP_SECONDS"
        raise BenchError(f"--arrivals {spec}: expected {name}:PROGRAMS or {name}:PROGRAMS:{more}")
    return Lanes(int(number), in_steps=True, pause_s=seconds) if in_steps else Lanes(int(number), ramp_s=seconds)


def pace(spec: str, jps: float) -> str:
    """Return the arrivals in words."""
    return f"at {jps:g}/s" if uses_rate(spec) else f"with arrivals {spec}"


def _number(spec: str, value: str, above: float) -> float:
    number = number_in(value)
    if not (above < number and LEAST <= number <= 1 / LEAST):
        raise BenchError(
            f"--arrivals {spec}: expected a number above {above or LEAST:g} after the colon, at most {1 / LEAST:g}"
        )
    return number


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
