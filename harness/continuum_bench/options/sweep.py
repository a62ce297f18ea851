"""Options of ``sweep`` and ``figure``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from continuum_bench.options.declare import ARGUMENT, OR_INFINITE, OptionGroup, named
from continuum_bench.options.run import RUN, Jobs, Json, NoReport, Quiet


@dataclass(frozen=True)
class PlayerOptions(OptionGroup):
    """Where the cells are played, and how many at the same time."""

    panel = RUN

    jobs: Jobs = None
    quiet: Quiet = False
    ray_address: str | None = None
    """Play the cells on this Ray cluster (auto, HOST:PORT or ray://...); local starts one on this machine."""


@dataclass(frozen=True)
class SweepOptions(PlayerOptions):
    """Options of ``sweep``."""

    grid: Annotated[Path | None, ARGUMENT] = None
    """Grid file (YAML) with the axes and the values of each."""
    overrides: Annotated[list[str] | None, named("--set")] = None
    """AXIS=A,B: values of an axis, instead of the file's or without a file. Repeatable."""
    out: Path | None = None
    """Directory of the sweep, whose complete cells are kept. Default: runs/NAME."""
    predict: bool = False
    """Before a sweep of engine cpu, gpu or emulated: measure a profile of stock vLLM, and play the cells in the virtual
    engine with it. The report shows measured beside modelled."""
    dry_run: bool = False
    """List the cells and stop."""
    no_report: NoReport = False
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class FigureOptions(PlayerOptions):
    """Options of ``figure``."""

    name: Annotated[str, ARGUMENT]
    """Name of a figure, or list."""
    quick: Annotated[bool, named("--quick/--full")] = True
    """Few programs and seeds, in minutes; or the full experiment, in hours."""
    out: Path | None = None
    """Directory of the figure, whose complete cells are kept. Default: runs/figures/NAME."""
    traces: list[Path] | None = None
    """Trace file to play instead of the figure's workloads. Repeatable."""
    overrides: Annotated[list[str] | None, named("--set")] = None
    """AXIS=A,B: values of an axis instead of the figure's. Repeatable."""
    limits: Annotated[list[float] | None, Meta(ge=1), OR_INFINITE, named("--limit")] = None
    """Figure goodput: the limit on the P95 slowdown; inf: growing work alone decides. Repeatable."""
    dry_run: bool = False
    """List the cells and stop."""

    @property
    def mode(self) -> str:
        return "quick" if self.quick else "full"
