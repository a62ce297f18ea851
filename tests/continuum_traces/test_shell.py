"""Programs of shell commands; agents, importers and servers know a command by the same name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from continuum_server.vllm_plugin.tool_calls import openai_key
from continuum_traces.shell import first_program, programs, simple_commands
from hypothesis import given
from hypothesis import strategies as st

from continuum_client.recorder import tool_by_command

LINES = Path(__file__).with_name("commands.jsonl").read_text().splitlines()
COMMANDS: list[tuple[str, str | None, list[str]]] = [tuple(json.loads(line).values()) for line in LINES]
"""Shell commands, each with the tool name that is recorded for it and all programs that it runs."""


@pytest.mark.parametrize(("command", "key", "all_of_them"), COMMANDS)
def test_commands(command: str, key: str | None, all_of_them: list[str]) -> None:
    assert first_program(command) == key
    assert list(dict.fromkeys(programs(command))) == all_of_them


@pytest.mark.parametrize(
    "command",
    [
        "cat > f.py <<'EOF'\nimport os; os.system('rm')\nls && pwd\nEOF\npython f.py",
        "cd x && cat <<-END | sort > out\n\tb && c\n\tEND\nwc out",
        "<<A cat <<B\none\nA\ntwo\nB\nuniq x",
        "export A=1; cat <<EOF\nnever finished && rm x",
    ],
)
def test_here_documents_come_after_their_program(command: str) -> None:
    assert first_program(command) == "cat"


def test_words_lose_their_quotes() -> None:
    assert simple_commands('a \'b c\'"d\\"e"\\ f; g') == [["a", 'b cd"e f'], ["g"]]


@pytest.mark.parametrize("command", [command for command, _, _ in COMMANDS])
def test_a_client_and_a_server_name_a_command_alike(command: str) -> None:
    called = {"function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    assert tool_by_command("bash", json.dumps({"command": command})) == openai_key([called])


PIECES = st.sampled_from(
    ["bash -c ", "'", '"', "\\", "$(", "`", "cat <<E\n", "E\n", "cd x && ", "|", "&", ">", "#", "ls "]
)


@given(st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join)))
def test_no_text_breaks_it(command: str) -> None:
    assert first_program(command) is None or first_program(command)
    assert all(programs(command))
