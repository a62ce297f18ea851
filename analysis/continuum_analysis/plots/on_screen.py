"""Panels drawn for an HTML page: lines and areas as SVG, bars and stacks as HTML. Text and axes have the colours of the
page, for light and dark themes and for print; no script is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import LEVEL_COLOUR, Area, Line, Panel, Stack

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560, 62, 12, 10, 44
"""Pixels of a drawing at its natural size, and of its margins."""
TICKS = 5
DASHES = ("", "7 4", "2 3", "7 3 2 3", "12 4", "12 4 2 4")
MARKS = (
    "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "m-3.5,-3.5h7v7h-7z",
    "m0,-4.5l4.5,8h-9z",
    "m0,-5l4,5l-4,5l-4,-5z",
    "m0,4.5l4.5,-8h-9z",
    "m-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "m0,-2l2.5,-2.5l2,2l-2.5,2.5l2.5,2.5l-2,2l-2.5,-2.5l-2.5,2.5l-2,-2l2.5,-2.5l-2.5,-2.5l2,-2z",
    "m0,-5l1.3,3.2l3.5,.3l-2.7,2.3l.8,3.4l-2.9,-1.8l-2.9,1.8l.8,-3.4l-2.7,-2.3l3.5,-.3z",
)
PATTERNS = {"": "plain", "/": "rising", "\\": "falling", "x": "crossed", ".": "dotted", "-": "lying", "|": "upright"}
"""Classes of the page's style sheet, by a stack's pattern. The class of ``+`` is ``squared``."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Converts values to pixels."""

    low: float
    high: float
    first_px: float
    last_px: float
    log: bool = False

    def px(self, value: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        share = ((log10(max(value, self.low)) if self.log else value) - low) / (high - low)
        return self.first_px + share * (self.last_px - self.first_px)

    def ticks(self, most: int = TICKS) -> list[float]:
        if self.log:
            powers = range(ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers][:: max(1, ceil(len(powers) / 8))]
        step = round_step((self.high - self.low) / most)
        return [n * step for n in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def round_step(at_least: float) -> float:
    """Return the next larger of 1, 2, 5 times a power of ten; also 2.5 times a power of ten below 1."""
    power = 10.0 ** floor(log10(at_least))
    factors = (1, 2, 2.5, 5, 10) if power < 1 else (1, 2, 5, 10)
    return next(factor * power for factor in factors if factor * power >= at_least * (1 - 1e-9))


def html_of(panels: Sequence[Panel], height: int) -> str:
    """Draw the panels with their legend; every line must have a ``look``."""
    if panels and panels[0].bars:
        return f'<div class="side">{"".join(map(_bars, panels))}</div>'
    if panels and panels[0].stacks:
        return "".join(map(_stacks, panels))
    return f"{_legend(panels)}<div class='scroll'>{_svg(panels, height)}</div>"


# ------------------------------------------------------------------------------------------------- rows of bars


def _bars(panel: Panel) -> str:
    """Draw each bar in a row: its name, the bar with its interval, and the number."""
    top = max((max(bar.y, bar.high) for bar in panel.bars), default=0.0) or 1.0
    rows = []
    for bar in panel.bars:
        colour = bar.look.colour if bar.look else LEVEL_COLOUR
        whisker = f'<b style="left:{bar.low / top:.2%};width:{(bar.high - bar.low) / top:.2%}"></b>'
        filled = f'<i style="width:{bar.y / top:.2%};background:{colour}"></i>'
        track = filled + (whisker if bar.high > bar.low else "")
        rows.append(_row(bar.name, track, bar.said))
    return f"<div class='bars'><h3>{escape(panel.title)}</h3>{''.join(rows)}</div>"


def _row(name: str, track: str, number: str) -> str:
    return f"<div><span>{escape(name)}</span><span class='track'>{track}</span><span>{escape(number)}</span></div>"


def _stacks(panel: Panel) -> str:
    """Draw each group in a row, with its layers side by side; each layer has a tooltip."""
    groups = list(dict.fromkeys(group for stack in panel.stacks for group in stack.groups))
    heights = {stack.name: dict(zip(stack.groups, stack.heights, strict=True)) for stack in panel.stacks}
    top = max((sum(each.get(group, 0.0) for each in heights.values()) for group in groups), default=0.0) or 1.0
    keys = "".join(f"<span>{_box(stack.colour, stack.pattern)}{escape(stack.name)}</span>" for stack in panel.stacks)
    rows = []
    for group in groups:
        values = [(stack, heights[stack.name].get(group, 0.0)) for stack in panel.stacks]
        layers = "".join(_layer(panel, group, stack, value, value / top) for stack, value in values if value > 0)
        rows.append(_row(group, layers, "" if panel.percent else f"{sum(value for _, value in values):,.0f}"))
    return f"<p class='legend'>{keys}</p><div class='bars stacked'>{''.join(rows)}</div>"


def _layer(panel: Panel, group: str, stack: Stack, value: float, share: float) -> str:
    number = f"{value:.1%}" if panel.percent else f"{value:,.0f}"
    said = f"{group}: {stack.name} {number}" + (f"\n{stack.hover}" if stack.hover else "")
    look = f"class='{_pattern(stack.pattern)}' style='width:{share:.3%};background-color:{stack.colour}'"
    return f"<i {look} title='{escape(said, quote=True)}'></i>"


def _pattern(pattern: str) -> str:
    return PATTERNS.get(pattern, "squared")


def _box(colour: str, pattern: str) -> str:
    return f"<i class='box {_pattern(pattern)}' style='background-color:{colour}'></i>"


# ----------------------------------------------------------------------------------------------- lines and areas


def _legend(panels: Sequence[Panel]) -> str:
    keys: dict[str, str] = {}
    for panel in panels:
        for line in panel.lines:
            keys.setdefault(line.name, _line_key(line))
        for area in panel.areas:
            keys.setdefault(area.name, _box(area.colour, ""))
    return "<p class='legend'>" + "".join(f"<span>{key}{escape(name)}</span>" for name, key in keys.items()) + "</p>"


def _line_key(line: Line) -> str:
    if line.look is None:
        return ""
    stroke = "" if line.kind == "points" else _stroke("M0,6h30", line.look)
    return f"<svg width='30' height='12' aria-hidden='true'>{stroke}{_marks(line, line.look, [(15.0, 6.0)])}</svg>"


def _svg(panels: Sequence[Panel], height: int) -> str:
    """Draw the panels below each other with a common x axis."""
    each = (height - TOP - BOTTOM) / max(1, len(panels))
    x = _x_axis(panels)
    parts: list[str] = []
    for number, panel in enumerate(panels):
        top = TOP + number * each + (18 if panel.title else 0)
        bottom = TOP + (number + 1) * each - (8 if number + 1 < len(panels) else 0)
        parts += _panel(panel, x, _y_axis(panel, top, bottom), few=len(panels) > 1)
    parts += _x_marks(panels[-1], x, height - BOTTOM)
    return f"<svg class='plot' viewBox='0 0 {WIDTH} {height}' aria-hidden='true'>{''.join(parts)}</svg>"


def _x_axis(panels: Sequence[Panel]) -> Axis:
    values = [v for panel in panels for line in panel.lines for v in line.x]
    values += [v for panel in panels for area in panel.areas for v in area.x]
    first = panels[0]
    low, high = _ends(values, from_zero=first.x_from_zero, log=first.log_x)
    return Axis(low, high, LEFT, WIDTH - RIGHT, first.log_x)


def _y_axis(panel: Panel, top: float, bottom: float) -> Axis:
    values = [v for line in panel.lines for v in (*line.y, *line.low, *line.high)]
    values += [sum(levels) for levels in zip(*(area.y for area in panel.areas), strict=True)]
    values += [panel.level] if panel.level is not None else []
    low, high = _ends(values, from_zero=not panel.log, log=panel.log)
    high = high * (high / low) ** 0.04 if panel.log else panel.top or high + (high - low) * 0.04
    return Axis(low, high, bottom, top, panel.log)


def _ends(values: Sequence[float], from_zero: bool, log: bool) -> tuple[float, float]:
    known = [v for v in values if v > 0] if log else list(values)
    low, high = min(known, default=1.0 if log else 0.0), max(known, default=1.0)
    low = min(low, 0.0) if from_zero and not log else low
    if high > low:
        return low, high
    return (low / 2, high * 2) if log else (low, low + 1.0)


def _panel(panel: Panel, x: Axis, y: Axis, few: bool) -> Iterator[str]:
    for tick in y.ticks(3 if few else TICKS):
        at = y.px(tick)
        yield f"<path class='grid' d='M{LEFT},{at:.1f}H{WIDTH - RIGHT}'/>"
        yield _words(LEFT - 7, at + 4, _tick_text(tick, panel.percent), "end")
    if panel.title:
        yield _words(LEFT, y.last_px - 6, panel.title, "start", "name")
    if panel.y_title:
        turned = f"translate(13,{(y.first_px + y.last_px) / 2:.0f}) rotate(-90)"
        yield f"<text class='title' transform='{turned}' text-anchor='middle'>{escape(panel.y_title)}</text>"
    yield from _areas(panel.areas, x, y)
    if panel.level is not None:
        yield f"<path class='level' d='M{LEFT},{y.px(panel.level):.1f}H{WIDTH - RIGHT}'/>"
    for line in panel.lines:
        if line.look is not None and len(line.x):
            yield _line(line, line.look, x, y)


def _x_marks(panel: Panel, x: Axis, at: float) -> Iterator[str]:
    yield f"<path class='grid' d='M{LEFT},{at:.1f}H{WIDTH - RIGHT}'/>"
    for tick in x.ticks(7):
        yield f"<path class='grid' d='M{x.px(tick):.1f},{at:.1f}v4'/>"
        yield _words(x.px(tick), at + 17, _tick_text(tick, percent=False), "middle")
    yield _words((LEFT + WIDTH - RIGHT) / 2, at + 37, panel.x_title, "middle", "title")


def _words(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _tick_text(value: float, percent: bool) -> str:
    return f"{100 * value:.4g}%" if percent else f"{value:,.6g}"


def _areas(areas: Sequence[Area], x: Axis, y: Axis) -> Iterator[str]:
    below = [0.0] * max((len(area.x) for area in areas), default=0)
    for area in areas:
        above = [low + level for low, level in zip(below, area.y, strict=True)]
        edge = [(x.px(t), y.px(level)) for t, level in zip(area.x, above, strict=True)]
        back = [(x.px(t), y.px(level)) for t, level in zip(area.x, below, strict=True)][::-1]
        yield f"<path fill='{area.colour}' d='{_path([*edge, *back])}z'><title>{escape(area.name)}</title></path>"
        below = above


def _path(points: Sequence[tuple[float, float]], stepped: bool = False) -> str:
    form = "H{:.1f}V{:.1f}" if stepped else "L{:.1f},{:.1f}"
    first, rest = points[:1], points[1:]
    return "".join([*("M{:.1f},{:.1f}".format(*point) for point in first), *(form.format(*point) for point in rest)])


def _line(line: Line, look: ArmStyle, x: Axis, y: Axis) -> str:
    points = [(x.px(a), y.px(b)) for a, b in zip(line.x, line.y, strict=True)]
    drawn = "" if line.kind == "points" else _stroke(_path(points, line.kind == "stepped"), look)
    if line.low:
        bars = zip(points, line.low, line.high, strict=True)
        path = "".join(f"M{at:.1f},{y.px(low):.1f}V{y.px(high):.1f}" for (at, _), low, high in bars)
        drawn += f"<path class='line' stroke='{look.colour}' stroke-width='1' d='{path}'/>"
    return f"<g>{drawn}{_marks(line, look, points)}<title>{escape(line.name)}</title></g>"


def _stroke(path: str, look: ArmStyle) -> str:
    dash = f" stroke-dasharray='{DASHES[look.dash]}'" if look.dash else ""
    return f"<path class='line' stroke='{look.colour}'{dash} d='{path}'/>"


def _marks(line: Line, look: ArmStyle, points: Sequence[tuple[float, float]]) -> str:
    """Draw all marks of a line as one path."""
    if line.kind not in ("marked", "points") and len(line.x) != 1:
        return ""
    path = "".join(f"M{a:.1f},{b:.1f}{MARKS[look.mark]}" for a, b in points)
    face = "var(--paper)" if look.is_open else look.colour
    faint = " opacity='.6'" if line.kind == "points" else ""
    return f"<path class='mark' data-mark='{look.mark}' stroke='{look.colour}' fill='{face}'{faint} d='{path}'/>"
