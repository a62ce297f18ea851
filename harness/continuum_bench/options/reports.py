"""Options of the commands that read recorded runs: ``analyze``, ``report`` and ``compare``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from continuum_bench.options.declare import ARGUMENT, WRITABLE, OptionGroup, named, one_of
from continuum_bench.options.run import Json
from continuum_bench.options.together import Needs, Without

SLO = "Slowdown and SLO"
GATE = "For CI"
TABLE = "write the table with a command of its own"
BY = "--by prints its tables, or JSON"
AS_JSON = "--format json writes a table as JSON"

Directories = Annotated[
    list[Path],
    Meta(description="Run directories, experiment directories, or scheduler_timestamps files of the preview."),
    ARGUMENT,
]
Baseline = Annotated[
    str | None,
    Meta(description="Policy that the others are compared with. Default: vllm or stock, else the first one."),
]
TableForm = Annotated[
    str | None,
    one_of("csv", "parquet", "json", "latex", "markdown"),
    Meta(description="Write a table for other programs: csv, json, latex, markdown or parquet."),
    named("--format"),
]
TableFile = Annotated[Path | None, WRITABLE, Meta(description="File for that table. Default: standard output.")]
TableColumns = Annotated[
    str | None,
    Meta(
        description="Columns of that table in this order, by their names in csv: policy,jct_mean_s,jct_mean_s_low. "
        "Default: all; of compare in latex and markdown those that the terminal shows."
    ),
]
JsonAlone = Annotated[
    Json,
    Without("form", AS_JSON),
    Without("table", AS_JSON),
    Without("out", AS_JSON),
    Without("columns", AS_JSON),
]


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions(OptionGroup):
    """Options of ``analyze``."""

    directories: Directories
    misses: Annotated[bool, Without("table", "--table misses is the table of them")] = False
    """Show why each returning turn found its KV in the cache, or did not."""
    table: str | None = None
    """Which rows to write: runs, misses, programs, turns, by-turn (latency by turn number) or pins."""
    form: TableForm = None
    out: TableFile = None
    columns: TableColumns = None
    json_output: JsonAlone = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OptionGroup):
    """Options of ``report``."""

    directories: Directories
    out: Path | None = None
    """Write one page about all directories: their seeds together, and the mean JCT by load."""
    images: bool = False
    """Also write every figure as an SVG file beside the page."""
    baseline: Baseline = None


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OptionGroup):
    """Options of ``compare``."""

    directories: Directories
    baseline: Baseline = None
    by: Annotated[str | None, Without("form", BY), Without("out", BY), Without("columns", BY)] = None
    """Compare groups of programs: by kind, by first-prompt (its size), by key (digest of the API key), or by any name
    in the programs' metadata."""
    form: TableForm = None
    out: TableFile = None
    columns: TableColumns = None
    json_output: JsonAlone = False


@dataclass(frozen=True)
class SloOptions(OptionGroup):
    """A service level objective, and the runs that slowdowns are measured against."""

    panel = SLO

    alone: Path | None = None
    """Run directory in which the same programs ran one at a time. Slowdowns are measured against it."""
    slo: str | None = None
    """Limits on a request's TTFT, TPOT and ITL and on a program's JCT, such as ttft=2s,tpot=50ms,itl=200ms,jct=300s.
    itl limits the longest gap between two tokens (of runs with --token-times). jct=10x is ten times the program's
    JCT alone (virtual runs record it; others need --alone). Tables then show how many requests and programs keep the
    limits. A metric of a whole run, such as ttft_p95=5s or output_tokens_s_p25=20, is a limit that a run keeps or does
    not."""


@dataclass(frozen=True)
class GateOptions(OptionGroup):
    """Conditions under which the comparison fails."""

    panel = GATE
    rules = (Without("form", TABLE), Without("out", TABLE), Without("columns", TABLE))

    fail_if: list[str] | None = None
    """Exit with code 3 if this condition holds, for example "jct_mean_ratio > 1.05". METRIC_ratio is this arm's metric
    divided by the baseline's. A condition holds only if the whole 95% interval is beyond the limit. Repeatable."""
    point_estimate: Annotated[bool, Needs("fail_if")] = False
    """Let --fail-if compare estimates and ignore their intervals."""
