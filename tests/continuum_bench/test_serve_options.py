"""What ``continuum-bench serve`` refuses before vLLM is started."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench, refused
from continuum_bench.errors import BenchError
from continuum_bench.options.serve import ServeOptions
from continuum_bench.serve.config import server_config
from continuum_server import record_file
from continuum_server.defaults import KEY_WEIGHTS, TENANT_HEADER
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import cause_in, client_line
from continuum_server.server_command import command_of, has_random_weights, longest_request, scheme_of
from continuum_server.server_config import ServerConfig, ServerError
from continuum_server.vllm_plugin import parser_names
from continuum_server.vllm_plugin.recorder import EventRecorder


class StartedError(Exception):
    """A server would have been started."""


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise StartedError

    monkeypatch.setattr("continuum_server.launcher.subprocess.Popen", start)


def test_limits_are_allowed_and_folders_are_made(tmp_path: Path) -> None:
    guards = ["--max-ttl-s", 0, "--max-pinned-share", 1, "--max-pins-per-client", 0, "--pins-yield-to", "never"]
    files = ["--log", tmp_path / "a/log", "--statistics", tmp_path / "b/tools.json", "--record", tmp_path / "c/record"]
    assert isinstance(bench("serve", "--port", 0, *guards, *files).exception, StartedError)
    assert all((tmp_path / name).is_dir() for name in ("a", "b", "c/record"))


def test_files_that_another_server_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "PATIENCE_S", 0.0)
    theirs, lock = EventRecorder(tmp_path), record_file.lock(record_file.lock_of(tmp_path / "tools.json"))
    try:
        record = refused("serve", "--port", 0, "--record", tmp_path)
        statistics = refused("serve", "--port", 0, "--policy", "continuum", "--statistics", tmp_path / "tools.json")
    finally:
        theirs.close()
        os.close(lock)
    words = "another server writes this file; stop it or choose another\n"
    assert record == f"{tmp_path}/scheduler_timestamps.jsonl: {words}"
    assert statistics == f"{tmp_path}/tools.json.lock: {words}"


@pytest.mark.parametrize("place", [".", "..", "folder"])
def test_statistics_are_a_file(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    said = refused("serve", "--port", 0, "--policy", "continuum", "--statistics", place)
    assert said == f"--statistics {place}: is a folder; name a file\n"


@pytest.mark.parametrize(
    ("model", "files", "is_random"),
    [
        (None, (), True),
        ("random-25m", (), True),
        ("folder", ("config.json",), True),
        ("folder", ("config.json", "model.safetensors"), False),
        ("someone/small-model", (), False),
    ],
)
def test_only_a_model_without_weights_gets_random_ones(
    model: str | None, files: Sequence[str], is_random: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    config = ServerConfig(engine="cpu", model=str(tmp_path) if model == "folder" else model)
    command, environment = command_of(config, 8000)
    assert has_random_weights(config) == is_random == ("dummy" in command)
    assert ("HF_HUB_OFFLINE" in environment) == (model != "someone/small-model")  # a name is looked up
    assert not has_random_weights(replace(config, engine="gpu"))


def test_a_folder_of_models_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot write the model's folder: Not a directory" in refused("serve", "--port", 0)


@pytest.mark.parametrize(
    ("given", "served"), [("qwen3-32b", "qwen3-32b"), ("Qwen/Qwen3-32B", "qwen3-32b Qwen/Qwen3-32B")]
)
def test_an_emulated_model_has_its_short_name_and_the_name_that_was_given(given: str, served: str) -> None:
    command, _ = command_of(ServerConfig(engine="emulated", model=given, emulated=EmulatedSettings(gpu="h200")), 8000)
    assert f" --served-model-name {served} --" in " ".join(command)


@pytest.mark.parametrize(
    ("arguments", "parser"),
    [
        ((), "hermes"),
        (("--tool-call-parser", "mistral"), "mistral"),
        (("--tool_call_parser=llama3_json", "--reasoning-parser", "qwen3"), "llama3_json"),
        (("--tool-parser-plugin", "mine.py", "--tool-call-parser", "mine"), "mine"),
        (("--tool-call-parser", "mine", "--tool-parser-p=mine.py"), "mine"),
        (("--config", "vllm.yaml", "--tool-call-parser", "mine"), "mine"),
        (("--reasoning-parser-plugin", "mine.py", "--reasoning-parser", "mine"), "hermes"),
        (("--reasoning-parser", ""), "hermes"),  # vLLM's default
    ],
)
def test_the_plugin_reads_tool_calls_with_the_parser_that_vllm_uses(arguments: tuple[str, ...], parser: str) -> None:
    command, _ = command_of(ServerConfig(vllm_arguments=arguments), 1)
    assert command[command.index("--tool-call-parser") + 1] == parser
    assert json.loads(command[command.index("--additional-config") + 1])["continuum"]["tool_parser"] == parser


def test_parsers_of_another_packages_plugin_are_vllm_s_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"hermes", "mistral", "openai"} <= {*parser_names.names_of(parser_names.TOOL_CALLS)}
    assert "qwen3" in parser_names.names_of(parser_names.REASONING)
    theirs = EntryPoint("theirs", "theirs:register", "vllm.general_plugins")
    monkeypatch.setattr(parser_names, "entry_points", lambda group: [theirs])
    assert parser_names.names_of(parser_names.TOOL_CALLS) == []
    command_of(ServerConfig(tool_call_parser="theirs"), 1)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (["all is well"], None),
        (["(A pid=1) WARNING [a.py:2] errors like `OSError: [Errno 24]`", "    raise ValueError("], None),
        (["api_server.py: error: unrecognized arguments: --x", "usage: ..."], "unrecognized arguments: --x"),
        (["KeyError: 'a'", "ValueError: b", "    at: c"], "ValueError: b"),
        (["some.module.DeadError: a"], "some.module.DeadError: a"),
        (["(EngineCore pid=1) ERROR 11-30 [core.py:1] OSError: a: b"], "OSError: a: b"),
        (["OSError: a", "RuntimeError: Engine core initialization failed. See root cause above."], "OSError: a"),
        (["OSError: a", "exceptions.EngineDeadError: EngineCore: See stack trace (above)."], "OSError: a"),
        (["ValidationError: 1 error for X", "  Value error, no! [type=value_error, input]"], "Value error, no!"),
    ],
)
def test_of_a_log_its_cause_is_said(log: list[str], cause: str | None) -> None:
    assert cause_in(log) == cause


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (ServerConfig(), None),  # the model's own
        (ServerConfig(kv_blocks=1200), 1199 * 16),  # vLLM keeps one block for itself
        (ServerConfig(kv_blocks=1200, max_model_len=100), 100),
        (ServerConfig(kv_blocks=1200, block_size=32), 1199 * 32),
        (ServerConfig(model="llama-3.1-70b", emulated=EmulatedSettings(gpu="b200-180gb")), 87_136),
        (ServerConfig(engine="cpu", kv_blocks=600), 599 * 32),
        (ServerConfig(engine="cpu"), None),
        (ServerConfig(engine="gpu", model="name", kv_blocks=600), "auto"),
        (ServerConfig(engine="gpu", model="name"), None),
        (ServerConfig(kv_blocks=1200, vllm_arguments=("--max_model_len=500",)), None),
    ],
)
def test_the_longest_request_fits_the_kv_blocks(config: ServerConfig, longest: int | str | None) -> None:
    assert longest_request(config) == longest
    command, _ = command_of(config, 8000)
    assert ("--max-model-len" in command) == (longest is not None)


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


def test_health_polls_are_not_logged_and_guards_are_options() -> None:
    command, _ = command_of(ServerConfig(), 1)
    assert command[command.index("--disable-access-log-for-endpoints") + 1] == "/health"
    assert server_config(ServeOptions(max_programs=7), {}, ()).guards.max_programs == 7


def test_weights_and_the_tenant_s_header_reach_the_server_without_being_logged() -> None:
    """vLLM logs its arguments, but not its environment."""
    options = ServeOptions(key_weight=["secret-a=3", "b=c=0.5"], tenant_header="x-tenant-id")
    command, environment = command_of(server_config(options, {}, ("--api-key", "gateway")), 1)
    assert json.loads(environment[KEY_WEIGHTS]) == {"secret-a": 3.0, "b=c": 0.5}
    assert environment[TENANT_HEADER] == "x-tenant-id"
    assert "secret-a" not in " ".join(command)


@pytest.mark.parametrize("given", [{"key_weight": ["a=3"]}, {"tenant_header": "x-tenant-id"}])
def test_what_concerns_keys_needs_keys(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(ServerError, match="needs API keys"):
        command_of(server_config(ServeOptions(**given), {}, ()), 1)


@pytest.mark.parametrize("weight", ["a", "=3", "a=", "a=x", "a=0", "a=-1", "a=inf", "a=nan"])
def test_a_weight_is_above_zero(weight: str) -> None:
    with pytest.raises(BenchError, match="number 1"):
        server_config(ServeOptions(key_weight=[weight]), {}, ())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--uds", "/tmp/socket"), "--uds: serve needs a server that answers HTTP"),
        (("--port=8",), "--port: is an option of serve, which must know it; give it before --"),
        (("--data_parallel_size", "2"), "--data-parallel-size: is an option of serve"),
        (("--grpc",), "--grpc: serve needs a server that answers HTTP"),
        (("--ssl_cert_reqs=2", "--ssl-certfile", "c"), "--ssl-cert-reqs 2: serve has no client certificate"),
    ],
)
def test_a_server_that_nobody_could_ask_over_http_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ServerError, match=words):
        command_of(ServerConfig(vllm_arguments=arguments), 8000)


@pytest.mark.parametrize(
    ("arguments", "scheme"),
    [((), "http"), (("--ssl-certfile", "c", "--ssl_keyfile=k"), "https"), (("--ssl-cert-reqs", "1"), "http")],
)
def test_a_server_with_a_certificate_answers_https(arguments: tuple[str, ...], scheme: str) -> None:
    assert scheme_of(ServerConfig(vllm_arguments=arguments)) == scheme


def test_under_stock_it_is_said_what_does_nothing(tmp_path: Path) -> None:
    given = ["--record", tmp_path / "record", "--session-header", "X-Job", "--log", tmp_path / "log"]
    stock = bench("serve", "--port", 0, "--policy", "stock", *given)
    assert isinstance(stock.exception, StartedError)
    assert "--record, --session-header do nothing: policy stock is vLLM's own scheduler" in stock.stderr
    assert "nothing" not in bench("serve", "--port", 0, "--policy", "vllm", *given).stderr
    guards = bench("serve", "--port", 0, "--policy", "stock", "--max-ttl-s", 5, "--fair", "none", "--recognise", "ids")
    assert guards.stderr.startswith("--recognise, --max-ttl-s, --fair do nothing: policy stock"), guards.stderr
    assert bench("serve", "--port", 0, "--policy", "stock").stderr == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--fair", "none", "--key-lag", 2), "--key-lag does nothing: with --fair none the order"),
        (("--fair", "keys", "--key-lag", 2), ""),
        (("--statistics", "tools.json"), "--statistics does nothing: policy working-set learns no times of tools"),
        (("--statistics", "tools.json", "--policy", "continuum"), ""),
    ],
)
def test_options_that_do_nothing_are_named(
    given: Sequence[Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bench("serve", "--port", 0, *given).stderr
    assert (said[: len(says)], bool(said)) == (says, bool(says))


@pytest.mark.parametrize("name", ["", "X Job", "x:y", "x" * 129, "héader"])
def test_a_session_header_is_a_headers_name(name: str) -> None:
    assert refused("serve", "--session-header", name).startswith(
        f"--session-header {name}: expected the name of a header"
    )


def test_connections_are_kept_while_tools_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", raising=False)
    assert command_of(ServerConfig(), 8000)[1]["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "600"
    monkeypatch.setenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "7")
    assert command_of(ServerConfig(), 8000)[1]["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "7"
