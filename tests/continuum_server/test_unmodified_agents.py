"""Agents as their makers publish them, against a real server: each conversation is one program, and its holds are hit.

``make frameworks`` installs the agents in ``.frameworks``; those that are missing are skipped. Their answers are filler
without tool calls, so every agent is asked three times in one conversation: the hold begins with the second turn.
Only Claude Code's session with a sub-agent has scripted answers.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import tomllib
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.records import read_events
from continuum_traces.schema import SchedulerEvent
from live_server import Live, live
from waiting import until

pytestmark = pytest.mark.slow

WITH_SUB_AGENT = "00000000-0000-4000-8000-000000000007"
ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".frameworks"


@dataclass(frozen=True)
class Agent:
    """A row of ``unmodified_agents.toml``, which says what its fields are."""

    program: str
    first: Sequence[str]
    by: str
    again: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    file: str = ""
    text: str = ""
    titled: bool = False


TABLE = tomllib.loads(Path(__file__).with_name("unmodified_agents.toml").read_text())
AGENTS = {name: Agent(**facts) for name, facts in TABLE.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Holds last until they are hit. One conversation has scripted answers: a call of a sub-agent, and a text."""
    folder = tmp_path_factory.mktemp("server")
    call = {"description": "look", "prompt": "List the files.", "subagent_type": "general-purpose"}
    replies = [{"tool_calls": [{"name": "Agent", "arguments": call}]}, {"text": "Done."}]
    script = folder / "replies.jsonl"
    script.write_text(json.dumps({"program": WITH_SUB_AGENT, "replies": replies}))
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script))
    with live(folder, policy="static-ttl", policy_options={"ttl_s": 600.0}, emulated=emulated) as found:
        yield found


@pytest.mark.parametrize("name", AGENTS)
def test_a_conversation_is_one_program_and_its_holds_are_hit(name: str, server: Live, tmp_path: Path) -> None:
    agent = AGENTS[name]
    events = _talk(name, agent, server, tmp_path)
    arrivals = [event for event in events if event.event == "arrive"]
    assert {event.recognised_by for event in arrivals} == {agent.by}
    (main, turns), *others = Counter(event.program_id for event in arrivals).most_common()
    assert all(count == 1 for _, count in others)  # side requests, such as titles
    pins = [event for event in events if event.event == "pin"]
    if agent.by != "prompt":
        assert {event.program_id for event in pins} == {main}  # side requests under the conversation's id are not held
    held = [event.turn for event in pins if event.program_id == main]
    assert len(held) >= 2
    assert held == list(range(turns - len(held), turns))
    hits = [(event.program_id, event.turn) for event in events if event.event == "unpin" and event.reason == "hit"]
    asked = [event for event in arrivals if event.program_id == main]
    if agent.titled and _is_title(*asked[:2]):
        held = held[1:]  # nothing of the title's prompt is in the question's
    assert hits == [(main, turn) for turn in held[:-1]]
    last = [event for event in events if event.event == "start" and event.program_id == main][-1]
    assert last.hit_tokens is not None
    assert last.prompt_tokens is not None
    assert last.hit_tokens > 0.8 * last.prompt_tokens


def test_a_sub_agent_is_a_program_of_its_own_and_its_parent_s_hold_is_hit(server: Live, tmp_path: Path) -> None:
    first = ("-p", "say hi", "--setting-sources", "", "--session-id", WITH_SUB_AGENT)
    events = _talk("claude-code", replace(AGENTS["claude-code"], first=first, again=()), server, tmp_path)
    main, sub, back = (event for event in events if event.event == "arrive")
    assert [main.program_id, back.program_id] == [WITH_SUB_AGENT] * 2
    assert (sub.program_id != WITH_SUB_AGENT, sub.recognised_by) == (True, "header:x-claude-code-agent-id")
    assert [main.root_id, sub.root_id, back.root_id] == [None, WITH_SUB_AGENT, None]
    ends = {(event.program_id, event.turn): event.reason for event in events if event.event == "unpin"}
    assert ends[WITH_SUB_AGENT, 0] == "hit"


def _is_title(first: SchedulerEvent, second: SchedulerEvent) -> bool:
    """Whether the conversation's first request asks for a title: a prompt far shorter than the question's."""
    assert first.prompt_tokens is not None
    assert second.prompt_tokens is not None
    return 4 * first.prompt_tokens < second.prompt_tokens


def _talk(name: str, agent: Agent, server: Live, folder: Path) -> list[SchedulerEvent]:
    """Ask the agent once, or three times. Returns what the server recorded."""
    program = ENVIRONMENTS / name / agent.program
    if not program.exists():
        pytest.skip(f"{name} is not there: `make frameworks` could not install it from npm or PyPI")
    before = len(list(read_events(server.record)))
    home, work = folder / "home", folder / "work"
    work.mkdir()
    home.mkdir()
    if agent.file:
        (home / agent.file).parent.mkdir(parents=True)
        (home / agent.file).write_text(_filled(agent.text, server))
    variables = {name: _filled(value, server) for name, value in agent.variables.items()}
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", "CI": "1", "DO_NOT_TRACK": "1"}
    for words in (agent.first, *([agent.again] * 2 if agent.again else [])):
        done = subprocess.run(
            [program, *(_filled(word, server) for word in words)],
            cwd=work, env={**environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables}, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not agent.again, done.stdout[-1500:] + done.stderr[-1500:]
    until(server.is_idle)
    time.sleep(1.0)  # the recorder writes at most a quarter of a second late
    return list(read_events(server.record))[before:]


def _filled(text: str, server: Live) -> str:
    return text.replace("<URL>", server.server.url).replace("<MODEL>", server.model)
