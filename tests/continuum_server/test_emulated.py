"""The emulated engine's parts that need no server: scripts, batches, launcher."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from continuum_server.emulated.answer import PlannedAnswer
from continuum_server.emulated.replies import Script, ScriptedAnswer, read_script
from continuum_server.emulated.settings import SECTION, EmulatedError
from continuum_server.emulated.unsupported import lacking
from continuum_server.emulated.vocabulary import bits_of, first_allowed
from continuum_server.launcher import Server
from continuum_server.server_command import check_classes, command_of
from continuum_server.server_config import STOCK, ServerConfig, ServerError


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
    assert script.due(None) == ScriptedAnswer("any")
    assert script.due(None, answered=1) is None
    script.delivered(None)
    assert script.due(None) == ScriptedAnswer("any")  # an unnamed conversation is as far as its prompt says
    assert Script({"p": [ScriptedAnswer("one")]}).due(None) is None


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


def test_a_program_may_put_a_scheduler_around_ours() -> None:
    """As one does that measures it; commands refuse this."""
    command, _ = command_of(ServerConfig(vllm_arguments=("--scheduler-cls", "my.timed")), 8000)
    assert command[-2:] == ["--scheduler-cls", "my.timed"]


def checked(config: ServerConfig) -> ServerConfig:
    """The configuration as a command takes it."""
    check_classes(config)
    return config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--kv-offloading-size", "2"),
            "--kv-offloading-size: the emulated engine cannot do this: its device moves no KV",
        ),
        (("--kv_transfer_config={}",), "--kv_transfer_config: the emulated engine cannot do this"),
        (("--enable-lora",), "--enable-lora: the emulated engine cannot do this: its model has no adapters"),
        (("--speculative-config", "{}"), "--speculative-config: the emulated engine cannot do this"),
        (("--cpu-offload-gb", "1"), "--cpu-offload-gb: the emulated engine cannot do this"),
        (("--scheduler-cls", "x"), "--scheduler-cls: Continuum passes its own value of this option"),
        (("--scheduler-cl", "x"), "--scheduler-cl: Continuum passes its own value of this option"),
        (("--scheduler_c=x",), "--scheduler_c: Continuum passes its own value of this option"),
        (("--distributed-executor", "mp"), "--distributed-executor: Continuum passes its own value of this option"),
        (("--kv_offloading-size=2",), "--kv_offloading-size: the emulated engine cannot do this"),
        (("--speculative-config.method", "ngram"), "--speculative-config.method: the emulated engine cannot do this"),
        (("--distributed-executor-backend", "mp"), "--distributed-executor-backend: Continuum passes its own value"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_before_it_starts(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ServerError, match=f"^{message}"):
        command_of(checked(ServerConfig(vllm_arguments=words)), 8000)
    if not words[0].startswith(("--scheduler", "--distributed")):
        command_of(ServerConfig(engine="gpu", model="org/model", vllm_arguments=words), 8000)


@pytest.mark.parametrize("word", ["--", "--scheduler-reserve-full-isl", "--seed"])
def test_other_options_are_vllm_s(word: str) -> None:
    command, _ = command_of(ServerConfig(vllm_arguments=(word,)), 8000)
    assert command[-1] == word


@pytest.mark.slow
def test_what_a_file_of_vllm_s_options_asks_for_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text("enable-lora: true\n")
    config = ServerConfig(port=0, vllm_arguments=("--config", str(tmp_path / "vllm.yaml")))
    with pytest.raises(ServerError, match=r"EmulatedError: .*lora_config: its model has no adapters"):
        Server(config, tmp_path / "log").__enter__()


GENERATES = SimpleNamespace(quantization=None, runner_type="generate")
PLAIN = {
    "cache_config": SimpleNamespace(kv_offloading_size=None, cache_dtype="auto"),
    "parallel_config": SimpleNamespace(world_size=1),
    "model_config": GENERATES,
    "lora_config": None,
}


@pytest.mark.parametrize(
    ("more", "lack"),
    [
        ({}, None),
        ({"parallel_config": SimpleNamespace(world_size=2)}, "a world of 2 devices"),
        ({"cache_config": SimpleNamespace(kv_offloading_size=1.0, cache_dtype="auto")}, "kv_offloading_size"),
        ({"cache_config": SimpleNamespace(cache_dtype="bfloat16")}, None),
        ({"cache_config": SimpleNamespace(cache_dtype="fp8")}, "kv_cache_dtype fp8"),
        ({"kv_transfer_config": object()}, "kv_transfer_config"),
        ({"speculative_config": object()}, "speculative_config"),
        ({"speculative_config": object(), "additional_config": {SECTION: {"speculative": "3:2.8"}}}, None),
        ({"lora_config": object()}, "lora_config"),
        ({"model_config": SimpleNamespace(quantization="fp8", runner_type="generate")}, "quantization"),
        ({"model_config": SimpleNamespace(quantization=None, runner_type="pooling")}, "runner pooling"),
    ],
)
def test_what_vllm_s_configuration_asks_for(more: dict[str, Any], lack: str | None) -> None:
    said = lacking(SimpleNamespace(**{**PLAIN, **more}))
    assert said is None if lack is None else str(said).startswith(lack)
