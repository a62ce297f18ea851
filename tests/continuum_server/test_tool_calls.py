"""Which tool an output calls: every format by hand, real trajectories, and texts made to break a parser."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomllib
from continuum_server.vllm_plugin.tool_calls import (
    PARSERS,
    OutputCall,
    first_word,
    openai_key,
    read_openai,
    tool_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

# ------------------------------------------------------------------------------------------------------ outputs

ROWS = tomllib.loads(Path(__file__).with_name("tool_outputs.toml").read_text())["output"]


@pytest.mark.parametrize(("text", "key"), [(row["text"], row.get("key")) for row in ROWS])
def test_outputs(text: str, key: str | None) -> None:
    assert tool_key(text) == key


def test_parsers_are_pluggable_and_may_fail() -> None:
    def shout(text: str) -> list[OutputCall]:
        return [OutputCall("shout")] if text.isupper() else []

    def broken(text: str) -> list[OutputCall]:
        raise RuntimeError("no")

    assert tool_key("HELP") is None
    PARSERS["broken"], PARSERS["shout"] = broken, shout
    try:
        assert tool_key("HELP") == "shout"
    finally:
        del PARSERS["broken"], PARSERS["shout"]


# ------------------------------------------------------------------------------------------------ nothing raises

# fmt: off
SHARDS = st.sampled_from([
    "```bash\n", "\n```", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=command>", "{", "}",
    '{"name": "f", "arguments": {', '"', "'", "\\", "$(", "`", "<<EOF\n", "EOF\n", "(", ")", "[", "]", "f(", "a=1",
    "cd x && ", "sudo -u ", "timeout ", "bash -c ", "|", "&", ">", "<", "#", "\n", " ", "\0", "é", '"commands": [',
    "<arg_key>", "</arg_key>", "<arg_value>", "[TOOL_CALLS]", "<|python_tag|>", "lambda: ", "-" * 50, "=", ",",
    "```tool_code\n", "print(", "<|tool_call_begin|>functions.", "<|channel|>a to=functions.",
])
# fmt: on


@given(st.one_of(st.text(max_size=200), st.lists(SHARDS, max_size=40).map("".join)))
@settings(max_examples=8 * settings.default.max_examples)
def test_any_text_gives_a_name_or_none(text: str) -> None:
    key = tool_key(text)
    assert key is None or (key == key.strip() and 0 < len(key) < 2000)
    read_openai([{"function": {"name": "bash", "arguments": text}}])


HOSTILE = (
    *("[" * 60_000, '{"a":' * 12_000, "f(" * 8_000, "f(a=" + "-" * 15_000 + "1)", "<tool_call>" * 6_000),
    *("<function=f>" * 5_000, "x```bash\n" * 7_000, "<tool_call>" + " " * 60_000),
    *(f"```bash\n{shell}\n```" for shell in ("'\"" * 30_000, "a''" * 20_000, "cat <<E " * 7_000)),
    *(f"```bash\n{shell}\n```" for shell in ("$(" * 30_000, "bash -c '" * 6_000)),
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_long_hostile_texts_end_soon(text: str) -> None:
    """No clock in a test: a parser that is quadratic in 60,000 characters would hang this one for minutes."""
    tool_key(text)


# --------------------------------------------------------------------------------------------------- real outputs


@pytest.fixture(scope="module")
def real_calls(real_traces: Path) -> list[dict[str, Any]]:
    """Tool calls of 43 mini-swe-agent trajectories (deepseek-chat on SWE-bench Lite)."""
    archive, found = real_traces / "raw" / "mini_swe_agent" / "trajectories.tar.xz", list[dict[str, Any]]()
    if not archive.is_file():
        pytest.skip("no raw trajectories beside this checkout (../shared/traces/raw)")
    with tarfile.open(archive) as members:
        for member in members:
            content = members.extractfile(member) if member.name.endswith(".traj.json") else None
            for message in json.load(content)["messages"] if content is not None else ():
                found += (message.get("role") == "assistant" and message.get("tool_calls")) or []
    return found


def command_of(call: dict[str, Any]) -> str:
    return str(json.loads(call["function"]["arguments"])["command"])


def test_real_calls_are_known_by_a_program(real_calls: list[dict[str, Any]]) -> None:
    keys = [openai_key([call]) for call in real_calls]
    assert len(keys) > 3_000
    assert None not in keys
    assert len(set(keys)) < 60  # programs, not pieces of commands
    assert keys.count("cd") < len(keys) / 1_000
    first_words = [command_of(call).split()[0] for call in real_calls]
    assert first_words.count("cd") > len(keys) / 4


def test_real_commands_in_every_format(real_calls: list[dict[str, Any]]) -> None:
    """The same command, written as each model family writes it, has the same key."""
    for call in real_calls[::5]:
        command = command_of(call)
        as_json = json.dumps({"name": "bash", "arguments": {"command": command}})
        texts = [
            f"Let me look.\n<tool_call>\n{as_json}\n</tool_call>",
            as_json,
            f"<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>{command}</arg_value>\n</tool_call>",
            f"<function=execute_bash>\n<parameter=command>{command}</parameter>\n</function>",
            f"bash(command={command!r})",
            json.dumps({"analysis": "x", "commands": [{"keystrokes": command + "\n"}]}),
            *([] if "```" in command else [f"THOUGHT: x\n\n```bash\n{command}\n```"]),
        ]
        assert {tool_key(text) for text in texts} == {openai_key([call])}


SHELL = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "cd x && make"}'}}


FETCH = SimpleNamespace(function=SimpleNamespace(name="fetch_url", arguments='{"url": "x"}'))


ARGV = {"function": {"name": "shell", "arguments": '{"command": ["bash", "-lc", "cd x; rg it\'s"]}'}}


BROKEN = (None, 3, "x", [], [None], [{}], [{"function": None}], [{"function": {"name": ""}}], [{"name": 5}])


@pytest.mark.parametrize(
    ("calls", "key"),
    [
        ([SHELL], "make"),
        ([FETCH, SHELL], "fetch_url+make"),
        ([{"name": name} for name in ("b", "a", "b", " ")], "a+b"),
        ([ARGV], "rg"),
        ([{"function": {"name": "bash", "arguments": "{broken"}}], "bash"),
        *((broken, None) for broken in BROKEN),
    ],
)
def test_openai_calls(calls: Any, key: str | None) -> None:
    assert openai_key(calls) == key
    assert len(openai_key([{"name": f"tool{i:04}"} for i in range(1000)]) or "") < 2000


@pytest.mark.parametrize(
    ("command", "word"),
    [("cd /a && pytest -q", "cd"), ("sudo rm x", "sudo"), ("A=1 make", "A=1"), ("\n  ls\n", "ls"), ("", "bash")],
)
def test_the_papers_key_is_the_first_word(command: str, word: str) -> None:
    call = {"function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    assert openai_key([call], first_word) == word
