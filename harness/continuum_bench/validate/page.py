"""The HTML page of a validation: measured and modelled times, and the requests over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import COLOURS, ArmStyle
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.report.figure_kit import Figure, cdf_figure
from continuum_analysis.report.fill import fill_page

from continuum_bench.errors import BenchError
from continuum_bench.validate.numbers import timeline
from continuum_bench.validate.served import Served

Sides = Mapping[str, Sequence[Served]]
"""The requests as measured and as modelled."""
LOOKS = {"measured": ArmStyle(COLOURS[2], 0, False, 0), "modelled": ArmStyle(COLOURS[1], 1, False, 1)}
INSTANTS = 200
TIMES: Mapping[str, tuple[str, Callable[[Served], float]]] = {
    "e2e": ("End-to-end time", lambda each: each.finish_s - each.arrival_s),
    "ttft": ("Time to first token", lambda each: each.first_token_s - each.arrival_s),
    "tpot": ("Time per output token", lambda each: (each.finish_s - each.first_token_s) / (each.output_tokens - 1)),
}


def write_page(path: Path, runs: Sequence[tuple[dict[str, Any], Sequence[Served], Sequence[Served]]]) -> None:
    """Write the page about runs: their numbers, and their requests as measured and as modelled.

    Raises:
        BenchError: the file cannot be written.
    """
    sections = [_section(*run) for run in runs]
    try:
        path.write_text(fill_page("validation.html.j2", title="Validation", sections=sections), encoding="utf-8")
    except OSError as error:
        raise BenchError(f"--report {path}: cannot write: {error.strerror}") from error


def _section(run: dict[str, Any], measured: Sequence[Served], modelled: Sequence[Served]) -> dict[str, Any]:
    steps, sides = run["step_times"], {"measured": measured, "modelled": modelled}
    rows = [
        (name, f"{value:.4g}", f"{run['modelled'][name]:.4g}", f"{run[f'{name}_error']:+.1%}")
        for name, value in run["measured"].items()
        if f"{name}_error" in run
    ]
    shown = {"GPU": "gpu", "Model": "model", "Step times": "kind", "Attention": "attention", "Overhead": "overhead"}
    return {
        "name": run["name"],
        "facts": [("Requests", f"{len(measured):,}"), *((name, steps[key]) for name, key in shown.items())],
        "table": TextTable(("times in seconds", "measured", "modelled", "error"), rows),
        "figures": [*(_distribution(name, sides) for name in TIMES), _over_time(sides)],
    }


def _distribution(name: str, sides: Sides) -> Figure:
    title, seconds_of = TIMES[name]
    seconds = {
        side: [seconds_of(each) for each in served if name != "tpot" or each.output_tokens > 1]
        for side, served in sides.items()
    }
    return cdf_figure(name, title, "Share of requests within a time.", f"{title}, s", "requests", seconds, LOOKS)


def _over_time(sides: Sides) -> Figure:
    until_s = max(each.finish_s for each in sides["measured"])
    moments = {side: timeline(served, until_s, INSTANTS) for side, served in sides.items()}
    panels, rows = [], []
    for what, title in (("running", "with a first token"), ("waiting", "without a first token")):
        numbers = {side: [float(getattr(moment, what)) for moment in each] for side, each in moments.items()}
        lines = [
            Line(side, [moment.at_s for moment in moments[side]], values, kind="plain", look=LOOKS[side])
            for side, values in numbers.items()
        ]
        panels.append(Panel(title, "second" if what == "waiting" else "", "", lines, x_from_zero=True))
        rows += [
            (f"{title}, {side}", f"{sum(values) / len(values):.1f}", f"{max(values):.0f}")
            for side, values in numbers.items()
        ]
    return Figure(
        "requests",
        "Requests over time",
        "Requests that the server had at each moment.",
        panels,
        TextTable(("requests", "mean", "most"), rows),
        height=100,
    )
