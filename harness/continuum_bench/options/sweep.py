"""Options of ``sweep`` and ``figure``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_bench.options.declare import ARGUMENT, OR_INFINITE, Options, at_least, named
from continuum_bench.options.run import RUN, Jobs, Json, NoReport, Quiet


@dataclass(frozen=True)
class PlayerOptions(Options):
    """Where the cells are played, and how many at the same time.

    Attributes:
        ray_address: Play the cells on this Ray cluster (auto, HOST:PORT or ray://...); local starts one on this
            machine.
    """

    panel = RUN

    jobs: Jobs = None
    quiet: Quiet = False
    ray_address: str | None = None


@dataclass(frozen=True)
class SweepOptions(PlayerOptions):
    """Options of ``sweep``.

    Attributes:
        grid: Grid file (YAML) with the axes and the values of each.
        overrides: AXIS=A,B: values of an axis, instead of the file's or without a file. Repeatable.
        out: Directory of the sweep, whose complete cells are kept. Default: runs/NAME.
        dry_run: List the cells and stop.
    """

    grid: Annotated[Path | None, ARGUMENT] = None
    overrides: Annotated[list[str] | None, named("--set")] = None
    out: Path | None = None
    dry_run: bool = False
    no_report: NoReport = False
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class FigureOptions(PlayerOptions):
    """Options of ``figure``.

    Attributes:
        name: Name of a figure, or list.
        quick: Few programs and seeds, in minutes; or the full experiment, in hours.
        out: Directory of the figure, whose complete cells are kept. Default: runs/figures/NAME.
        traces: Trace file to play instead of the figure's workloads. Repeatable.
        overrides: AXIS=A,B: values of an axis instead of the figure's. Repeatable.
        limits: Figure goodput: the limit on the P95 slowdown; inf: growing work alone decides. Repeatable.
        dry_run: List the cells and stop.
    """

    name: Annotated[str, ARGUMENT]
    quick: Annotated[bool, named("--quick/--full")] = True
    out: Path | None = None
    traces: list[Path] | None = None
    overrides: Annotated[list[str] | None, named("--set")] = None
    limits: Annotated[list[float] | None, at_least(1), OR_INFINITE, named("--limit")] = None
    dry_run: bool = False

    @property
    def mode(self) -> str:
        return "quick" if self.quick else "full"
