"""openai's own tests of its clients, run with ours in their place. They come from openai's source distribution on PyPI.

``make frameworks NAMES="openai-suite openai-suite-newest"`` builds the environments: the openai of our pins, and a 3.x.
By default the tests of the clients run, most of the suite's that need no server; ``SUITE`` in the environment
names others, such as ``tests/test_streaming.py``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from source_distributions import source_of

pytestmark = pytest.mark.slow

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".frameworks"
TESTS = "tests/test_client.py tests/test_auth.py"
OURS = """
import sys
import openai
import openai._client
from continuum_client import AsyncOpenAI, OpenAI
for module in (sys.modules["openai"], sys.modules["openai._client"]):
    module.OpenAI, module.AsyncOpenAI = OpenAI, AsyncOpenAI
openai.Client, openai.AsyncClient = OpenAI, AsyncOpenAI
"""
"""A plugin of pytest that puts our clients in the place of openai's."""


def run(python: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder.parent)}
    return subprocess.run([str(python), "-m", *words], cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("environment", ["openai-suite", "openai-suite-newest"])
def test_openai_s_own_tests_pass_with_our_clients(environment: str, tmp_path: Path) -> None:
    python = ENVIRONMENTS / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"make frameworks NAMES={environment} could not install it from PyPI, or was not run")
    suite, tests = source_of(python, "openai", tmp_path), os.environ.get("SUITE", TESTS).split()
    (tmp_path / "ours.py").write_text(OURS)
    plain = ("-q", "-o", "addopts=", "-p", "ours", "-p", "no:cacheprovider")
    done = run(python, "pytest", *plain, *tests, folder=suite)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
