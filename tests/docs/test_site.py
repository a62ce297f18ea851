"""The docs site as a reader gets it: no broken link, every page in its menu, nothing fetched from elsewhere. Tests that
pages name exist."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import limit
import pytest
import results
from results import DATA, GOODPUT, repeats, text_of, write, write_mixes

if TYPE_CHECKING:
    from browser import Browser

REPO = Path(__file__).resolve().parents[2]
TRACES = REPO.parent / "shared" / "traces"
FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=\"?(https?:[^\" >]+)")


def build(project: Path) -> subprocess.CompletedProcess[str]:
    """Strictly: a link to a missing page or heading fails."""
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shutil.copy(REPO / "mkdocs.yml", folder)
    runpy.run_path(str(REPO / "docs" / "generate.py"))["stage"](folder / "build" / "docs")
    return folder


@pytest.fixture(scope="module")
def site(project: Path) -> Path:
    done = build(project)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project / "site"


def test_every_page_is_in_the_menu(site: Path) -> None:
    """Of the first page, which holds the whole menu."""
    menu = set(re.findall(r'href="(?:\./)?([^":#]+\.html)"', (site / "index.html").read_text(encoding="utf-8")))
    pages = {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - {"404.html"}
    assert {f"reference/{name}.html" for name in ("cli", "formats", "policies")} <= pages
    assert pages - menu == set()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert FETCHED.findall(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?https?:|@import ['\"]https?:", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_reference_is_written_from_the_code(site: Path) -> None:
    text = {name: (site / "reference" / f"{name}.html").read_text() for name in ("cli", "formats", "policies")}
    assert "--policy-option" in text["cli"]
    assert "Prompt tokens that are not in the previous context" in text["formats"]
    assert "Seconds every turn is held" in text["policies"]


SEARCH = """(async () => {
  const pause = (ms) => new Promise((done) => setTimeout(done, ms))
  const inputs = () => [...document.querySelectorAll("*")].map((one) => one.shadowRoot?.querySelector("input"))
  document.querySelector(".md-search__button").click()
  let input
  while (!(input = inputs().find(Boolean))) await pause(100)
  input.value = "prefill"
  input.dispatchEvent(new Event("input", { bubbles: true }))
  while (!/\\d+ results/.test(input.getRootNode().textContent)) await pause(100)
  return input.getRootNode().textContent
})()"""


def test_a_page_and_the_search_work_from_the_file_system(browser: Browser, site: Path) -> None:
    browser.open(site / "concepts.html")
    assert "Time to live" in browser.evaluate("document.body.innerText")
    assert re.search(r"\d+ results", browser.evaluate(SEARCH))
    assert browser.complaints == []


FENCED = re.compile(r"^( *)```.*?^\1```$", flags=re.M | re.S)
DRAWN = """(() => {
  const all = (what) => [...document.querySelectorAll(`article ${what}`)]
  const outside = all("*").filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  return {
    items: all("li").length,
    rows: all("tr").length,
    page: document.documentElement.scrollWidth,
    cut: outside.filter((one) => !one.closest("pre, .md-typeset__scrollwrap")).map((one) => one.outerHTML.slice(0, 90)),
    scrolled: all("pre > code, .md-typeset__scrollwrap")
      .filter((one) => one.scrollWidth > one.clientWidth + 1 && !one.closest(".language-text"))
      .map((one) => one.innerText.slice(0, 90)),
  }
})()"""


def written(page: Path) -> tuple[int, int]:
    """List items and rows of tables in a page's Markdown."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    items = re.findall(r"^ *(?:[-*]|\d+\.) ", text, flags=re.M)
    return len(items), len(re.findall(r"^ *\|(?![|: ]*-[-|: ]+$)", text, flags=re.M))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 400])
def test_lists_and_tables_are_drawn_whole(browser: Browser, project: Path, site: Path, width: int) -> None:
    """Every list item is an item and every row a row. Nothing is cut off; on a desk only drawings may scroll."""
    for source in sorted((project / "build" / "docs").rglob("*.md")):
        name = source.relative_to(project / "build" / "docs").as_posix()
        page = site / re.sub(r"(README|index)\.md$|\.md$", lambda end: "index.html" if end[1] else ".html", name)
        browser.open(page, width=width)
        drawn = browser.evaluate(DRAWN)
        assert (drawn["items"], drawn["rows"]) == written(source), name
        assert (drawn["page"] <= width, drawn["cut"]) == (True, []), name
        assert width < 1000 or drawn["scrolled"] == [], name


@pytest.mark.parametrize(
    ("page", "write"),
    [
        ("policies/README.md", "policy_overview"),
        ("metrics.md", "metrics"),
        *((f"reference/{name}.md", name) for name in ("cli", "formats", "policies")),
    ],
)
def test_generated_tables_are_up_to_date(page: str, write: str) -> None:
    written = runpy.run_path(str(REPO / "docs" / "generate.py"))[write]()
    assert (REPO / "docs" / page).read_text(encoding="utf-8") == written, "run make docs"


