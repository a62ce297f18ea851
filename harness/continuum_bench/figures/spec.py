"""The papers' experiments. Each is a file ``figures/NAME.yaml`` with a quick and a full grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from continuum_traces.names import which

from continuum_bench.errors import BenchError
from continuum_bench.json_files import read_as
from continuum_bench.sweep.grid import Grid, grid_of

Kind = Literal["lines", "ratios", "hints", "queue", "estimates", "tools", "remaining", "means", "goodput"]
"""What a figure shows.

lines      a metric of a sweep against one of its axes
ratios     mean JCT divided by ``continuum``'s, at each point of the grid
hints      mean JCT divided by that of the same policy without hints
queue      the waiting time of each program
estimates  the estimates eta and T over time
tools      tool times of traces
remaining  turns that programs of traces still have, after so many turns
means      how the mean time of a tool's calls settles as calls are added
goodput    the highest load that is sustained, found by bisection
"""

PAPERS_ORDER = "fcfs"
"""``--one-offs`` of every figure: the papers' policies know no one-offs."""


@dataclass(frozen=True, slots=True)
class FigureSpec:
    """One of the papers' experiments."""

    name: str
    title: str
    paper: str
    """The published figure or table that it reproduces."""
    minutes: dict[str, float]
    """Minutes on two cores. quick: of one run, of goodput an estimate; full: an estimate."""
    grid: dict[str, Any]
    claim: str = ""
    """The published result, in a sentence; empty: there is none."""
    kind: Kind = "lines"
    quick: dict[str, Any] = field(default_factory=dict)
    full: dict[str, Any] = field(default_factory=dict)
    traces: dict[str, Any] = field(default_factory=dict)
    """Replaces axes if the user's own traces are played, with loads that suit long coding agents on an A100."""
    plot: dict[str, Any] = field(default_factory=dict)
    goodput: dict[str, Any] = field(default_factory=dict)
    """For kind goodput: the ``tolerance`` of the search, and the ``limits`` on the P95 slowdown, also for servers,
    which know no slowdown."""

    def sweep(self, mode: str, traces: Sequence[Path], overrides: Sequence[str] = ()) -> Grid:
        """Return the grid to play.

        Raises:
            BenchError: an override is invalid, or a trace does not exist.
        """
        sized = self.full if mode == "full" else self.quick
        raw = {"one_offs": PAPERS_ORDER, **self.grid, **sized, "plot": dict(self.plot)}
        where = f"figure {self.name}"
        if traces:
            raw.pop("cases", None)
            raw = {**raw, **self.traces, "workload": [str(path.absolute()) for path in traces]}
        return grid_of(raw, where, Path(), f"figure-{self.name}", overrides)


def figure_names() -> list[str]:
    entries = (files("continuum_bench") / "figures").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def load_figure(name: str) -> FigureSpec:
    """Read the experiment of this name.

    Raises:
        BenchError: no figure has this name, or its file lacks a field.
    """
    if name not in figure_names():
        raise BenchError(f"figure {name}: {which(name, figure_names())}")
    raw = yaml.safe_load((files("continuum_bench") / "figures" / f"{name}.yaml").read_text(encoding="utf-8"))
    return read_as(f"figures/{name}.yaml", {"name": name, **raw}, FigureSpec)
