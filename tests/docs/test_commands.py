"""Every command in the documentation: known to the real command line, and run at a small size where it can be.

The fenced ``bash`` blocks of README.md, CONTRIBUTING.md and docs/ are collected. ``NOT_RUN`` names what is not
executed, each with its reason; everything else runs, page by page, in a folder of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from continuum_bench.cli import app
from continuum_bench.options.run import RunOptions
from continuum_server.ports import hold_port
from continuum_server.step_times.catalog import find_model
from continuum_traces.json_io import JsonLines
from continuum_traces.programs.jsonl import read_programs, too_long, write_programs
from continuum_traces.programs.synth import load_profile, synthesize
from continuum_traces.records.run_dir import TURNS
from continuum_traces.schema import TurnRecord
from typer.main import get_command
from typer.testing import CliRunner

from continuum_client.instrument_command import parser as instrument_parser
from continuum_client.proxy_command import parser as proxy_parser

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted([REPO / "README.md", REPO / "CONTRIBUTING.md", *(REPO / "docs").rglob("*.md")])

NOT_RUN = (
    ("*", r"make |\.ci/run", "builds or checks the whole checkout; CI does"),
    ("*", r"source ", "the environment the tests run in already"),
    ("*", r"pip install|continuum-bench agent setup", "needs the network"),
    ("*", r"vllm serve|continuum-bench serve --engine gpu", "needs a GPU"),
    ("*", r"python benchmarks/", "measurements: minutes to hours on a quiet machine"),
    ("docs/results/*", r"continuum-bench ", "hours, on traces that are not in the repository"),
    ("docs/client/*", r"continuum-proxy ", "needs an agent and a server; tests/continuum_client/test_proxy.py runs it"),
    ("docs/client/instrument.md", r"continuum-instrument ", "tests/continuum_client/test_instrument.py runs it"),
    ("docs/agents/*", r"continuum-bench ", "needs the agents' own environments; tests/continuum_agents runs them"),
    ("docs/server/*", r"continuum-bench (serve|top)", "stays in the foreground; my-vllm.md starts serve behind"),
    ("docs/server/several-engines.md", r"python -m |vllm-router|serve run", "test_many_machines.py runs these"),
    ("docs/server/several-engines.md", r"docker|kubectl", "test_many_machines.py and test_image.py have these"),
    ("README.md", r"continuum-bench serve", "the same server as in docs/how-to/my-vllm.md"),
    ("docs/how-to/my-vllm.md", r".*(stock|8001)", "a second server; tests/continuum_server/online has both"),
    ("docs/how-to/load-a-server.md", r".*URL", "tests/continuum_bench/test_live.py and test_faults.py play all of it"),
)
"""(pages, start of the command, why it is not executed here)."""

SMALLER = (
    (r"(?<=--seeds )\d+", "1"),
    (r"(?<=-n )\d+|(?<=num_programs=)\d+", "2"),
    (r"continuum-bench (swebench|bfcl|openhands|replay)\b(?!.*--num-programs)", r"\g<0> --num-programs 2"),
    (r"continuum-bench (swebench|bfcl|openhands|replay)\b(?!.*--(policy|base-url))", r"\g<0> --policy vllm,continuum"),
    (r"runs/NAME", "runs/swebench-*"),
    (r"(?<=--retry )\d+", "400"),
)
"""What is played smaller than the page says, and waited for longer: this machine may be busy."""

CLIENT = """#!{python} -SE
import json, os, socket, sys
if sys.argv[1:2] == ["serve"]:
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
warm = socket.socket(socket.AF_UNIX)
warm.connect({socket!r})
warm.sendall(json.dumps([os.getcwd(), sys.argv[1:]]).encode())
warm.shutdown(socket.SHUT_WR)
output, _, code = warm.makefile().read().rpartition("\\n")
print(output)
sys.exit(int(code))
"""
"""The program that stands in for ``continuum-bench`` on the PATH; servers run for themselves."""

PARSERS = {"continuum-proxy": proxy_parser, "continuum-instrument": instrument_parser}
SHELL = {"python", "export", "for", "done", "curl", "source", "pip", "vllm", ".ci/run", "pre-commit", "pytest"}
SHELL |= {"docker", "kubectl", "serve", "taskset", "vllm-router", "kill"}
EXAMPLES = REPO / "examples"
IN_EXAMPLES = ("docs/how-to/my-policy.md",)
"""Pages whose commands are run in the folder examples."""


def commands(page: Path) -> list[str]:
    """Lines of the page's bash blocks, continued ones joined, comments gone."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [found for line in lines if (found := re.sub(r"(^|\s)#.*", "", line).strip())]


def bare(command: str) -> str:
    """Without variables set before it, and ``time``."""
    return re.sub(r"^(time |[A-Z_]+=\S* )+", "", command)


