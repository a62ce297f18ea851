"""report.html of a sweep: one file with the plot, the table, and the command of the sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from continuum_traces.run_dir import read_json, writing
from markupsafe import Markup

from continuum_analysis.compare.runs import SWEEP
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import ArmStyle, arm_styles
from continuum_analysis.plots.on_paper import draw, save
from continuum_analysis.plots.on_screen import html_of
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.report.fill import fill_page
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.tables import MODELLED, Sweep
from continuum_analysis.sweep.verdict import sweep_trust, sweep_verdict

HEIGHT = 340
"""Pixels of a panel on the page."""

READING = (
    "Bars and brackets: 95% intervals over seeds (Student's t); of two seeds, the value of each. JCT to vllm: this "
    "policy's mean JCT over vllm's, on the same arrivals; below 1 is faster."
)


def write_sweep_report(sweep: Sweep) -> Path:
    """Write sweep.svg, sweep.png and report.html beside sweep.json; return the path of report.html."""
    panels, facts = sweep_panels(sweep, read_plot(sweep.plot, sweep)), _facts(sweep, read_json(sweep.path / SWEEP))
    verdict, trust = sweep_verdict(sweep), sweep_trust(sweep)
    return write_page(
        sweep.path, "sweep", panels, sweep.name, sweep.table(), sweep.warnings(), facts, READING, verdict, trust
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
    verdict: tuple[str, str] | None = None,
    trust: str = "",
) -> Path:
    """Write the panels as ``name.svg`` and ``name.png``, and report.html with the panels and the table.

    Raises:
        RunDirError: a file cannot be written.
    """
    picture = save(draw(panels), folder, name)[0].read_text(encoding="utf-8") if panels else ""
    page = fill_page(
        "sweep_report.html.j2",
        title=title,
        verdict=verdict,
        trust=trust,
        plots=Markup(_plots(panels, picture)),
        reading=reading,
        warnings=warnings,
        table=table,
        facts=facts,
    )
    target = folder / "report.html"
    with writing(target):
        target.write_text(page, encoding="utf-8")
    return target


def _plots(panels: Sequence[Panel], picture: str) -> str:
    """Return the plots as HTML: lines are drawn for the page; for bars and dots the page shows the SVG file."""
    if not panels:
        return ""
    if any(panel.bars for panel in panels):
        return f"<div class='scroll drawing'>{_in_page_colours(picture[picture.index('<svg') :])}</div>"
    styles = arm_styles(name for panel in panels for name in panel.arms)
    looking = [replace(panel, lines=[_with_look(line, styles) for line in panel.lines]) for panel in panels]
    return "".join(["<div class='pair'>", *(f"<div>{html_of([panel], HEIGHT)}</div>" for panel in looking), "</div>"])


def _in_page_colours(picture: str) -> str:
    """Replace black and white by the page's foreground and background colours, which the dark theme changes."""
    return picture.replace("#000000", "var(--ink)").replace("#ffffff", "var(--paper)")


def _with_look(line: Line, styles: Mapping[str, ArmStyle]) -> Line:
    return line if line.look is not None else replace(line, look=styles[line.name])


def _facts(sweep: Sweep, plan: dict[str, object]) -> list[tuple[str, str]]:
    command = plan.get("command", [])
    done, asked = sum(len(g.cells) for g in sweep.groups), sum(g.asked for g in sweep.groups)
    return [
        ("Cells", f"{done} of {asked}"),
        ("Engine", f"{sweep.engine}; {MODELLED[sweep.engine]}" if sweep.engine in MODELLED else sweep.engine),
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else ""),
        ("Runs", ", ".join(group.folder for group in sweep.groups)),
    ]
