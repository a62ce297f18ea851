"""report.html of a sweep: one page that opens anywhere, with its plot, its table, and what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import jinja2
from continuum_traces.run_dir import read_json, writing

from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.on_paper import draw, save
from continuum_analysis.plots.panels import Panel
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.tables import MODELLED, SWEEP, Sweep

READING = (
    "Bars and round brackets: 95% intervals over seeds (Student's t). Of fewer than three seeds: the seeds themselves, "
    "in square brackets. Ratio: vllm's mean JCT over this policy's, on the same arrivals; above 1 is faster."
)


def write_sweep_report(sweep: Sweep) -> Path:
    """sweep.svg, sweep.png and report.html beside sweep.json; the page's path."""
    panels = sweep_panels(sweep, read_plot(sweep.plot, sweep))
    plan = read_json(sweep.path / SWEEP)
    return write_page(
        sweep.path, "sweep", panels, sweep.name, sweep.table(), sweep.warnings(), _facts(sweep, plan), READING
    )


def write_page(
    folder: Path,
    name: str,
    panels: Sequence[Panel],
    title: str,
    table: TextTable,
    warnings: Sequence[str],
    facts: Sequence[tuple[str, str]],
    reading: str = "",
) -> Path:
    """``name.svg`` and ``name.png`` of the panels, and report.html around them and the table.

    Raises:
        RunDirError: nowhere to write.
    """
    svg = ""
    if panels:
        picture = save(draw(panels), folder, name)[0].read_text(encoding="utf-8")
        svg = picture[picture.index("<svg") :]
    source = (files("continuum_analysis") / "sweep_report.html.j2").read_text(encoding="utf-8")
    page = jinja2.Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True).render(
        title=title, svg=svg, headings=table.headings, rows=table.rows, warnings=warnings, facts=facts, reading=reading
    )
    target = folder / "report.html"
    with writing(target):
        target.write_text(page, encoding="utf-8")
    return target


def _facts(sweep: Sweep, plan: dict[str, object]) -> list[tuple[str, str]]:
    command = plan.get("command", [])
    done, asked = sum(len(g.cells) for g in sweep.groups), sum(g.asked for g in sweep.groups)
    return [
        ("Cells", f"{done} of {asked}"),
        ("Engine", f"{sweep.engine}; {MODELLED[sweep.engine]}" if sweep.engine in MODELLED else sweep.engine),
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else ""),
        ("Runs", ", ".join(group.folder for group in sweep.groups)),
    ]
