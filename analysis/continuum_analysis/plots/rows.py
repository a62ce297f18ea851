"""Panels with a row for each group: bars with their intervals, marks on a scale of ratios, layers."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap

from continuum_analysis.plots.arm_styles import DASHES, ArmStyle
from continuum_analysis.plots.axis import LETTER, Axis, ends, heading, words, x_marks
from continuum_analysis.plots.curves import marks
from continuum_analysis.plots.panels import Bar, Panel

LONGEST = 22
"""Letters of a group's name that fits beside its row; longer names are written above it."""
BAR, THIN, DOT, LAYERS, GAP = 15, 12, 12, 20, 8
"""Pixels: the heights of a bar, a thin bar, a mark and a row of layers, and the space between rows."""
HATCHES = {
    "/": "M-1,1l2,-2M0,6l6,-6M5,7l2,-2",
    "\\": "M-1,5l2,2M0,0l6,6M5,-1l2,2",
    "x": "M0,0l6,6M0,6l6,-6",
    ".": "M2,3h2",
    "-": "M0,3h6",
    "+": "M0,3h6M3,0v6",
    "|": "M3,0v6",
}
"""The tile of each pattern of 6 by 6 pixels."""
_TILE = (
    "<pattern id='hatch{}' width='6' height='6' patternUnits='userSpaceOnUse'><path class='hatch' d='{}'/></pattern>"
)
DEFS = f"<defs>{''.join(_TILE.format(number, path) for number, path in enumerate(HATCHES.values()))}</defs>"
"""The patterns that ``box`` uses."""


def rows(panel: Panel, top: float, width: float) -> tuple[str, float]:
    """Return the panel as SVG and the y below it."""
    groups = panel.groups
    beside = max(map(len, groups), default=0) <= LONGEST
    left = LETTER * max(map(len, groups), default=0) + 10 if beside else 4
    x = _x_axis(panel, left, width - 18 - LETTER * max((len(bar.text) for bar in panel.bars), default=0))
    first = top + (20 if panel.title or panel.y_title else 4)
    parts, at = [], first
    for group in groups:
        if not beside:
            for line in wrap(group, int(width / LETTER)):
                parts.append(words(4, at + 12, line, kind="name"))
                at += 16
        drawn, below = _row(panel, group, x, at)
        parts.append(words(left - 8, (at + below) / 2 + 4, group, "end", "name") if beside else "")
        parts.append(drawn)
        at = below + (2 * GAP if panel.dots else GAP)
    grid = "".join(f"<path class='grid' d='M{x.px(tick):.1f},{first:.1f}V{at:.1f}'/>" for tick in x.ticks(6))
    grid += "" if panel.level is None else f"<path class='level' d='M{x.px(panel.level):.1f},{first:.1f}V{at:.1f}'/>"
    head = heading(left, first - 7, panel.title, panel.y_title)
    return f"{head}{grid}{''.join(parts)}{x_marks(x, at, panel.x_title, panel.percent)}", at + 38


def _x_axis(panel: Panel, first: float, last: float) -> Axis:
    values = [v for bar in panel.bars for v in (bar.y, bar.low, bar.high)]
    values += [sum(stack.heights.get(group, 0.0) for stack in panel.stacks) for group in panel.groups]
    values += () if panel.level is None else (0.9 * panel.level, 1.1 * panel.level)
    return Axis(*ends(values, from_zero=True, log=panel.dots), first, last, panel.dots)


def _row(panel: Panel, group: str, x: Axis, top: float) -> tuple[str, float]:
    """Return what a group's row shows, and the y below it."""
    parts = list(_layers(panel, group, x, top))
    at = top + (LAYERS if parts else 0)
    for bar in (bar for bar in panel.bars if bar.group == group):
        height = DOT if panel.dots else THIN if bar.thin else BAR
        parts.append(_bar(bar, x, at, height, panel.dots))
        at += height + 1
    return "".join(parts), at


def _bar(bar: Bar, x: Axis, top: float, height: float, is_dot: bool) -> str:
    middle, low, high = top + height / 2, x.px(bar.low), x.px(bar.high)
    whisker = f"M{low:.1f},{middle:.1f}H{high:.1f}" + f"M{low:.1f},{middle - 3:.1f}v6M{high:.1f},{middle - 3:.1f}v6"
    spread = f"<path class='whisker' stroke='{bar.look.colour if is_dot else 'var(--ink)'}' d='{whisker}'/>"
    shown = spread if bar.high > bar.low else ""
    if is_dot:
        drawn = shown + marks([(x.px(bar.y), middle)], bar.look)
    else:
        drawn = filled(bar.look, x.first_px, top, x.px(bar.y) - x.first_px, height) + shown
    drawn += words(x.last_px + 6, middle + 4, bar.text) if bar.text else ""
    return f"<g>{drawn}<title>{escape(f'{bar.group}: {bar.name} {bar.y:.4g}')}</title></g>"


def filled(look: ArmStyle, x: float, y: float, width: float, height: float) -> str:
    """Draw the bar of an arm: open styles are pale with an edge, and dashes become patterns."""
    pattern = "" if look.is_open else "".join([*HATCHES][look.dash - 1 : look.dash])
    dash = f" stroke-dasharray='{DASHES[look.dash]}'" if look.dash else ""
    edge = f" fill-opacity='.25' stroke='{look.colour}'{dash}" if look.is_open else ""
    return box(look.colour, pattern, x, y, width, height, edge)


def _layers(panel: Panel, group: str, x: Axis, top: float) -> Iterator[str]:
    """Draw the layers of a group side by side; each has a tooltip."""
    below = 0.0
    for stack in panel.stacks:
        value = stack.heights.get(group, 0.0)
        if value <= 0:
            continue
        hover = f"{group}: {stack.name} {f'{value:.1%}' if panel.percent else f'{value:,.0f}'}"
        hover += f"\n{stack.hover}" if stack.hover else ""
        left, right = x.px(below), x.px(below + value)
        below += value
        layer = box(stack.colour, stack.pattern, left, top, right - left, LAYERS)
        yield f"<g>{layer}<title>{escape(hover)}</title></g>"


def box(colour: str, pattern: str, x: float, y: float, width: float, height: float, edge: str = "") -> str:
    """Draw a filled box with a pattern of ``HATCHES`` or none."""
    place = f"x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}'"
    hatch = f"<rect fill='url(#hatch{[*HATCHES].index(pattern)})' {place}/>" if pattern else ""
    return f"<rect class='bar' fill='{colour}' {place}{edge}/>{hatch}"
