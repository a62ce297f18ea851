"""openai's own tests of its clients, run with ours in their place. They come from openai's source distribution on PyPI.

``make frameworks NAMES=openai-suite`` builds the environment. By default the tests of the clients run, most of the
suite's that need no server; ``SUITE`` in the environment names others, such as ``tests/test_streaming.py``.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PYTHON = Path(__file__).resolve().parents[2] / ".frameworks" / "openai-suite" / "bin" / "python"
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


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder.parent)}
    return subprocess.run([str(PYTHON), "-m", *words], cwd=folder, capture_output=True, text=True, env=environment)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The folder of the source distribution of the openai that is installed there."""
    if not PYTHON.exists():
        pytest.skip("make frameworks NAMES=openai-suite could not install it from PyPI, or was not run")
    version = run("pip", "show", "openai", folder=tmp_path).stdout.split("Version: ")[1].split()[0]
    source = ("--no-deps", "--no-binary", "openai", f"openai=={version}")
    if run("pip", "download", "-q", *source, folder=tmp_path).returncode:
        pytest.skip("pip could not install it from source: PyPI has no source distribution of openai here")
    (archive,) = tmp_path.glob("openai-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    (tmp_path / "ours.py").write_text(OURS)
    return tmp_path / archive.name.removesuffix(".tar.gz")


def test_openai_s_own_tests_pass_with_our_clients(suite: Path) -> None:
    tests = os.environ.get("SUITE", TESTS).split()
    done = run("pytest", "-q", "-o", "addopts=", "-p", "ours", "-p", "no:cacheprovider", *tests, folder=suite)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
