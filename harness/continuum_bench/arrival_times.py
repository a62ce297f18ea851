"""When programs arrive: ``poisson``, ``constant``, ``gamma:CV``, ``ramp:FACTOR``, ``recorded``. Open loop, seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from continuum_traces.schema import Program

from continuum_bench.bench_error import BenchError

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
Times = Callable[[np.random.Generator, float, Sequence[Program]], Seconds]

FORMS = "poisson, constant, gamma:CV, ramp:FACTOR, recorded"


def arrival_times(spec: str) -> Times:
    """Seconds from the start of the run, one for each program in the order they are played.

    poisson     exponential gaps of mean 1/jps
    constant    equal gaps of 1/jps
    gamma:CV    gamma gaps of mean 1/jps and coefficient of variation CV; above 1 is burstier than poisson
    ramp:F      poisson whose rate grows linearly from jps/F to jps*F over the run's programs
    recorded    the trace's own offsets, scaled so that their mean rate is jps

    Raises:
        BenchError: an unknown form, a number out of range; and for ``recorded``, at the call, a program without offset.
    """
    name, _, value = spec.partition(":")
    if spec == "poisson":
        return lambda rng, jps, programs: np.cumsum(rng.exponential(1.0 / jps, len(programs)))
    if spec == "constant":
        return lambda rng, jps, programs: np.arange(1, len(programs) + 1) / jps
    if spec == "recorded":
        return _recorded
    if name == "gamma":
        shape = 1.0 / _number(spec, value, 0.0) ** 2
        return lambda rng, jps, programs: np.cumsum(rng.gamma(shape, 1.0 / (jps * shape), len(programs)))
    if name == "ramp":
        factor = _number(spec, value, 1.0)
        return lambda rng, jps, programs: _ramp(rng, jps, len(programs), factor)
    raise BenchError(f"--arrivals {spec}: there are {FORMS}")


def _number(spec: str, value: str, above: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not (number > above and np.isfinite(number)):
        raise BenchError(f"--arrivals {spec}: expected a number above {above:g} after the colon")
    return number


def _ramp(
    rng: np.random.Generator, jps: float, count: int, factor: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rates = np.linspace(jps / factor, jps * factor, count)
    return np.cumsum(rng.exponential(1.0, count) / rates)


def _recorded(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
    missing = next((program.program_id for program in programs if program.arrival_s is None), None)
    if missing is not None:
        raise BenchError(f"--arrivals recorded: program {missing!r} has no arrival_s in the trace")
    offsets = np.array([program.arrival_s for program in programs], float)
    offsets -= offsets.min()
    span = offsets.max()
    return offsets * ((len(programs) - 1) / jps / span) if span > 0 else offsets
