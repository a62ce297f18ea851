"""Arms of one figure never look alike, read from what is drawn: lines, dots, bars and report pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continuum_analysis.compare.intervals import Interval
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.plots import on_paper
from continuum_analysis.plots.arm_styles import COLOURS, KNOWN, arm_styles
from continuum_analysis.plots.on_screen import html_of
from continuum_analysis.plots.panels import Bar, Line, Panel
from continuum_analysis.report.figure_kit import Figure
from continuum_analysis.report.figures_load import load_figure
from continuum_analysis.report.images import write_images
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.lines import Line2D

OTHERS = ("oracle-working-set", "oracle-ttl", "continuum-v1", "continuum-fixed", "oracle-srpt", "infercept-oracle")
PLOTS = {
    "every policy with and without tiers": [*KNOWN, *OTHERS, *(f"{name}+offload" for name in (*KNOWN, *OTHERS))],
    "tiers alone": ["vllm+offload", "continuum+offload", "working-set+offload"],
    "routers": [f"{name}@{router}" for router in ("affinity", "round-robin", "sticky") for name in (*KNOWN, *OTHERS)],
    "routers and tiers": [
        f"{name}{tiers}{router}"
        for name in ("vllm", "continuum", "autellix")
        for tiers in ("", "+offload")
        for router in ("", "@affinity", "@sticky")
    ],
}
arms_of_a_plot = pytest.mark.parametrize("names", PLOTS.values(), ids=PLOTS)


def drawn(panel: Panel) -> Axes:
    """The panel's axes."""
    return on_paper.draw([panel]).axes[0]


def dash_of(line: Line2D) -> str:
    """Its dashes and gaps; the style's name is one for all of our own."""
    return str(line._dash_pattern)  # type: ignore[attr-defined]


def looks_of_lines(axis: Axes) -> dict[str, tuple[Any, ...]]:
    """Colour, mark, its fill and the dash, by arm."""
    found = {}
    for container in axis.containers:
        assert isinstance(container, ErrorbarContainer)
        line = container.lines[0]
        label, mark = str(container.get_label()), str(line.get_marker())
        face = to_hex(line.get_markerfacecolor())
        found[label] = (to_hex(line.get_color()), mark, face, dash_of(line))
    return found


@arms_of_a_plot
def test_lines_differ_in_dash_and_in_mark(names: list[str]) -> None:
    lines = tuple(Line(name, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]) for name in names)
    looks = looks_of_lines(drawn(Panel("", "", "", lines)))
    assert list(looks) == names
    assert len({(colour, mark, face) for colour, mark, face, _ in looks.values()}) == len(names)
    assert len({(colour, dash) for colour, _, _, dash in looks.values()}) == len(names)


@arms_of_a_plot
def test_steps_differ_in_dash(names: list[str]) -> None:
    lines = tuple(Line(name, [1.0, 2.0], [1.0, 2.0], kind="plain") for name in names)
    axis = drawn(Panel("", "", "", lines))
    assert {line.get_marker() for line in axis.lines} == {""}
    assert len({(to_hex(line.get_color()), dash_of(line)) for line in axis.lines}) == len(names)


@arms_of_a_plot
def test_dots_differ_in_colour_mark_or_fill(names: list[str]) -> None:
    bars = tuple(Bar("a point", name, 1.0, 0.9, 1.1) for name in names)
    looks = looks_of_lines(drawn(Panel("", "", "", bars=bars, dots=True)))
    assert len({look[:3] for look in looks.values()}) == len(names)


@pytest.mark.parametrize("policy", [*KNOWN, "oracle-working-set"])
def test_an_open_mark_is_seen_to_be_open(policy: str) -> None:
    """At the size it is printed in: most pixels in its middle are paper, a plain policy's are colour."""
    bars = (Bar("a point", policy, 1.0, 1.0, 1.0), Bar("a point", f"{policy}+offload", 1.05, 1.05, 1.05))
    axis = drawn(Panel("", "", "", bars=bars, dots=True))
    figure = axis.get_figure(root=True)
    assert figure is not None
    figure.set_dpi(150)  # as files are written
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    paper = []
    for container in axis.containers:
        assert isinstance(container, ErrorbarContainer)
        (x, y), *_ = axis.transData.transform(container.lines[0].get_xydata())
        row, column = len(pixels) - 1 - int(y), int(x)
        middle = pixels[row - 1 : row + 2, column - 1 : column + 2, :3].min(axis=2)
        paper.append(int((middle > 240).sum()))
    plain, with_tiers = paper
    assert plain == 0
    assert with_tiers >= 5  # of nine


