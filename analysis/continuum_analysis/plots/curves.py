"""Panels of lines and areas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from continuum_analysis.plots.arm_styles import DASHES, MARKS, ArmStyle
from continuum_analysis.plots.axis import Axis, ends, heading, tick_text, words, x_marks
from continuum_analysis.plots.panels import Area, Line, Panel

LEFT, RIGHT = 48, 12
"""Pixels beside the axes."""


def x_axis(panels: Sequence[Panel], width: float) -> Axis:
    """Return the x axis that the panels have in common."""
    values = [v for panel in panels for line in panel.lines for v in line.x]
    values += [v for panel in panels for area in panel.areas for v in area.x]
    first = panels[0]
    if len(set(values)) == 1 and not first.x_from_zero:
        return Axis(values[0] - 1, values[0] + 1, LEFT, width - RIGHT, only=values[0])
    low, high = ends(values, from_zero=first.x_from_zero, log=first.log_x)
    return Axis(low, high, LEFT, width - RIGHT, first.log_x)


def curves(panel: Panel, x: Axis, top: float, height: float) -> tuple[str, float]:
    """Return the panel as SVG with axes of this height, and the y below it. Without an x title there are no x ticks."""
    top += 20 if panel.title or panel.y_title else 6
    y = _y_axis(panel, top + height, top)
    marks = x_marks(x, y.first_px, panel.x_title) if panel.x_title else ""
    drawn = "".join((*_frame(panel, x, y), *_areas(panel.areas, x, y), *_lines(panel, x, y)))
    return heading(x.first_px, top - 7, panel.title, panel.y_title) + drawn + marks, y.first_px + (38 if marks else 4)


def _y_axis(panel: Panel, bottom: float, top: float) -> Axis:
    values = [v for line in panel.lines for v in (*line.y, *line.low, *line.high)]
    values += [sum(levels) for levels in zip(*(area.y for area in panel.areas), strict=True)]
    values += [panel.level] if panel.level is not None else []
    low, high = ends(values, from_zero=not panel.log, log=panel.log)
    if panel.log:
        room = (high / low) ** 0.04
        return Axis(low / room, high * room, bottom, top, log=True)
    return Axis(low, panel.top or high + (high - low) * 0.04, bottom, top)


def _frame(panel: Panel, x: Axis, y: Axis) -> Iterator[str]:
    for tick in y.ticks(5 if y.first_px - y.last_px > 100 else 2):
        yield f"<path class='grid' d='M{x.first_px},{y.px(tick):.1f}H{x.last_px}'/>"
        yield words(x.first_px - 6, y.px(tick) + 4, tick_text(tick, panel.percent), "end")
    yield f"<path class='grid' d='M{x.first_px},{y.first_px:.1f}H{x.last_px}'/>"
    for tick in x.ticks(6) if panel.x_title else ():
        yield f"<path class='grid' d='M{x.px(tick):.1f},{y.first_px:.1f}v4'/>"


def _areas(areas: Sequence[Area], x: Axis, y: Axis) -> Iterator[str]:
    below = [0.0] * max((len(area.x) for area in areas), default=0)
    for area in areas:
        above = [low + level for low, level in zip(below, area.y, strict=True)]
        edge = [(x.px(t), y.px(level)) for t, level in zip(area.x, above, strict=True)]
        back = [(x.px(t), y.px(level)) for t, level in zip(area.x, below, strict=True)][::-1]
        yield f"<path fill='{area.colour}' d='{_path([*edge, *back])}z'><title>{escape(area.name)}</title></path>"
        below = above


def _lines(panel: Panel, x: Axis, y: Axis) -> Iterator[str]:
    if panel.level is not None:
        yield f"<path class='level' d='M{x.first_px},{y.px(panel.level):.1f}H{x.last_px}'/>"
    for stem in panel.stems:
        path = f"M{x.px(stem.x):.1f},{y.first_px:.1f}V{y.last_px:.1f}"
        yield f"<g>{stroke(path, stem.look, 'stem')}<title>{escape(stem.hover)}</title></g>"
    for line in panel.lines:
        if len(line.x):
            yield _line(line, x, y)


def _line(line: Line, x: Axis, y: Axis) -> str:
    points = [(x.px(a), y.px(b)) for a, b in zip(line.x, line.y, strict=True)]
    drawn = stroke(_path(points, line.kind == "stepped"), line.look)
    if line.low:
        bars = zip(points, line.low, line.high, strict=True)
        path = "".join(f"M{at:.1f},{y.px(low):.1f}V{y.px(high):.1f}" for (at, _), low, high in bars)
        drawn += f"<path class='whisker' stroke='{line.look.colour}' d='{path}'/>"
    if line.kind == "marked" or len(line.x) == 1:
        drawn += marks(points, line.look)
    return f"<g>{drawn}<title>{escape(line.name)}</title></g>"


def _path(points: Sequence[tuple[float, float]], stepped: bool = False) -> str:
    form = "H{:.1f}V{:.1f}" if stepped else "L{:.1f},{:.1f}"
    first, rest = points[:1], points[1:]
    return "".join([*("M{:.1f},{:.1f}".format(*point) for point in first), *(form.format(*point) for point in rest)])


def stroke(path: str, look: ArmStyle, kind: str = "line") -> str:
    dash = f" stroke-dasharray='{DASHES[look.dash]}'" if look.dash else ""
    return f"<path class='{kind}' stroke='{look.colour}'{dash} d='{path}'/>"


def marks(points: Sequence[tuple[float, float]], look: ArmStyle) -> str:
    """Draw all marks of a line as one path."""
    path = "".join(f"M{a:.1f},{b:.1f}{MARKS[look.mark]}" for a, b in points)
    face = "var(--paper)" if look.is_open else look.colour
    return f"<path class='mark' data-mark='{look.mark}' stroke='{look.colour}' fill='{face}' d='{path}'/>"