GENERATE = runpy.run_path(str(REPO / "docs" / "generate.py"))


@pytest.mark.parametrize("page", GENERATE["WITH_RESULTS"], ids=lambda page: page.stem)
def test_tables_of_results_are_those_of_their_runs(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == GENERATE["results"](page), "run make docs"


def test_every_result_stands_on_a_page() -> None:
    """Each table is on a page, and each data file in a table."""
    pages = "".join(page.read_text(encoding="utf-8") for page in GENERATE["WITH_RESULTS"])
    tables = GENERATE["TABLES"]
    assert set(re.findall(r"<!-- results ([\w-]+):", pages)) == set(tables)
    named = {name for table in tables.values() for name in (*table.get("from", ()), *table.get("with", ()))}
    assert named == {file.stem for file in DATA.glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    sorted({*DATA.glob("*.json")} - {*DATA.glob("limit-*.json"), DATA / GOODPUT}),
    ids=lambda file: file.stem,
)
def test_runs_of_results_are_those_of_this_code(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid has the cells of the data file, and its shortest run gives the same numbers again."""
    monkeypatch.chdir(tmp_path)
    if file.stem.endswith("recorded"):
        for trace in TRACES.glob("*.gz") if TRACES.exists() else pytest.skip("no real traces beside this checkout"):
            Path(trace.name).symlink_to(trace)
    write_mixes(file.stem)
    data = json.loads(file.read_text(encoding="utf-8"))
    assert repeats(file.stem, data), f"make results ARGS={file.stem}"


def test_results_of_another_grid_are_refused() -> None:
    """A point that the grid has and the data file has not, and the reverse."""
    data = json.loads((DATA / "small.json").read_text(encoding="utf-8"))
    for points in (data["points"][1:], [*data["points"], data["points"][0] | {"axes": {}}]):
        with pytest.raises(ValueError, match="small: the grid has other cells"):
            repeats("small", {"points": points})


def test_a_result_of_fewer_runs_does_not_replace_one_of_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point, a policy or a seed is missing; more of each is taken."""
    monkeypatch.setattr(results, "DATA", tmp_path)
    one = {"axes": {"jps": 1}, "runs": {"vllm": {"0": {}, "1": {}}, "continuum": {"0": {}}}}
    whole = {"points": [one, {"axes": {"jps": 2}, "runs": {"vllm": {"0": {}}}}]}
    write("x", whole)
    for runs in ({"vllm": {"0": {}, "1": {}}}, {"vllm": {"0": {}}, "continuum": {"0": {}}}):
        with pytest.raises(ValueError, match="has 1 runs that this result lacks"):
            write("x", {"points": [one | {"runs": runs}, whole["points"][1]]})
    with pytest.raises(ValueError, match=r'has 3 runs .*, such as continuum, seed 0, of {"jps": 1};'):
        write("x", {"points": whole["points"][1:]})
    assert (tmp_path / "x.json").read_text() == text_of(whole)
    more = {"points": [*whole["points"], {"axes": {"jps": 3}, "runs": {"vllm": {"0": {}}}}]}
    write("x", more)
    assert (tmp_path / "x.json").read_text() == text_of(more)


def test_bounds_of_one_grid_leave_the_others_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (results, limit):
        monkeypatch.setattr(module, "DATA", tmp_path)
    before = {file.name: file.read_text() for file in [*DATA.glob("limit-*.json"), DATA / "small.json"]}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "limit-small.json").unlink()
    monkeypatch.setattr(sys, "argv", ["limit.py", "small"])
    limit.main()
    assert {file.name: file.read_text() for file in tmp_path.glob("*.json")} == before
    assert len(before) == 3


@pytest.mark.parametrize("script", ["limit", "results"])
def test_scripts_that_write_results_say_what_a_mistake_is(script: str, tmp_path: Path) -> None:
    def run(argument: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(REPO / "benchmarks" / f"{script}.py"), argument]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert run("--help").stdout.startswith(f"usage: {script}.py")
    wrong = run("nope")
    assert wrong.returncode == 2
    assert "nope" in wrong.stderr.splitlines()[-1]
    assert "Traceback" not in wrong.stderr


def test_every_test_that_a_page_names_exists() -> None:
    pages = [REPO / "README.md", *(REPO / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", page.read_text("utf-8"))}
    promises = (REPO / "docs" / "server" / "promises.md").read_text("utf-8")
    named |= {f"tests/continuum_server/{name}" for name in re.findall(r"`([\w/]*test_\w+\.py(?:::\w+)?)`", promises)}
    for file, _, function in (name.partition("::") for name in sorted(named)):
        text = (REPO / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, f"{file}::{function}"
