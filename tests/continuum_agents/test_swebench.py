"""SWE-bench tasks through the real ``datasets`` loader, offline."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from agent_batches import environment, write_lines
from continuum_agents.environments import find_framework, python_of

pytestmark = pytest.mark.slow

ROWS = [
    {
        "instance_id": f"acme__thing-{number}",
        "problem_statement": f"Fault {number}.\nAnd é.",
        "repo": "acme/thing",
        "base_commit": f"{number}" * 40,
        "patch": "x",
    }
    for number in range(1, 6)
]


@pytest.fixture(scope="module")
def python() -> Path:
    environment("mini-swe")
    return python_of(find_framework("mini-swe"))


def ask(python: Path, subset: str | Path, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Read a data set in mini-swe-agent's environment, without network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home)}
    command = [python, "-I", "-m", "continuum_agents.swebench", "--subset", subset, "--split", "test", *options]
    env = {**os.environ, **find_framework("mini-swe").variables(), **offline}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), [1, 2, 3, 4, 5]),
        (("--filter=acme__thing-[2-5]", "--slice=1:3"), [3, 4]),  # the filter first, as mini-extra does
    ],
)
def test_a_local_dataset(python: Path, tmp_path: Path, options: tuple[str, ...], numbers: list[int]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_lines(data / "test.jsonl", ROWS)
    done = ask(python, data, tmp_path / "home", *options)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [task["instance_id"] for task in found] == [f"acme__thing-{number}" for number in numbers]
    first = ROWS[numbers[0] - 1]
    assert found[0] == {
        **{name: first[name] for name in ("instance_id", "problem_statement", "repo", "base_commit")},
        "image": f"docker.io/swebench/sweb.eval.x86_64.acme_1776_thing-{numbers[0]}:latest",
    }


def test_a_dataset_that_cannot_be_had_is_one_line(python: Path, tmp_path: Path) -> None:
    for subset in ("nobody/nothing", tmp_path):
        done = ask(python, subset, tmp_path)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)