@arms_of_a_plot
def test_bars_differ_in_colour_or_hatch(names: list[str]) -> None:
    bars = tuple(Bar("a point", name, 1.0, 0.9, 1.1) for name in names)
    axis = drawn(Panel("", "", "", bars=bars))
    found = [one.patches[0] for one in axis.containers if isinstance(one, BarContainer)]
    assert len(found) == len(names)
    looks = {
        (to_hex(bar.get_facecolor(), keep_alpha=True), to_hex(bar.get_edgecolor()), bar.get_hatch()) for bar in found
    }
    assert len(looks) == len(names)


def page_figure(names: list[str]) -> Figure:
    arm = ArmSummary("any", None, (0,), {"jct_mean_s": Interval(1.0)})
    summary = Summary((0,), names[0], dict.fromkeys(names, arm), None, (), {})
    return load_figure({0.1: summary, 0.2: summary})


def drawn_on_the_page(names: list[str], what: str) -> list[dict[str, str]]:
    """Attributes of the figure's lines or marks, legend left out; of error bars, which are thin, nothing."""
    plot = html_of(page_figure(names).panels, 360).partition("class='plot'")[2]
    found = [dict(re.findall(r"([a-z-]+)='([^']*)'", path)) for path in re.findall(f"<path class='{what}'[^>]*>", plot)]
    return [each for each in found if "stroke-width" not in each]


@arms_of_a_plot
def test_a_report_tells_its_arms_apart(names: list[str]) -> None:
    lines, marks = drawn_on_the_page(names, "line"), drawn_on_the_page(names, "mark")
    assert len({(line["stroke"], line.get("stroke-dasharray")) for line in lines}) == len(names)
    assert len({(mark["stroke"], mark["data-mark"], mark["fill"]) for mark in marks}) == len(names)
    assert [line["stroke"] for line in lines] == [mark["stroke"] for mark in marks]


def test_few_plain_policies_of_a_report_get_a_dash_each() -> None:
    names = ["vllm", "program-fcfs", "static-ttl", "continuum", "working-set"]
    assert len({line.get("stroke-dasharray") for line in drawn_on_the_page(names, "line")}) == len(names)


def test_an_image_draws_open_marks_open(tmp_path: Path) -> None:
    svg = write_images(page_figure(["continuum", "continuum+offload"]), tmp_path)[0].read_text()
    colour = arm_styles(["continuum"])["continuum"].colour.lower()
    assert f"fill: {colour}; stroke: {colour}" in svg
    assert f"fill: #ffffff; stroke: {colour}" in svg


def test_a_legend_of_long_names_stays_on_the_paper() -> None:
    names = PLOTS["every policy with and without tiers"]
    for width, columns in ((1, 2), (2, 4)):
        figure = on_paper.draw([Panel("", "", "", bars=tuple(Bar("a", n, 1.0, 0.9, 1.1) for n in names))] * width)
        figure.draw_without_rendering()
        legend = figure.legends[0].get_window_extent()
        assert legend.x0 >= 0
        assert legend.x1 <= figure.bbox.x1
        assert len({round(text.get_window_extent().x0) for text in figure.legends[0].get_texts()}) <= columns


def test_a_policy_keeps_its_colour_and_mark() -> None:
    for names in PLOTS.values():
        styles = arm_styles(names)
        for name, style in styles.items():
            policy = name.partition("@")[0].removesuffix("+offload")
            if policy in KNOWN:
                assert style.colour == COLOURS[KNOWN.index(policy)]
    pair = arm_styles(["continuum+offload", "continuum", "oracle-ttl"])
    plain, tiers = pair["continuum"], pair["continuum+offload"]
    assert (plain.is_open, plain.dash, tiers.is_open, tiers.dash) == (False, 0, True, 1)
    assert (plain.colour, plain.mark) == (tiers.colour, tiers.mark)
    assert arm_styles(["continuum+offload"])["continuum+offload"] == tiers  # tiers are dashed also where all have them


def test_routers_alone_start_with_the_plain_look() -> None:
    styles = arm_styles(["vllm@affinity", "vllm@round-robin"])
    assert [(style.is_open, style.dash) for style in styles.values()] == [(False, 0), (True, 1)]
