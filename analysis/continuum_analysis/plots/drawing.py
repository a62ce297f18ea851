"""Figures as SVG, for pages and as files for papers, in light and in dark colours. No script is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from continuum_traces.json_io import write_text

from continuum_analysis.plots.axis import LETTER, words
from continuum_analysis.plots.curves import curves, marks, stroke, x_axis
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.plots.rows import DEFS, box, filled, rows

WIDTH, HEIGHT = 440, 230
"""Pixels of a drawing, and of the axes of curves."""
COLOURS, RULES = (
    (files("continuum_analysis") / "plots" / name).read_text(encoding="utf-8") for name in ("colours.css", "plot.css")
)
STYLE = COLOURS + RULES
"""The style sheet of every page with drawings."""
_NAMED = re.findall(r"(--\w+): (#\w+)", COLOURS)
LIGHT, DARK = dict(reversed(_NAMED)), dict(_NAMED)
"""The colours by name: the light ones come first in the style sheet."""


@dataclass(frozen=True, slots=True)
class Drawing:
    height: float
    content: str
    """Elements of SVG, ``WIDTH`` pixels wide."""

    def on_page(self) -> str:
        return self._svg("aria-hidden='true'")

    def at(self, x: float, y: float) -> str:
        """Return the drawing as a part of a larger one."""
        return self._svg(f"x='{x:g}' y='{y:g}' width='{WIDTH}' height='{self.height:.0f}'")

    def _svg(self, attributes: str) -> str:
        return f"<svg class='plot' viewBox='0 0 {WIDTH} {self.height:.0f}' {attributes}>{self.content}</svg>"


def draw(panels: Sequence[Panel], height: float = HEIGHT) -> Drawing:
    """Draw panels below each other with one legend above them. Curves have a common x axis.

    Args:
        height: of the axes of each panel of curves.
    """
    legend, top = _legend(dict(_keys(panels)))
    parts, x = [legend, DEFS * any(panel.in_rows for panel in panels)], x_axis(panels, WIDTH)
    for panel in panels:
        if panel.in_rows:
            drawn, top = rows(panel, top, WIDTH)
        else:
            drawn, top = curves(panel, x, top, height)
        parts.append(drawn)
    return Drawing(top, "".join(parts))


def save(drawings: Sequence[Drawing], file: Path) -> Path:
    """Write drawings, two in a row, as an SVG file. Equal drawings give equal bytes.

    The colours are light ones, and in a browser dark ones where the reader prefers these.

    Raises:
        RunDirError: the file cannot be written.
    """
    pairs = [drawings[first : first + 2] for first in range(0, len(drawings), 2)]
    parts, top, gap = [], 10.0, 30
    for pair in pairs:
        parts += [each.at(10 + column * (WIDTH + gap), top) for column, each in enumerate(pair)]
        top += max(each.height for each in pair) + gap
    width, height = 20 + len(pairs[0]) * (WIDTH + gap) - gap, top - gap + 10
    paper = "[fill='{--paper}'] {{ fill: var(--paper); }}".format_map(LIGHT)
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{RULES}{paper}\n}}\n"
    page = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height:.0f}'>"
        f"<style>{RULES}{_coloured(dark, DARK)}</style>"
        f"<rect width='100%' height='100%' fill='var(--paper)'/>{''.join(parts)}</svg>\n"
    )
    return write_text(file, _coloured(page, LIGHT))


def _coloured(text: str, colours: Mapping[str, str]) -> str:
    return re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], text)


def _keys(panels: Sequence[Panel]) -> Iterator[tuple[str, str]]:
    """Yield each name of the legend with its key, 24 by 12 pixels."""
    for panel in panels:
        for line in panel.lines:
            yield line.name, _line_key(line)
        for area in panel.areas:
            yield area.name, box(area.colour, "", 0, 0, 24, 12)
        for stack in panel.stacks:
            yield stack.name, box(stack.colour, stack.pattern, 0, 0, 24, 12)
        for bar in (bar for bar in panel.bars if bar.name != bar.group):
            yield bar.name, marks([(12.0, 6.0)], bar.look) if panel.dots else filled(bar.look, 0, 0, 24, 12)


def _line_key(line: Line) -> str:
    return stroke("M0,6h24", line.look) + (marks([(12.0, 6.0)], line.look) if line.kind == "marked" else "")


def _legend(keys: Mapping[str, str]) -> tuple[str, float]:
    """Return the legend, broken into lines, and the y below it."""
    parts, x, y = [], 0.0, 0.0
    for name, key in keys.items():
        width = 42 + LETTER * len(name)
        if x and x + width > WIDTH + 14:
            x, y = 0.0, y + 18
        parts.append(f"<g transform='translate({x:.1f},{y + 2:.1f})'>{key}{words(30, 10, name, kind='key')}</g>")
        x += width
    return "".join(parts), y + 24 if parts else 0.0
