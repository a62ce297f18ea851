"""The ranges of openai and vLLM: declared alike everywhere, and tests run at both ends of each."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from continuum_server.vllm_plugin.versions import SUPPORTED
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
SCHEDULER = ["tests/continuum_server/test_touch_points.py", "tests/continuum_server/test_virtual.py"]
ENDS = {"openai-lowest": CLIENT, "openai-newest": CLIENT, "vllm-lowest": SCHEDULER, "vllm-newest": SCHEDULER}


def bounds(requirement: str) -> tuple[tuple[int, ...], ...]:
    """The numbers of ``name>=1.2,<3``: ((1, 2), (3,))."""
    return tuple(tuple(map(int, found.split("."))) for found in re.findall(r"[\d.]+", requirement))


def test_everything_says_the_same_range_of_vllm() -> None:
    (declared,) = PROJECT["optional-dependencies"]["vllm"]
    first, beyond = bounds(declared)
    assert (first, beyond) == SUPPORTED
    last = (beyond[0], beyond[1] - 1)
    assert [bounds(BUILT[f"vllm-{end}"])[0][:2] for end in ("lowest", "newest")] == [first, last]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    said = [found for page in pages for found in re.findall(r"vLLM\D{0,25}(0\.\d\d to 0\.\d\d)\b", page.read_text())]
    assert len(said) >= 3
    assert set(said) == {f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"}


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