def name_of(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def why_not(page: Path, command: str) -> str | None:
    reasons = (why for at, start, why in NOT_RUN if fnmatch(name_of(page), at) and re.match(start, bare(command)))
    return next(reasons, None)


WITH_COMMANDS = [page for page in PAGES if commands(page)]
RUNNABLE = [page for page in WITH_COMMANDS if any(why_not(page, line) is None for line in commands(page))]


# ------------------------------------------------------------------------------------------ known at all


def check(command: str) -> None:
    """Parse as the program would, without running anything."""
    program, *words = shlex.split(re.sub(r"\$\w+", "1", re.sub(r" > \S+$", "", bare(command)).removesuffix("&")))
    if program == "continuum-bench":
        found: Any = get_command(app)
        while hasattr(found, "commands"):
            found, words = found.commands[words[0]], words[1:]
        found.make_context(found.name, words)
    elif program in PARSERS:
        PARSERS[program]().parse_args(words)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (REPO / "Makefile").read_text(), flags=re.M), f"no target {words[0]}"
    elif program == "python" and words[0] != "-m" and not any((at / words[0]).exists() for at in (REPO, EXAMPLES)):
        text = (REPO / "benchmarks" / words[0].removeprefix("benchmarks/")).read_text(encoding="utf-8")
        for option in (word for word in words if word.startswith("--")):
            assert f'"{option}"' in text, f"{words[0]} has no {option}"
    else:
        assert program in SHELL, f"unknown command {program!r}"


def fault(command: str) -> str | None:
    """What the real command line says against this command; None where it takes it."""
    try:
        check(command)
    except Exception as error:  # noqa: BLE001 - each kind of refusal is a fault of the page
        return f"{command}: {error}"
    return None


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name_of)
def test_every_command_exists_and_takes_its_options(page: Path) -> None:
    assert [found for line in commands(page) if (found := fault(line))] == []


def test_each_exception_has_a_command() -> None:
    for pages, start, why in NOT_RUN:
        found = [c for page in WITH_COMMANDS if fnmatch(name_of(page), pages) for c in commands(page)]
        assert any(re.match(start, bare(command)) for command in found), (
            f"nothing is left out as {why!r}: drop the entry"
        )


def test_traces_that_pages_make_fit_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests make smaller traces; here each has the size that its page names."""
    monkeypatch.chdir(tmp_path)
    Path("benchmarks").symlink_to(REPO / "benchmarks")
    made = [c for page in PAGES for c in commands(page) if c.startswith("continuum-bench traces synth")]
    for command in made:
        if "profile.json" not in command and "mini-swe.jsonl.gz" not in command:  # files of the reader's own
            done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--overwrite"])
            assert done.exit_code == 0, done.output
            programs, limit = read_programs(command.split()[3]), find_model(RunOptions().model).max_context_tokens
            assert all(too_long(program, limit) is None for program in programs), command
    assert len(made) > 3


# ---------------------------------------------------------------------------------------------- run


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """PATH with a ``continuum-bench`` that is warm."""
    folder = tmp_path_factory.mktemp("warm")
    place, binaries = folder / "socket", Path(sys.executable).parent
    client = folder / "continuum-bench"
    client.write_text(
        CLIENT.format(python=sys.executable, program=str(binaries / "continuum-bench"), socket=str(place))
    )
    client.chmod(0o755)
    process = subprocess.Popen([sys.executable, str(Path(__file__).parent / "warm.py"), str(place)])
    while not place.exists() and process.poll() is None:
        time.sleep(0.1)
    yield os.pathsep.join([str(folder), str(binaries), os.environ["PATH"]])
    process.terminate()
    process.wait(60)


def prepare(folder: Path, page: Path, ports: dict[str, str]) -> None:
    """The files that the pages take for granted: a trace, a recording, an agent and its script."""
    profile = load_profile("swebench")
    write_programs(folder / "my-trajectories.jsonl.gz", synthesize(profile, 2, seed=1))
    rows = [
        {"program_id": f"p{n}", "turn": turn, "prompt_tokens": 1000 * (turn + 1), "output_tokens": 50, "tool": "ls"}
        for n in range(2)
        for turn in range(3)
    ]
    (folder / "my-runs").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if name_of(page).startswith("docs/client/"):
        recorded = folder / "runs" / "agent"
        recorded.mkdir(parents=True)
        write_programs(recorded / "trace.jsonl", synthesize(profile, 2, seed=2, length_scale=0.2))
        with JsonLines(recorded / TURNS) as turns:
            turns.write(TurnRecord("p", 0, 0.0, 0.0, 0.5, 1.0, 100, 10, is_last=True))
    if name_of(page) in IN_EXAMPLES:
        shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    else:
        (folder / "examples").symlink_to(EXAMPLES)


def script_of(page: Path, ports: dict[str, str]) -> str:
    """What is run of the page, at its size here and on free ports."""
    lines = []
    for command in commands(page):
        if why_not(page, command) is not None:
            continue
        for pattern, smaller in SMALLER:
            command = re.sub(pattern, smaller, command)
        if command.startswith("continuum-bench serve"):
            default = "" if "--port" in command else f" --port {ports['8000']}"
            command = command.replace(" serve", f" serve --time-scale 20{default}", 1)
        for named, free in ports.items():
            command = re.sub(rf"(?<=:){named}|(?<=--port ){named}", free, command)
        lines.append(command)
    return "\n".join(["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT", *lines, ""])


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_commands_run(page: Path, path: str, tmp_path: Path) -> None:
    with hold_port("127.0.0.1", 0) as first, hold_port("127.0.0.1", 0) as second:
        ports = {"8000": str(first.getsockname()[1]), "8001": str(second.getsockname()[1])}
        prepare(tmp_path, page, ports)
        run(script_of(page, ports), path, tmp_path)


def run(script: str, path: str, folder: Path) -> None:
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=1200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, f"{script}\n{output[-3000:]}"
