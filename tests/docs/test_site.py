"""The docs site as a reader gets it: no broken link, every page in its menu, nothing fetched from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FETCHED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)=\"?(https?:[^\" >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a link to a missing page or heading fails."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(
        command, cwd=REPO, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_page_is_in_the_menu(site: Path) -> None:
    """Of the first page, which holds the whole menu."""
    menu = set(re.findall(r'href="([^":#]+\.html)"', (site / "index.html").read_text(encoding="utf-8")))
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
    assert "Prompt tokens not in the previous context" in text["formats"]
    assert "Seconds every turn is held" in text["policies"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_page_opens_from_the_file_system_without_an_error(site: Path) -> None:
    flags = "--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update"
    command = ["chromium", *flags.split(), "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*command, (site / "concepts.html").as_uri()], capture_output=True, text=True, timeout=300)
    assert "Time to live" in done.stdout
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and "rror" in line] == []


def test_the_tables_of_policies_are_up_to_date() -> None:
    overview = runpy.run_path(str(REPO / "docs" / "generate.py"))["policy_overview"]()
    assert (REPO / "docs" / "policies" / "README.md").read_text(encoding="utf-8") == overview, "run make docs"
