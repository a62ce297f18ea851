"""Programs that do not know us as agents: bash with curl and Python's urllib, behind the proxy, on a real server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS, Batch, events_of, script_of, scripted, unpinned, write_lines
from agent_checks import (
    a_replay_has_the_same_turns_and_tokens,
    pins_are_hit_by_the_next_turn,
    programs_of,
    the_trace_is_what_the_server_saw,
)
from continuum_traces.records.run_dir import read_manifest
from live_server import Live

pytestmark = pytest.mark.slow

HERE = SCENARIOS / "command"
PYTHON = (sys.executable, str(HERE / "agent.py"), "{model}", "{task}")
BASH = ("bash", str(HERE / "agent.sh"), "{model}", "{task}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("command")
    with scripted(folder, script_of(HERE / "replies.jsonl"), policy_options={"ttl_s": 120.0}) as found:
        yield found


@pytest.fixture
def play(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> Callable[..., Batch]:
    """Starts a batch of these tasks: ``play({"a": "a task in words"}, *options, agent=...)``."""

    def started(tasks: dict[str, str], *options: str, agent: tuple[str, ...]) -> Batch:
        lines = ({"instance_id": name, "problem_statement": words} for name, words in tasks.items())
        file = write_lines(tmp_path / "tasks.jsonl", lines)
        return start(file, server.server.url, tmp_path / "run", *options, "--", *agent, framework="command")

    return started


@pytest.mark.parametrize("agent", [PYTHON, BASH], ids=["python", "bash"])
def test_programs_that_do_not_know_us(
    server: Live, tmp_path: Path, play: Callable[..., Batch], agent: tuple[str, ...]
) -> None:
    if agent is BASH and not (shutil.which("curl") and shutil.which("jq")):
        pytest.skip("curl or jq is not installed here")
    names = {f"{Path(agent[0]).name}-{number}" for number in range(2)}
    batch = play(dict.fromkeys(names, "Say fine."), "--check", "grep -q fine answer.txt", agent=agent)
    batch.ended()
    programs = batch.programs()
    assert batch.ends() == dict.fromkeys(names, ("Finished", True))
    assert all(done["tools"] == ["ls", "seq", "sleep", "echo"] for done in programs.values())
    assert all("answer.txt" in prediction["model_patch"] for prediction in batch.predictions().values())
    the_trace_is_what_the_server_saw(server, batch.out, names)
    pins_are_hit_by_the_next_turn(server, names, all_of_them=True)
    a_replay_has_the_same_turns_and_tokens(batch.out, tmp_path / "replayed")
    assert read_manifest(batch.out).workload.name == "agent command"
    assert all(
        program.turns[2].tool_calls[0].duration_s >= 0.2 for program in programs_of(batch.out / "trace.jsonl").values()
    )


def test_ends_of_commands_and_again(server: Live, play: Callable[..., Batch]) -> None:
    """The outcome is the exit status; a hanging command is stopped; what finished is not run again."""
    tasks = {"good": "exit 0", "bad": "exit 3", "hangs": "sleep 987 & sleep 987", "shot": "kill -9 $$"}
    batch = play(tasks, "--time-limit", "5", agent=("bash", "-c", "{task}"))
    batch.ended()
    statuses = ("Finished", "Exit 3", "TimeLimit", "Signal 9")
    assert batch.ends() == {name: (status, name == "good") for name, status in zip(tasks, statuses, strict=True)}
    assert "4 finished before" in play({**tasks, "new": "true"}, agent=("bash", "-c", "{task}")).ended()


def test_the_next_arrives_when_one_ends(play: Callable[..., Batch]) -> None:
    """Two at a time, the first two spread over the ramp; one that is killed makes room too."""
    words = dict.fromkeys("abcde", "sleep 0.5") | {"b": "sleep 0.5; kill -9 $PPID"}
    batch = play(words, "--arrivals", "concurrency:2:0.2", agent=("bash", "-c", "{task}"))
    batch.ended(1)
    records: list[Any] = sorted(batch.programs().values(), key=lambda done: float(done["arrival_s"]))
    assert sorted(done["status"] for done in records) == ["AgentDied", *["Finished"] * 4]
    ends = sorted(done["end_s"] for done in records)
    assert records[1]["arrival_s"] == pytest.approx(records[0]["arrival_s"] + 0.1)
    assert records[1]["arrival_s"] < ends[0]
    for end_s, done in zip(ends, records[2:], strict=False):
        assert end_s < done["arrival_s"] <= done["start_s"]
        assert sum(other["arrival_s"] <= done["arrival_s"] < other["end_s"] for other in records) <= 2


def test_the_step_limit_stops_a_command(server: Live, play: Callable[..., Batch]) -> None:
    batch = play({"limited": "Say fine."}, "--step-limit", "2", agent=PYTHON)
    assert batch.wait()[0] == 0
    (done,) = batch.programs().values()
    assert (done["status"], done["turns"], done["passed"]) == ("LimitsExceeded", 2, False)
    assert not server.pins()


ANTHROPIC = """
import httpx, os
key = {"Authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}
server = httpx.Client(base_url=os.environ["ANTHROPIC_BASE_URL"], headers=key, timeout=600)
tool = {"name": "bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
body = {"model": os.environ["MODEL"], "max_tokens": 99, "system": "You code.", "tools": [tool]}
text = {"type": "text", "text": "Say fine."}
marked = {"role": "user", "content": [{**text, "cache_control": {"type": "ephemeral"}}]}
asked = server.post("/v1/messages", json={**body, "messages": [marked]}).json()["content"]
done = {"type": "tool_result", "tool_use_id": asked[-1]["id"], "content": "here"}
turns = zip(("user", "assistant", "user"), ([text], asked, [done]))
messages = [{"role": role, "content": content} for role, content in turns]
assert "message_stop" in server.post("/v1/messages", json={**body, "messages": messages, "stream": True}).text
"""


def test_anthropic_s_api_through_the_proxy(server: Live, tmp_path: Path) -> None:
    proxy = f"-m continuum_client.proxy_command --upstream {server.server.url} --program claude --record {tmp_path}"
    agent = ["--content", "digest", "--", "env", f"MODEL={server.model}", sys.executable, "-c", ANTHROPIC]
    done = subprocess.run([sys.executable, *proxy.split(), *agent], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (program,) = programs_of(tmp_path / "trace.jsonl").values()
    assert [[call.name for call in turn.tool_calls] for turn in program.turns] == [["ls"], ["seq"]]
    events = events_of(server, "claude", 2)
    assert [event.prompt_tokens for event in events if event.event == "start"] == program.prompt_tokens()
    assert unpinned(server, "claude", 2) == ["hit", "last"]
