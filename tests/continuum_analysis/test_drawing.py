"""What is drawn, read from the SVG: arms of one figure never look alike, files stand alone, nothing is cut."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from continuum_analysis.plots.arm_styles import COLOURS, KNOWN, arm_styles
from continuum_analysis.plots.axis import Axis
from continuum_analysis.plots.drawing import STYLE, draw, save
from continuum_analysis.plots.panels import Bar, Kind, Line, Panel, Stack
from continuum_analysis.report.figure_kit import report_styles

if TYPE_CHECKING:
    from browser import Browser

OTHERS = ("oracle-working-set", "oracle-ttl", "continuum-v1", "continuum-fixed", "oracle-hold", "concur")
ENDS = [f"{tiers}{router}" for tiers in ("", "+offload") for router in ("", "@affinity", "@sticky")]
PLOTS = {
    "every policy with and without tiers": [*KNOWN, *OTHERS, *(f"{name}+offload" for name in (*KNOWN, *OTHERS))],
    "tiers alone": ["vllm+offload", "continuum+offload", "working-set+offload"],
    "routers": [f"{name}@{router}" for router in ("affinity", "round-robin", "sticky") for name in (*KNOWN, *OTHERS)],
    "routers and tiers": [f"{name}{end}" for name in ("vllm", "continuum", "autellix") for end in ENDS],
}


def curves(names: list[str], kind: Kind = "marked") -> Panel:
    points = ([1.0, 2.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])
    return Panel("", "x", "", [Line(name, look, *points, kind) for name, look in arm_styles(names).items()])


def bars(names: list[str], dots: bool = False) -> Panel:
    drawn = [Bar("a point", name, look, 1.0, 0.9, 1.1) for name, look in arm_styles(names).items()]
    return Panel("", "s", "", bars=drawn, dots=dots)


def drawn_arms(panel: Panel) -> list[ElementTree.Element]:
    """The groups of elements that draw an arm: those with a tooltip."""
    return [g for g in ElementTree.fromstring(draw([panel]).on_page()).iter("g") if g.find("title") is not None]


def looks(panel: Panel, kind: str, *attributes: str) -> set[tuple[str | None, ...]]:
    """The attributes of every arm's elements of a class."""
    return {
        tuple(each.get(name) for each in arm if each.get("class") == kind or kind == "" for name in attributes)
        for arm in drawn_arms(panel)
    }


@pytest.mark.parametrize("names", PLOTS.values(), ids=PLOTS)
def test_arms_of_one_figure_never_look_alike(names: list[str]) -> None:
    kinds: tuple[Kind, ...] = ("marked", "stepped")
    for kind in kinds:
        assert len(looks(curves(names, kind), "line", "stroke", "stroke-dasharray")) == len(names)
    assert len(looks(curves(names, "stepped"), "mark", "d")) == 1  # none has marks
    for panel in (curves(names), bars(names, dots=True)):
        assert len(looks(panel, "mark", "stroke", "data-mark", "fill")) == len(names)
    assert len(looks(bars(names), "", "fill", "fill-opacity", "stroke-dasharray")) == len(names)


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
    routers = arm_styles(["vllm@affinity", "vllm@round-robin"])
    assert [(style.is_open, style.dash) for style in routers.values()] == [(False, 0), (True, 1)]


MODES = {"light": "#ffffff", "dark": "#0d1117"}
SIGHTS = {
    "usual": np.eye(3),
    "no red": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "no green": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
}
"""What becomes of linear red, green and blue in colour-blind eyes (Machado, Oliveira and Fernandes, 2009)."""


