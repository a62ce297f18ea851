"""When programs arrive: ``poisson``, ``constant``, ``gamma:CV``, ``ramp:FACTOR``, ``recorded`` (open loop, seeded).

In a closed loop (``concurrency:N``, ``steps:N``) a program arrives when others have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from continuum_traces.closed_loop import Lanes
from continuum_traces.schema import Program

from continuum_bench.errors import BenchError
from continuum_bench.options.run import uses_rate
from continuum_bench.workload.forms import Form, read_form

Seconds = np.ndarray[tuple[int], np.dtype[np.float64]]
Times = Callable[[np.random.Generator, float, Sequence[Program]], Seconds]

LEAST = 1e-6
"""Smallest number after the colon. The largest is its inverse."""
SANE = f"a number from {LEAST:g} to {1 / LEAST:g}"


def _sane(number: float = 1.0) -> bool:
    return LEAST <= number <= 1 / LEAST


def _poisson(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
    return np.cumsum(rng.exponential(1.0 / jps, len(programs)))


def _constant(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
    return np.arange(1, len(programs) + 1) / jps


def _gamma(variation: float) -> Times:
    shape = 1.0 / variation**2
    return lambda rng, jps, programs: np.cumsum(rng.gamma(shape, 1.0 / (jps * shape), len(programs)))


def _ramp(factor: float) -> Times:
    def times(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
        rates = np.linspace(jps / factor, jps * factor, len(programs))
        return np.cumsum(rng.exponential(1.0, len(programs)) / rates)

    return times


def _recorded(speed: float | None = None) -> Times:
    def times(rng: np.random.Generator, jps: float, programs: Sequence[Program]) -> Seconds:
        offsets = _offsets(programs)
        span = offsets.max()
        if speed is not None:
            return offsets / speed
        return offsets * ((len(programs) - 1) / jps / span) if span > 0 else offsets

    return times


def _lanes(in_steps: bool) -> Callable[..., Lanes]:
    seconds = "pause_s" if in_steps else "ramp_s"
    return lambda number, time_s=0.0: Lanes(int(number), in_steps=in_steps, **{seconds: time_s})


def _whole(number: float, time_s: float = 0.0) -> bool:
    return number >= 1 and number == int(number)


FORMS: Sequence[Form[Times | Lanes]] = (
    Form("poisson", (0,), lambda: _poisson),
    Form("constant", (0,), lambda: _constant),
    Form("gamma:CV", (1,), _gamma, _sane, SANE),
    Form("ramp:FACTOR", (1,), _ramp, lambda factor: factor > 1 and _sane(factor), f"{SANE}, above 1"),
    Form("recorded[:SPEED]", (0, 1), _recorded, _sane, SANE),
    Form("concurrency:N[:RAMP_S]", (1, 2), _lanes(in_steps=False), _whole, "N a whole number above 0"),
    Form("steps:N[:PAUSE_S]", (1, 2), _lanes(in_steps=True), _whole, "N a whole number above 0"),
)
"""The forms of ``--arrivals``. All but ``recorded:SPEED`` and closed loops have the mean rate jps.

poisson     exponential gaps
constant    equal gaps
gamma:CV    gamma gaps with the coefficient of variation CV; above 1 is burstier than poisson
ramp:F      poisson whose rate grows linearly from jps/F to jps*F over the run's programs
recorded    the trace's own offsets, scaled to the rate
recorded:S  the trace's own offsets, S times as fast
concurrency:N[:RAMP_S]  N programs at a time, the next one starts when one ends; the first N start over RAMP_S
steps:N[:PAUSE_S]       N programs start together, the next N PAUSE_S seconds after all of them have ended
"""


def arrival_times(spec: str) -> Times:
    """Return a function that draws the arrivals: seconds from the start of the run, one for each program in order; in a
    closed loop, all 0.

    Raises:
        BenchError: the form is unknown, or a number is out of range. The returned function raises it for ``recorded``
            if a program has no recorded arrival.
    """
    found: Times | Lanes = read_form("--arrivals", spec, FORMS)
    return (lambda rng, jps, programs: np.zeros(len(programs))) if isinstance(found, Lanes) else found


def lanes_of(spec: str) -> Lanes | None:
    """Return a closed loop; None: another form of arrivals. Raises ``BenchError`` as ``arrival_times``."""
    found = read_form("--arrivals", spec, FORMS)
    return found if isinstance(found, Lanes) else None


def pace(spec: str, jps: float) -> str:
    """Return the arrivals in words."""
    return f"at {jps:g}/s" if uses_rate(spec) else f"with arrivals {spec}"


def _offsets(programs: Sequence[Program]) -> Seconds:
    """Return the recorded arrivals in seconds after the first one."""
    missing = next((program.program_id for program in programs if program.arrival_s is None), None)
    if missing is not None:
        raise BenchError(f"--arrivals recorded: program {missing!r} has no arrival_s in the trace")
    offsets: Seconds = np.array([program.arrival_s for program in programs], float)
    return offsets - float(offsets.min())
