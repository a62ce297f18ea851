"""The report as a person meets it: in a browser, on a desk and on a phone, by mouse and by keyboard."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from continuum_analysis.compare.summary import summarize
from continuum_analysis.report.experiment_facts import experiment_line
from continuum_analysis.report.page import write_joint_report, write_report
from continuum_traces.schema import Manifest, SchedulerEvent
from continuum_traces.typed import from_json
from recorded_runs import write_recorded

if TYPE_CHECKING:
    from browser import Browser

E = SchedulerEvent
PAPER_PX = 718
"""Between the margins of A4."""
WELL_READABLE = 4.5


def write_agents(path: Path, policy: str, programs: int, turns: int, jps: float = 1.0) -> Path:
    """Programs of several turns, each a little slower than the one before; names that would break a careless page."""
    ends_s = [turns * (3.0 + number / 9) for number in range(programs)]
    facts: dict[str, Any] = {
        "name": "made up",
        "programs": programs,
        "jps": jps,
        "names": "a/long/name/of/a/program/</script><b>{}",
    }
    pin_s = None if policy == "vllm" else 0.5
    return write_recorded(
        path, policy, 0, ends_s, gap_s=1 / jps, queued=0.2, turns=turns, hit_tokens=8, pin_s=pin_s, **facts
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experiment")
    for policy in ("vllm", "continuum"):
        write_agents(path / f"{policy}-seed0", policy, programs=45, turns=6)
    return write_report(path)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1300, 800, 360])
def test_draws_everything_and_complains_of_nothing(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.complaints.clear()
    browser.requests.clear()
    browser.open(page, width=width, dark=dark, touch=width < 600)
    assert (browser.look("sections"), browser.look("undrawn")) == (14, [])
    assert browser.evaluate("document.querySelectorAll('#jct-by-policy rect.bar').length") == 4  # mean and P95 of two
    assert browser.evaluate("document.documentElement.scrollWidth") <= width  # the page itself never scrolls sideways
    assert browser.evaluate("document.querySelectorAll('#timeline rect.bar').length") > 100
    assert (browser.complaints, browser.requests) == ([], [])  # nothing comes from a network
    assert browser.look("contrast") >= WELL_READABLE
    assert browser.look("overlaps") == []
    assert browser.look("texts", "h1") == ["made up, 45 programs at 1/s, m on 2 x g"]
    first, *_ = browser.evaluate("document.querySelector('main').innerText").splitlines()
    assert first.startswith("continuum took 1.00 of vllm's time (one seed: no proof).")


def test_an_overloaded_run_says_so_and_equal_times_are_counted_as_equal(tmp_path: Path) -> None:
    for policy, seconds in (("vllm", 30.0), ("continuum", 20.0), ("static-ttl", 20.0)):
        ends = [10.0, *(seconds * number for number in range(1, 12))]  # served one after the other
        write_recorded(tmp_path / policy, policy, 0, ends, gap_s=1.0, queued=0.5)
    html = write_report(tmp_path).read_text()
    over = "More work arrived than any policy could finish; in a run of this length, "
    over += "continuum took 0.67, static-ttl 0.67 of vllm&#39;s time (one seed: no proof)."
    assert f'<p class="verdict">{over}</p>' in html
    metrics = summarize(tmp_path).arms["static-ttl"].metrics
    measured = [metrics[name].mean for name in ("throughput_jobs_per_s", "backlog_growth")]
    assert measured == pytest.approx([12 / 231, 0.90], abs=0.01)  # the last of 12 ends at 231 s; one ends before 11 s
    assert "<td>11, 1, 0</td>" in html
    pairs = re.findall(r"<tr>(.*?)</tr>", html.partition('id="pairs"')[2].partition("</table>")[0])[1:]
    rows = [re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", pair) for pair in pairs]
    against = [("continuum", "vllm", "0.67"), ("static-ttl", "vllm", "0.67"), ("continuum", "static-ttl", "1.00")]
    assert [(row[0], row[1], row[3]) for row in rows] == against


def test_on_paper_nothing_is_cut_and_nothing_is_dark(browser: Browser, page: Path) -> None:
    browser.open(page, width=PAPER_PX)
    browser.look("choose", "theme", "dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        browser.settle()
        assert browser.evaluate("[...document.querySelectorAll('details')].every((d) => d.open)")
        assert browser.look("right") < PAPER_PX + 1
        assert browser.look("ground") == "rgb(255, 255, 255)"
        assert browser.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
        browser.look("choose", "theme", "system")


def test_the_switch_overrules_the_system(browser: Browser, page: Path) -> None:
    browser.open(page, dark=False)
    before = browser.look("ground")
    browser.look("choose", "theme", "dark")
    after = browser.look("ground")
    assert before != after
    browser.open(page, dark=False)  # remembered
    assert browser.look("ground") == after
    browser.look("choose", "theme", "system")
    assert browser.look("ground") == before


def test_the_timeline_by_button_and_by_key(browser: Browser, page: Path) -> None:
    browser.open(page)
    low, high = browser.look("range")
    assert low == 0
    browser.evaluate("document.getElementById('timeline-in').click()")
    nearer = browser.look("range")
    assert nearer[1] - nearer[0] == pytest.approx((high - low) / 2)
    browser.evaluate("document.getElementById('timeline').focus()")
    browser.press("+")
    assert browser.look("range")[1] - browser.look("range")[0] == pytest.approx((high - low) / 4)
    before = browser.look("range")
    browser.press("ArrowRight")
    assert browser.look("range")[0] > before[0]
    browser.press("0")
    assert browser.look("range") == [low, high]
    assert browser.look("status").startswith("continuum, seed 0: programs 1 to 20 of 45")
    browser.press("PageDown")
    browser.press("PageDown")
    assert "programs 41 to 45 of 45" in browser.look("status")
    assert browser.evaluate("document.getElementById('timeline-forth').disabled") is True
    browser.look("choose", "timeline-order", "slowest")
    assert "programs 1 to 20 of 45" in browser.look("status")
    times = browser.look("times")
    assert (len(times), times) == (20, sorted(times, reverse=True))
    browser.look("choose", "timeline-policy", "0")
    assert browser.look("status").startswith("vllm, seed 0")


def test_hovering_tells_what_a_bar_is_and_dragging_enlarges_a_stretch(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate("document.getElementById('timeline').scrollIntoView({block: 'center'})")
    browser.settle()
    browser.mouse("mouseMoved", *browser.look("bar"))
    browser.settle()
    said = browser.evaluate("document.querySelector('#timeline .tip:not([hidden])').textContent")
    assert "turn" in said
    assert any(kind in said for kind in ("decode", "tool", "queue", "prefill"))
    left, right, y = browser.look("grid")
    seconds = [tick for tick in browser.look("ticks") if tick is not None]
    for kind, at in (("mouseMoved", left), ("mousePressed", left), ("mouseMoved", right), ("mouseReleased", right)):
        browser.mouse(kind, at, y)
    browser.settle()
    assert browser.look("range") == pytest.approx((seconds[0], seconds[-1]), abs=1.0)


def test_the_film_shows_one_program_under_two_policies(browser: Browser, page: Path) -> None:
    browser.open(page)
    at, ended = browser.look("film")
    assert at == 1000  # before anybody plays it, and on paper, it is seen to its end
    assert len(ended) == 2
    assert all(said.startswith("finished after") for said in ended)
    assert browser.look("texts", "#film .lane strong") == ["vllm", "continuum"]
    assert "typical" in browser.evaluate("document.getElementById('film-program').selectedOptions[0].textContent")
    assert all(number > 10 for number in browser.look("bars"))
    browser.look("slide", "film-scrub", 0)
    assert browser.look("film")[0] == 0
    assert all("turn 1 of 6" in said for said in browser.look("film")[1])
    browser.press("ArrowRight")  # the slider's own keys
    assert browser.look("film")[0] > 0
    play = "document.getElementById('film-play')"
    browser.evaluate(f"{play}.click()")
    browser.settle()
    assert "Pause" in browser.evaluate(f"{play}.textContent")
    browser.evaluate(f"{play}.click()")
    stopped = browser.look("film")[0]
    browser.settle()
    assert (browser.look("film")[0], "Play" in browser.evaluate(f"{play}.textContent")) == (stopped, True)


def test_every_control_is_reached_by_the_tab_key_and_named(browser: Browser, page: Path) -> None:
    browser.open(page)
    reached = []
    for _ in range(80):
        browser.press("Tab")
        reached.append(browser.look("focused"))
        if reached[-1][0] == "timeline":
            break
    names = {name: words for name, _, words in reached}
    film = ["program", "first", "second", "play", "scrub"]
    line = ["policy", "order", "forth", "in", "out", "left", "right", "whole"]
    wanted = ["theme", *(f"film-{name}" for name in film), *(f"timeline-{name}" for name in line), "timeline"]
    assert [name for name in wanted if not names.get(name)] == []
    assert all(outline not in ("none", "") for name, outline, _ in reached if name != "BODY")


def test_several_loads_on_one_page(browser: Browser, tmp_path: Path) -> None:
    for jps in (0.5, 2.0):
        for policy in ("vllm", "continuum"):
            write_agents(tmp_path / f"load{jps:g}" / f"{policy}-seed0", policy, programs=8, turns=3, jps=jps)
    page = write_joint_report([tmp_path / "load0.5", tmp_path / "load2"], tmp_path / "joint" / "report.html")
    browser.complaints.clear()
    browser.open(page)
    assert browser.evaluate("document.querySelector('section').id") == "jct-against-jps"
    assert browser.evaluate("document.querySelectorAll('.verdict').length") == 2
    assert "2 programs/s" in browser.evaluate("document.querySelector('main').textContent")
    assert browser.complaints == []


def test_a_page_that_leaves_programs_out_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("continuum_analysis.report.program_timeline.MOST_TURNS", 100)
    write_agents(tmp_path / "vllm-seed0", "vllm", programs=45, turns=6)  # 270 turns: every third program
    browser.open(write_report(tmp_path))
    said = browser.look("status")
    assert "programs 1 to 15 of 15" in said
    assert said.endswith("of the run's 45 programs one in 3 is in this page")


LINES = [json.loads(line) for line in Path(__file__).with_name("experiment_lines.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", LINES)
def test_what_ran_on_what_in_one_line(case: dict[str, Any]) -> None:
    assert experiment_line([from_json(Manifest, each) for each in case["manifests"]]) == case["said"]
