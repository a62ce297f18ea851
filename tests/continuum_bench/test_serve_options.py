"""What ``continuum-bench serve`` refuses before vLLM is started."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from continuum_bench.cli import app
from continuum_bench.options.serve import ServeOptions
from continuum_bench.serve.config import server_config
from continuum_server import record_file
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import client_line
from continuum_server.ports import hold_port
from continuum_server.server_command import command_of, longest_request
from continuum_server.server_config import ServerConfig
from continuum_server.vllm_plugin.recorder import EventRecorder
from typer.testing import CliRunner

runner = CliRunner()


class StartedError(Exception):
    """A server would have been started."""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise StartedError

    monkeypatch.setattr("continuum_server.launcher.subprocess.Popen", start)


@pytest.mark.parametrize("engine", ["emulated", "cpu"])
@pytest.mark.parametrize(
    ("option", "given", "allowed"),
    [
        ("--pins-yield-to", "moon", "there are policy, never, waiting, later, anyone"),
        ("--max-ttl-s", "-1.0", "must be a number from 0 to 1000000000000"),
        ("--max-ttl-s", "nan", "must be a number of at most 1,000,000,000,000"),
        ("--max-ttl-s", "inf", "must be a number of at most 1,000,000,000,000"),
        ("--max-pinned-share", "-0.1", "must be a number from 0 to 1"),
        ("--max-pinned-share", "1.5", "must be a number from 0 to 1"),
        ("--max-pins-per-client", "-2", "must be a whole number from 0 to 1000000000, or none"),
        ("--gpu-memory-utilization", "1.5", "must be above 0, at most 1"),
        ("--step-overhead-ms", "-1", "must not be negative or infinite"),
        ("--drain-s", "-1", "must be at least 0"),
        ("--max-num-seqs", "0", "must be at least 1"),
        ("--kv-blocks", "1", "must be at least 2"),
        ("--replicas", "0", "must be at least 1"),
    ],
)
def test_a_value_out_of_range_is_one_line(option: str, given: str, allowed: str, engine: str) -> None:
    done = runner.invoke(app, ["serve", "--engine", engine, "--port", "0", option, given])
    assert done.exit_code == 2
    assert done.stderr == f"error: {option} {given}: {allowed}\n"
    assert done.stdout == ""


def test_guards_at_their_limits_reach_the_server(tmp_path: Path) -> None:
    limits = ["--max-ttl-s", "0", "--max-pinned-share", "1", "--max-pins-per-client", "0", "--pins-yield-to", "never"]
    done = runner.invoke(app, ["serve", "--port", "0", "--log", str(tmp_path / "log"), *limits])
    assert isinstance(done.exception, StartedError)


def test_settings_past_the_options_are_refused() -> None:
    settings = '{"continuum": {"guards": {"pins_yield_to": "moon"}}}'
    done = runner.invoke(app, ["serve", "--port", "0", "--additional-config", settings])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: --additional-config: Continuum passes its settings in this option; ")
    assert len(done.stderr.splitlines()) == 1


def test_keys_that_vllm_would_drop_are_refused() -> None:
    done = runner.invoke(app, ["serve", "--port", "0", "--api-key", "A", "--api-key", "B"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "several keys are --api-key A B" in done.stderr


@pytest.mark.parametrize("replicas", ["1", "2"])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["--port", "99999"], "--port 99999: must be at most 65,535"),
        (["--host", "nowhere.invalid"], "host nowhere.invalid, port 8000: cannot listen there: "),
        (["--host", "nowhere.invalid", "--port", "0"], "host nowhere.invalid, port 0: cannot listen there: "),
    ],
)
def test_where_nobody_can_listen_is_one_line(where: list[str], message: str, replicas: str) -> None:
    done = runner.invoke(app, ["serve", *where, "--replicas", replicas])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {message}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("replicas", ["1", "2"])
@pytest.mark.parametrize("option", ["--record", "--log", "--statistics"])
def test_what_cannot_be_written_is_one_line(option: str, replicas: str, tmp_path: Path) -> None:
    """A server that serves and records nothing would be found out too late."""
    (tmp_path / "file").write_text("")
    done = runner.invoke(app, ["serve", "--port", "0", "--replicas", replicas, option, str(tmp_path / "file" / "new")])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {tmp_path}/file")
    assert ": cannot " in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_record_another_server_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "PATIENCE_S", 0.0)
    theirs = EventRecorder(tmp_path)
    try:
        done = runner.invoke(app, ["serve", "--port", "0", "--record", str(tmp_path)])
    finally:
        theirs.close()
    assert done.exit_code == 2
    locked = f"{tmp_path}/scheduler_timestamps.jsonl: another server writes this file"
    assert done.stderr == f"error: {locked}; stop it or choose another\n"


def test_statistics_that_another_server_writes_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "PATIENCE_S", 0.0)
    lock = record_file.lock_replaced(tmp_path / "tools.json")
    try:
        done = runner.invoke(app, ["serve", "--port", "0", "--statistics", str(tmp_path / "tools.json")])
    finally:
        os.close(lock)
    assert done.exit_code == 2
    assert (
        done.stderr
        == f"error: {tmp_path}/tools.json.lock: another server writes this file; stop it or choose another\n"
    )


def test_folders_are_made(tmp_path: Path) -> None:
    files = ["--log", str(tmp_path / "a" / "log"), "--statistics", str(tmp_path / "b" / "tools.json")]
    done = runner.invoke(app, ["serve", "--port", "0", "--record", str(tmp_path / "c" / "record"), *files])
    assert isinstance(done.exception, StartedError)
    assert all((tmp_path / name).is_dir() for name in ("a", "b", "c/record"))


def refusal(*arguments: str) -> str:
    """The one line that refuses these."""
    done = runner.invoke(app, ["serve", "--port", "0", *arguments])
    assert done.exit_code == 2, done.output
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize("replicas", ["1", "2"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--engine moon", "unknown engine 'moon'; there are: gpu, emulated, cpu"),
        ("--engine gpu", "engine gpu needs a model: a folder or a name that vLLM can load"),
        ("--engine cpu --model {folder}", "model {folder}: that folder has no config.json"),
        ("--engine gpu --model {folder}", "model {folder}: that folder has no config.json"),
        ("--engine gpu --model {folder}/none", "model {folder}/none: no such folder"),
        ("--profile {folder}", "{folder}: cannot read: Is a directory"),
        ("--profile {folder}/bad", "{folder}/bad: not JSON: "),
        ("--replies {folder}", "{folder}: cannot read: "),
        ("--replies {folder}/none", "{folder}/none: cannot read: "),
        ("--replies {folder}/bad", "{folder}/bad:1: not JSON: "),
        ("--max-num-seqs 300 --chunk-tokens 200", "200 tokens of a step are fewer than 300 running requests"),
        ("--policy stock --policy-option continuum.x=1", "--policy-option continuum.x=1: policy stock is vLLM's own"),
        ("--kv-blocks 1200 --max-model-len 19185", "a prompt plus output of 19185 tokens does not fit 1200 KV blocks"),
        ("--model llama-3.1-70b --gpu b200-180gb --max-model-len 131072", "a prompt plus output of 131072 tokens"),
    ],
)
def test_what_vllm_would_refuse_in_a_traceback_is_one_line(
    given: str, message: str, replicas: str, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_text("{nonsense")
    arguments = given.format(folder=tmp_path).split()
    assert refusal("--replicas", replicas, *arguments).startswith(f"error: {message.format(folder=tmp_path)}")


def test_a_folder_of_models_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot write the model's folder: Not a directory" in refusal()


@pytest.mark.parametrize(
    ("given", "served"), [("qwen3-32b", ["qwen3-32b"]), ("Qwen/Qwen3-32B", ["qwen3-32b", "Qwen/Qwen3-32B"])]
)
def test_an_emulated_model_has_its_short_name_and_the_name_that_was_given(given: str, served: list[str]) -> None:
    command, _ = command_of(ServerConfig(engine="emulated", model=given, emulated=EmulatedSettings(gpu="h200")), 8000)
    first = command.index("--served-model-name") + 1
    assert command[first : first + len(served)] == served
    assert command[first + len(served)].startswith("--")


def test_the_health_port_is_for_replicas_and_must_be_free() -> None:
    assert "--health-port: needs --replicas" in refusal("--health-port", "0")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert f"port {port} of 127.0.0.1 is taken" in refusal("--replicas", "2", "--health-port", port)
    assert "--health-port 99999: must be at most 65,535" in refusal("--replicas", "2", "--health-port", "99999")
    with hold_port("127.0.0.1", 0) as held:
        port = str(held.getsockname()[1])
    both = runner.invoke(app, ["serve", "--port", port, "--replicas", "2", "--health-port", port])
    assert both.exit_code == 2
    assert f"port {port} of 127.0.0.1 is taken" in both.stderr


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (ServerConfig(), None),  # the model's own
        (ServerConfig(kv_blocks=1200), 1199 * 16),  # vLLM keeps one block for itself
        (ServerConfig(kv_blocks=1200, max_model_len=19_184), 19_184),
        (ServerConfig(kv_blocks=1200, max_model_len=100), 100),
        (ServerConfig(kv_blocks=1200, block_size=32), 1199 * 32),
        (ServerConfig(model="llama-3.1-70b", emulated=EmulatedSettings(gpu="b200-180gb")), 87_136),
        (ServerConfig(engine="cpu", kv_blocks=600), 599 * 32),
        (ServerConfig(engine="cpu"), None),
        (ServerConfig(engine="gpu", model="name", kv_blocks=600), "auto"),
        (ServerConfig(engine="gpu", model="name", kv_blocks=600, max_model_len=100_000), 100_000),
        (ServerConfig(engine="gpu", model="name"), None),
        (ServerConfig(kv_blocks=1200, vllm_arguments=("--max_model_len=500",)), None),
    ],
)
def test_the_longest_request_fits_the_kv_blocks(config: ServerConfig, longest: int | str | None) -> None:
    assert longest_request(config) == longest
    command, _ = command_of(config, 8000)
    assert ("--max-model-len" in command) == (longest is not None)


@pytest.mark.parametrize(
    ("text", "message"), [("{nonsense", "not JSON: "), ("{}", "not continuum-tool-statistics version 1: ")]
)
def test_a_file_that_is_no_statistics_is_not_replaced(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text)
    said = refusal("--statistics", str(tmp_path / "mine.json"))
    assert said.startswith(f"error: {tmp_path}/mine.json: {message}")


@pytest.mark.parametrize(
    ("arguments", "key", "model"),
    [
        ((), "EMPTY", "llama-3.1-8b"),
        (("--api-key", "secret", "--served-model-name", "mine", "other"), "YOUR KEY", "mine"),
        (("--api_key=secret", "--served_model_name=mine"), "YOUR KEY", "mine"),
    ],
)
def test_the_printed_client_has_the_server_s_key_and_model(
    arguments: tuple[str, ...], key: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    line = client_line("http://h:1", ServerConfig(vllm_arguments=arguments))
    assert line == f'OpenAI(base_url="http://h:1/v1", api_key="{key}")  # model="{model}"'


def test_health_polls_are_not_logged() -> None:
    command, _ = command_of(ServerConfig(), 1)
    assert command[command.index("--disable-access-log-for-endpoints") + 1] == "/health"


def test_the_number_of_remembered_programs_is_an_option() -> None:
    assert server_config(ServeOptions(max_programs=7), {}, ()).guards.max_programs == 7
