"""Options of the commands that read recorded runs: ``analyze``, ``report`` and ``compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_bench.options.declare import WRITABLE, Option, Options, one_of
from continuum_bench.options.run import Json
from continuum_bench.options.together import Needs, Without

SLO = "Slowdown and SLO"
GATE = "For CI"
TABLE = "write the table with a command of its own"
BY = "--by prints its tables, or JSON"
AS_JSON = "--format json writes a table as JSON"

Directories = Annotated[
    list[Path],
    Option("Run directories, experiment directories, or scheduler_timestamps files of the preview.", argument=True),
]
Baseline = Annotated[
    str | None,
    Option("Policy that the others are compared with. Default: vllm or stock, else the first one."),
]
TableForm = Annotated[
    str | None,
    one_of("csv", "parquet", "json", "latex", "markdown"),
    Option("Write a table for other programs: csv, json, latex, markdown or parquet.", names=("--format",)),
]
TableFile = Annotated[Path | None, WRITABLE, Option("File for that table. Default: standard output.")]
JsonAlone = Annotated[Json, Without("form", AS_JSON), Without("table", AS_JSON), Without("out", AS_JSON)]


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(Options):
    """Options of ``analyze``.

    Attributes:
        misses: Show why each returning turn found its KV in the cache, or did not.
        table: Which rows to write: runs, misses, programs, turns, by-turn (latency by turn number) or pins.
    """

    directories: Directories
    misses: Annotated[bool, Without("table", "--table misses is the table of them")] = False
    table: str | None = None
    form: TableForm = None
    out: TableFile = None
    json_output: JsonAlone = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Options of ``report``.

    Attributes:
        out: Write one page about all directories: their seeds together, and the mean JCT by load.
        images: Also write every figure as an SVG file beside the page.
    """

    directories: Directories
    out: Path | None = None
    images: bool = False
    baseline: Baseline = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Options of ``compare``.

    Attributes:
        by: Compare groups of programs: by kind, by first-prompt (its size), or by any name in the programs' metadata.
    """

    directories: Directories
    baseline: Baseline = None
    by: Annotated[str | None, Without("form", BY), Without("out", BY)] = None
    form: TableForm = None
    out: TableFile = None
    json_output: JsonAlone = False


@dataclass(frozen=True)
class SloOptions(Options):
    """A service level objective, and the runs that slowdowns are measured against.

    Attributes:
        alone: Run directory in which the same programs ran one at a time. Slowdowns are measured against it.
        slo: Limits on a request's TTFT, TPOT and ITL and on a program's JCT, such as
            ttft=2s,tpot=50ms,itl=200ms,jct=300s. itl limits the longest gap between two tokens (of runs with
            --token-times). jct=10x is ten times the program's JCT alone (virtual runs record it; others need --alone).
            Tables then show how many requests and programs keep the limits.
    """

    panel = SLO

    alone: Path | None = None
    slo: str | None = None


@dataclass(frozen=True)
class GateOptions(Options):
    """Conditions under which the comparison fails.

    Attributes:
        fail_if: Exit with code 3 if this condition holds, for example "jct_mean_ratio > 1.05". METRIC_ratio is this
            arm's metric divided by the baseline's. A condition holds only if the whole 95% interval is beyond the
            limit. Repeatable.
        point_estimate: Let --fail-if compare estimates and ignore their intervals.
    """

    panel = GATE
    rules = (Without("form", TABLE), Without("out", TABLE))

    fail_if: list[str] | None = None
    point_estimate: Annotated[bool, Needs("fail_if")] = False
