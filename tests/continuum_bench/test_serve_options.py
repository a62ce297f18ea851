"""What ``continuum-bench serve`` refuses before vLLM is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continuum_bench.cli import app
from continuum_server import recorder
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
        ("--max-ttl-s", "-1.0", "must be a number of seconds, 0 or more and finite"),
        ("--max-ttl-s", "nan", "must be a number of seconds, 0 or more and finite"),
        ("--max-ttl-s", "inf", "must be a number of seconds, 0 or more and finite"),
        ("--max-pinned-share", "-0.1", "must be a number from 0 to 1"),
        ("--max-pinned-share", "1.5", "must be a number from 0 to 1"),
        ("--max-pins-per-client", "-2", "must be a whole number, 0 or more; none: no limit"),
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
    assert done.stderr.startswith("error: --additional-config: the server's settings go there; ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("replicas", ["1", "2"])
@pytest.mark.parametrize(
    ("where", "message"),
    [
        (["--port", "99999"], "port 99999: must be from 0 (a free one) to 65535"),
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
    monkeypatch.setattr(recorder, "PATIENCE_S", 0.0)
    theirs = recorder.Recorder(tmp_path)
    try:
        done = runner.invoke(app, ["serve", "--port", "0", "--record", str(tmp_path)])
    finally:
        theirs.close()
    assert done.exit_code == 2
    assert done.stderr == f"error: {tmp_path}/scheduler_timestamps.jsonl: another server writes there\n"


def test_folders_are_made(tmp_path: Path) -> None:
    files = ["--log", str(tmp_path / "a" / "log"), "--statistics", str(tmp_path / "b" / "tools.json")]
    done = runner.invoke(app, ["serve", "--port", "0", "--record", str(tmp_path / "c" / "record"), *files])
    assert isinstance(done.exception, StartedError)
    assert all((tmp_path / name).is_dir() for name in ("a", "b", "c/record"))
