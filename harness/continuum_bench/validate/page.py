"""Writes the HTML page of a validation: measured and modelled times, and the requests over time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from continuum_bench.errors import BenchError

WIDTH, HEIGHT, MARGIN = 520, 240, 40
MEASURED, MODELLED = "#444444", "#d2691e"
STYLE = "body{font-family:sans-serif;max-width:70em;margin:2em auto}td,th{padding:.2em 1em;text-align:right}"


def write_page(path: Path, runs: Sequence[dict[str, Any]]) -> None:
    """Write the page.

    Raises:
        BenchError: the file cannot be written.
    """
    body = "".join(_section(run) for run in runs)
    page = f"<!doctype html><meta charset=utf-8><title>Validation</title><style>{STYLE}</style>{body}"
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"--report {path}: cannot write: {error.strerror}") from error


def _section(run: dict[str, Any]) -> str:
    names = [name for name in run["measured"] if f"{name}_error" in run]
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{run['measured'][name]:.4g}<td>{run['modelled'][name]:.4g}"
        f"<td>{run[f'{name}_error']:+.1%}"
        for name in names
    )
    steps = run["step_times"]
    return (
        f"<h2>{escape(run['name'])}</h2><p>Measured (grey) and modelled (orange) on {escape(steps['gpu'])}, "
        f"{escape(steps['model'])}. Times are in seconds. Step times: {escape(steps['kind'])}; attention: "
        f"{escape(steps['attention'])}; overhead: {escape(steps['overhead'])}.</p>"
        f"<table><tr><th><th>measured<th>modelled<th>error{rows}</table>"
        + _chart(run, "running", "requests with a first token")
        + _chart(run, "waiting", "requests without a first token")
    )


def _chart(run: dict[str, Any], what: str, title: str) -> str:
    series = [(run["timeline"][side], color) for side, color in (("measured", MEASURED), ("modelled", MODELLED))]
    top = max([moment[what] for moments, _ in series for moment in moments] + [1])
    until = series[0][0][-1]["at_s"] or 1.0
    lines = "".join(
        f'<polyline fill="none" stroke-width="2" stroke="{color}" points="'
        + " ".join(_point(moment["at_s"] / until, moment[what] / top) for moment in moments)
        + '"/>'
        for moments, color in series
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img"><text x="{MARGIN}" y="16">{escape(title)}, at most {top}; '
        f"{until:.0f} s</text>{lines}</svg>"
    )


def _point(x: float, y: float) -> str:
    return f"{MARGIN + x * (WIDTH - 2 * MARGIN):.1f},{HEIGHT - 20 - y * (HEIGHT - 2 * MARGIN):.1f}"
