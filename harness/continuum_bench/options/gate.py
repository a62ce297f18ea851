"""Options of ``compare`` and ``analyze`` that judge runs: an SLO, and conditions on which a comparison fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_bench.options.declare import WRITABLE, Options
from continuum_bench.options.together import Needs, Without

SLO = "Slowdown and SLO"
GATE = "For CI"
TABLE = "write the table with a command of its own"


@dataclass(frozen=True)
class SloOptions(Options):
    """A service level objective, and how long programs take alone."""

    panel = SLO

    alone: Path | None = None
    """Run directory in which the same programs ran one at a time. Slowdowns are measured against it."""
    slo: str | None = None
    """Limits on a request's TTFT, TPOT and ITL and on a program's JCT, such as ttft=2s,tpot=50ms,itl=200ms,jct=300s.
    itl limits the longest gap between two tokens (of runs with --token-times). jct=10x is ten times the program's JCT
    alone (virtual runs record it; others need --alone). Tables then show how many requests and programs keep the
    limits."""


@dataclass(frozen=True)
class GateOptions(Options):
    """Conditions on which the comparison fails."""

    panel = GATE
    rules = (Without("form", TABLE), Without("out", TABLE))

    fail_if: list[str] | None = None
    """Exit with code 3 if this condition holds, for example "jct_mean_ratio > 1.05". METRIC_ratio is this arm's metric
    divided by the baseline's. A condition holds only if the whole 95% interval is beyond the limit. Repeatable."""
    point_estimate: Annotated[bool, Needs("fail_if")] = False
    """Let --fail-if compare estimates and ignore their intervals."""
    junit: Annotated[Path | None, WRITABLE, Needs("fail_if")] = None
    """Write the outcome of --fail-if to this file as JUnit XML, with one test for each condition and arm."""