def seen(colour: str, sight: str = "usual") -> np.ndarray:
    """Lightness and the two colour axes of CIELAB."""
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = SIGHTS[sight] @ np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(
        np.clip(linear, 0.001, 1) @ np.array([[0.434, 0.213, 0.018], [0.376, 0.715, 0.109], [0.190, 0.072, 0.873]])
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def luminance(colour: str) -> float:
    return float(((seen(colour)[0] + 16) / 116) ** 3)


def test_colour_blind_readers_tell_the_main_policies_apart_in_both_modes() -> None:
    colours = [look.colour for look in arm_styles(["vllm", "continuum", "working-set"]).values()]
    for sight in SIGHTS:
        apart = [np.linalg.norm(seen(one, sight) - seen(other, sight)) for one, other in combinations(colours, 2)]
        assert min(apart) > 30, sight
    for paper in MODES.values():
        for colour in colours:
            dark, light = sorted((luminance(paper), luminance(colour)))
            assert (light + 0.05) / (dark + 0.05) > 3


def test_few_plain_policies_of_a_report_get_a_dash_each() -> None:
    names = ["vllm", "program-fcfs", "static-ttl", "continuum", "working-set"]
    assert len({style.dash for style in report_styles(names).values()}) == len(names)


def test_a_files_colours_are_its_own_and_equal_drawings_give_equal_bytes(tmp_path: Path) -> None:
    stacks = [Stack("a <b>", {"g": 1.0}, "#123456", "/"), Stack("c", {"g": 2.0}, "#654321", "")]
    panels = [curves(["vllm+offload"]), Panel("", "s", "", stacks=stacks), bars(["a"], dots=True)]
    first, again = (save([draw([panel]) for panel in panels], tmp_path / f"{name}.svg") for name in ("one", "two"))
    assert first.read_bytes() == again.read_bytes()
    whole = ElementTree.parse(first).getroot()  # well-formed, whatever the names are
    assert len(whole.findall("{*}svg")) == len(panels)
    said = [text.text for text in whole.iter("{http://www.w3.org/2000/svg}text")]
    assert {"vllm+offload", "a <b>"} <= set(said)
    assert "var(" not in first.read_text()
    assert "fill='#ffffff'" in first.read_text()  # an open mark on a page is as open in a file


FILLS = """[...document.querySelectorAll("rect:first-of-type, .key, [data-mark]")].map((one) => {
  const parts = getComputedStyle(one).fill.match(/\\d+/g).map((part) => Number(part).toString(16).padStart(2, "0"))
  return "#" + parts.join("")
})"""


@pytest.mark.parametrize("mode", MODES)
def test_a_file_has_the_colours_that_its_reader_prefers(browser: Browser, tmp_path: Path, mode: str) -> None:
    """An open mark has the colour of the paper, and words can be read."""
    file = save([draw([curves(["vllm+offload"])])], tmp_path / "one.svg")
    browser.open(file, dark=mode == "dark")
    paper, word, *marks = (browser.evaluate(FILLS)[at] for at in (0, -2, -1))
    assert (paper, marks) == (MODES[mode], [MODES[mode]])
    assert abs(luminance(word) - luminance(paper)) > 0.5


@pytest.mark.parametrize(
    ("low", "high"), [(0.75, 1.2), (0.3, 3.0), (0.5, 60.0), (0.001, 900.0), (1.0, 1.05), (2e-9, 5e7)]
)
def test_a_logarithmic_scale_has_three_to_eight_ticks(low: float, high: float) -> None:
    ticks = Axis(low, high, 0.0, 100.0, log=True).ticks()
    assert 3 <= len(ticks) <= 8
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


def test_no_word_is_cut_at_the_edge(browser: Browser, tmp_path: Path) -> None:
    names = PLOTS["every policy with and without tiers"]
    group, look = " ".join(["a group with a name too long for its place"] * 3), arm_styles(names)[names[-1]]
    long = [Bar(group, names[-1], look, 1.0, 0.9, 1.1, text="1.0 (0.9 to 1.1)")]
    panels = [curves(names), bars(names, dots=True), bars(names), Panel("", "s", "", bars=long)]
    page = tmp_path / "page.html"
    page.write_text(f"<style>{STYLE}</style>" + "".join(draw([panel]).on_page() for panel in panels))
    browser.open(page)
    assert browser.look("cut") == []


def test_points_at_one_value_of_x_have_one_tick_there() -> None:
    """A rollout of 80 programs: 80, and no 80.2 or 80.4."""
    line = Line("vllm", arm_styles(["vllm"])["vllm"], [80.0], [1.0])
    drawn = draw([Panel("", "steps", "programs", lines=[line])])
    ticks = ElementTree.fromstring(drawn.on_page()).iter("text")
    assert [tick.text for tick in ticks if tick.get("text-anchor") == "middle"] == ["80", "steps"]
