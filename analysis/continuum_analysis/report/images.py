"""The report's figures as PNG and SVG for papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continuum_analysis.compare.runs import load_all
from continuum_analysis.plots.on_paper import draw, save
from continuum_analysis.report.figure_kit import Figure
from continuum_analysis.report.page import figures_of, page_of
from continuum_analysis.report.program_timeline import timeline_stills

PIXELS_PER_INCH = 110
WIDTH_INCHES = 7.0


def write_images(figure: Figure, folder: Path) -> list[Path]:
    """Write the figure as NAME.svg and NAME.png in the folder.

    Raises:
        RunDirError: a file cannot be written.
    """
    return save(draw(figure.panels, (WIDTH_INCHES, figure.height / PIXELS_PER_INCH)), folder, figure.name)


def write_report_images(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write every figure of the directories' report as an image; the timeline as one image for each policy.

    Raises:
        AnalysisError, RunDirError: there are no runs, or a file cannot be written.
    """
    page = page_of(folder.name, load_all(paths), paths[0] if len(paths) == 1 else None)
    figures = [*figures_of(page).all, *timeline_stills(page.groups)]
    return [file for figure in figures if figure.table.rows for file in write_images(figure, folder)]
