"""The emulated engine's parts that need no server: scripts, batches, launcher."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from continuum_server.emulated.answer import PlannedAnswer
from continuum_server.emulated.replies import Script, ScriptedAnswer, read_script
from continuum_server.emulated.settings import EmulatedError
from continuum_server.emulated.vocabulary import bits_of, first_allowed
from continuum_server.server_command import command_of
from continuum_server.server_config import STOCK, ServerConfig


def test_replies_come_in_order_and_only_when_delivered() -> None:
    script = Script(
        {
            "p": [ScriptedAnswer("one"), ScriptedAnswer("two")],
            "p/2": [ScriptedAnswer("child")],
            "*": [ScriptedAnswer("any")],
        }
    )
    assert script.due("p") == script.due("p") == ScriptedAnswer("one")
    script.delivered("p")
    assert script.due("p") == ScriptedAnswer("two")
    script.delivered("p")
    assert script.due("p") is None
    script.ended("p")
    assert script.due("p") == ScriptedAnswer("one")
    assert script.due("p#2") == ScriptedAnswer("one")  # the second attempt of a program that a harness resumes
    assert script.due("p#2/2") == ScriptedAnswer("child")
    assert script.due("q") == ScriptedAnswer("any")
    assert script.due(None) is None


def test_a_script_is_read(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    replies = '{"text": "a", "tool_calls": [{"name": "ls", "arguments": {"d": "é"}}]}, {"token_ids": [5, 6]}'
    path.write_text(f'{{"program": "p", "replies": [{replies}]}}\n\n')
    script = read_script(path)
    found = []
    for _ in range(2):
        reply = script.due("p")
        assert reply is not None
        found.append(reply.tokens(lambda given: [*map(ord, given)]))
        script.delivered("p")
    assert found == [[*map(ord, 'a\n<tool_call>\n{"name": "ls", "arguments": {"d": "é"}}\n</tool_call>')], [5, 6]]


P = '{"program": "p"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", ":1: not JSON"),
        ("[]", ":1: Expected `object`, got `array`"),
        (P + "}", ":1: Object missing required field `replies`"),
        (P + ', "replies": [{}]}', r":1: expected text, token_ids or tool_calls - at `\$.replies\[0\]"),
        (P + ', "replies": [{"token_ids": [-1]}]}', r">= 0 - at `\$.replies\[0\].token_ids"),
        (P + ', "replies": [{"tool_calls": [{}]}]}', r"field `name` - at `\$.replies\[0\].tool_calls\[0\]"),
        (P + ', "replies": []}\n' + P + ', "replies": []}', ":2: program: 'p' is there already"),
    ],
)
def test_a_damaged_script_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(EmulatedError, match=message):
        read_script(path)


def test_an_answer_knows_when_it_samples_and_when_it_ends() -> None:
    answer = PlannedAnswer("r", prompt_tokens=100, planned=[7, 8])
    assert (answer.decodes(scheduled=64), answer.samples(computed=64)) == (False, False)
    assert (answer.decodes(scheduled=36), answer.samples(computed=100)) == (False, True)
    assert answer.next_token() == 7
    assert (answer.decodes(scheduled=1), answer.samples(computed=101)) == (True, True)
    assert not answer.completes(7)
    assert answer.next_token() == 8
    assert answer.completes(8)
    assert answer.next_token() == 7  # a step in flight when the answer ended
    assert not answer.completes(8)


@pytest.mark.parametrize("scripted", [True, False])
def test_an_answer_that_a_grammar_refuses_ends_as_soon_as_the_grammar_allows(scripted: bool) -> None:
    answer = PlannedAnswer("r", prompt_tokens=1, planned=[5, 6, 7, 8], scripted=scripted)
    seen = []
    for allowed in (True, False, False, True, True):
        answer.next_token()
        seen.append((answer.departs(allowed), answer.over))
    assert seen == (
        [(False, False), (True, True), *[(False, True)] * 3] if scripted else [*[(False, False)] * 4, (False, True)]
    )
    assert answer.completes(8)


def test_under_a_grammar_the_first_allowed_token_is_chosen_else_the_lowest() -> None:
    bits = bits_of(np.array([0, 1 << 2 | -(1 << 31)], dtype=np.int32))  # of tokens 34 and 63
    assert [first_allowed(bits, wanted) for wanted in ((1, 63, 34), (1, 2), ())] == [63, 34, 34]


def test_the_launchers_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command, environment = command_of(ServerConfig(vllm_arguments=("--seed", "7")), 8000)
    assert command[command.index("--scheduler-cls") + 1].endswith("scheduler.make")
    assert (command[-2:], environment["HF_HUB_OFFLINE"]) == (["--seed", "7"], "1")
    own = ("--additional-config", "{}")  # nothing of ours is there that it could replace
    stock, _ = command_of(ServerConfig(engine="gpu", model="org/model", policy=STOCK, vllm_arguments=own), 8000)
    gpu, gpu_environment = command_of(ServerConfig(engine="gpu", model="org/model"), 8000)
    assert not {"--scheduler-cls", "--load-format"} & {*stock} | {"--load-format", "HF_HUB_OFFLINE"} & {
        *gpu,
        *gpu_environment,
    }
