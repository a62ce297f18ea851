"""The report's figures as SVG files for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continuum_analysis.compare.runs import load_all
from continuum_analysis.plots.drawing import draw, save
from continuum_analysis.report.page import figures_of, page_of


def write_report_images(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write every figure of the directories' report as NAME.svg.

    Raises:
        AnalysisError, RunDirError: there are no runs, or a file cannot be written.
    """
    page = page_of(folder.name, load_all(paths), paths[0] if len(paths) == 1 else None)
    return [
        save([draw(figure.panels, figure.height)], folder / f"{figure.name}.svg")
        for figure in figures_of(page).values()
        if figure.table.rows
    ]
