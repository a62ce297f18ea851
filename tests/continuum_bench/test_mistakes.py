"""Every mistake that a user can make, of every command: one line that says what is wrong, exit code 2, no work done.

``mistakes.txt`` has the commands and what they say; ``...`` there stands for any words, and a word ``NAME=TEXT`` whose
name has an ending for a file of that text. ``REWRITE=1`` in the environment writes what they say now.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS, environment
from bench_cli import bench, refused, small_trace
from continuum_agents.environments import FRAMEWORKS
from continuum_bench.lock import locked
from fake_server import FakeServer, good
from recorded_runs import write_recorded
from small_replays import trace_of

from continuum_client import instrument_command, proxy_command

FILE = Path(__file__).with_name("mistakes.txt")
SAID: dict[str, str] = dict(re.findall(r"^\$ (.+)\n(.+)$", FILE.read_text(), flags=re.MULTILINE))
"""From each command to its message."""
LOG = '{"start_times": [0, 0], "ttfts": [1, 1], "itls": [[1], [1]], "input_lens": [90, 9], "output_lens": [2, 2]}'
GIVEN = {
    "begun/manifest.json": "{}",
    "begun/sweep/sweep.json": "{}",
    "bad.json": "{nonsense",
    "table.jsonl": "{}",
    "file": "",
    "empty/none": "",
    "toolless.jsonl": '{"program_id": "p", "prompt_tokens": 100, "output_tokens": 5}',
    "log.json": LOG,
}
INLINE = re.compile(r"(\w+\.(?:yaml|jsonl?|csv))=(.*)", re.DOTALL)
SLOW = tuple(f"agent {framework} " for framework in FRAMEWORKS)
"""Their settings are read in the environments of their frameworks."""
COMMANDS = [pytest.param(each, marks=[pytest.mark.slow] if each.startswith(SLOW) else []) for each in SAID]
TOOLS = {"continuum-proxy": proxy_command, "continuum-instrument": instrument_command}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder with the files that commands name, and what words in capital letters stand for; ``TAKEN`` is a port."""
    folder = tmp_path_factory.mktemp("given")
    for seed in range(2):
        write_recorded(folder / "runs" / f"vllm-seed{seed}", "vllm", seed, [10.0, 11.0])
    for name, text in GIVEN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copytree(FILE.with_name("damaged"), folder / "damaged")
    trace_of(folder)
    with FakeServer("vllm", handler=good) as server, socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        yield {"HERE": str(folder), "SCENARIOS": str(SCENARIOS), "URL": server.url, "TAKEN": port}


def said_by(tool: str, words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The last line of a command of the client's, after its exit code where that is not 2."""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(TOOLS[tool].main(words))
    line = capfd.readouterr().err.splitlines()[-1]
    return line if ended.value.code == 2 else f"{ended.value.code}: {line}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_one_line(
    command: str, here: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a server would have been started")

    def files() -> set[Path]:
        return {path for path in Path(here["HERE"]).rglob("*") if path.suffix != ".lock"}

    monkeypatch.chdir(here["HERE"])
    monkeypatch.setattr("continuum_server.launcher.BoundProcess.__init__", start)
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    name, *words = shlex.split(re.sub("|".join(here), lambda word: here[word[0]], command))
    if command.startswith(SLOW):
        environment(words[0])
    for at, word in enumerate(words):
        if inline := INLINE.fullmatch(word):
            words[at] = inline[1]
            Path(inline[1]).write_text(inline[2].encode().decode("unicode_escape"))
    before = files()
    said = said_by(name, words, capfd) if name in TOOLS else refused(name, *words).removesuffix("\n")
    assert files() == before
    for word, stands_for in here.items():
        said = said.replace(stands_for, word)
    if not re.fullmatch(re.escape(SAID[command]).replace(re.escape("..."), ".*"), said):
        if os.environ.get("REWRITE"):
            FILE.write_text(FILE.read_text().replace(f"$ {command}\n{SAID[command]}\n", f"$ {command}\n{said}\n"))
        else:
            assert said == SAID[command]


@pytest.mark.parametrize(
    "command",
    ["replay small.jsonl.gz", "replay small.jsonl.gz --base-url URL", "sweep --set num_programs=1", "figure ablation"],
)
def test_two_commands_do_not_write_into_one_folder(
    command: str, here: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here["HERE"])
    with locked(tmp_path):
        done = bench(command.replace("URL", here["URL"]), "--out", tmp_path)
    assert done.exit_code == 2
    assert "another run is writing there; choose another --out\n" in done.stderr


@pytest.mark.parametrize("command", ["traces fit", "traces convert --to preview"])
def test_plain_json_has_no_name_that_ends_in_gz(command: str, tmp_path: Path) -> None:
    source, target = small_trace(tmp_path / "t.jsonl"), tmp_path / "p.json.gz"
    assert (
        refused(command, source, target) == f"{target}: this file is written as plain JSON; choose a name without .gz\n"
    )
    assert not target.exists()
