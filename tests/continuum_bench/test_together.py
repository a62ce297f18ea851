"""Options that do nothing beside the others are refused, and files that cannot be written, before any work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer
from continuum_bench.cli import app
from continuum_bench.options.declare import declared
from continuum_bench.options.run import RunOptions
from continuum_bench.options.together import Rule, rules_of, settled
from typer.testing import CliRunner


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("traces synth OUT --task-correlation 0.5", "--task-correlation: needs --runs-per-task"),
        ("swebench --hint-error 1", "--hint-error: needs --hints"),
        ("swebench --format otel", "--format: needs --traces"),
        ("swebench --router sticky", "--router: needs --replicas"),
        ("swebench --kill-replica 0@5", "--kill-replica: needs --replicas"),
        ("swebench --label x", "--label: needs --base-url"),
        ("swebench --jps 1 --arrivals recorded:2", "--jps: not with --arrivals: these arrivals have a rate of"),
        ("swebench --base-url http://x/v1 --gpu h200", "--gpu: not with --base-url: the server decides that"),
        ("swebench --base-url http://x/v1 --policy vllm", "--policy: not with --base-url: the server decides that"),
        ("swebench --base-url http://x/v1 --kv-blocks 9", "--kv-blocks: not with --base-url: the server decides that"),
        ("swebench --base-url http://x/v1 --offload dram-1", "--offload: not with --base-url: the server decides"),
        ("serve --engine cpu --time-scale 2", "--time-scale: needs --engine emulated"),
        ("serve --health-port 0", "--health-port: needs --replicas"),
        ("profile --out OUT --repeats 9", "--repeats: needs --base-url"),
        ("profile --out OUT --base-url http://x/v1 --gpu h200", "--gpu: not with --base-url: the server decides"),
        ("analyze . --json --table pins", "--json: not with --table: --format json writes a table as JSON"),
        ("analyze . --misses --table pins", "--misses: not with --table: --table misses is the table of them"),
        ("figure tool-times --limit 2", "figure tool-times: --limit 2: only for figure goodput"),
        ("traces convert . OUT --to preview --format otel", "--format: not with --to: --format is for traces"),
        (
            "step-times build --gpu h100-80gb --model qwen3-8b --name x",
            "--name x: only for a config.json; qwen3-8b has",
        ),
        ("compare . --junit OUT", "--junit: needs --fail-if"),
        ("compare . --point-estimate", "--point-estimate: needs --fail-if"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(command: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [word.replace("OUT", str(tmp_path / "out")) for word in command.split()])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {said}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "compare . --fail-if jct_mean>1 --junit FILE",
        "compare . --format csv --out FILE",
        "analyze . --out FILE",
        "traces synth FILE",
        "profile --out FILE",
        "validate log.jsonl --report FILE",
    ],
)
def test_a_file_that_cannot_be_written_is_found_first(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "missing" / "x", tmp_path / "file" / "x", tmp_path):
        done = CliRunner().invoke(app, [word.replace("FILE", str(wrong)) for word in command.split()])
        assert done.exit_code == 2
        assert f"{wrong}: cannot write there; name a file in a folder that exists" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", [None, "{}", '{"schema": "x"}', "{"])
def test_files_that_a_policy_reads_are_read_before_the_engine_starts(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "tool_statistics.json"
    if text is not None:
        file.write_text(text)
    option = f"continuum.statistics={file}"
    for command in (["swebench", "--policy", "continuum"], ["serve", "--port", "0", "--policy", "continuum"]):
        done = CliRunner().invoke(app, [*command, "--policy-option", option])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert f"option statistics = {file}: " in done.stderr
    grid = f"policy={{policy: continuum; options: {{statistics: {file}}}}}".replace(";", ",")
    (tmp_path / "grid.yaml").write_text(grid.replace("=", ": ", 1))
    swept = CliRunner().invoke(app, ["sweep", str(tmp_path / "grid.yaml"), "--dry-run"])
    assert swept.exit_code == 2
    assert "grid.yaml: policy: policy 'continuum': option statistics" in swept.stderr
    records = ["swebench", "--base-url", "http://x/v1", "--scheduler-records", str(tmp_path / "missing")]
    assert "missing: no such folder" in CliRunner().invoke(app, records).stderr


def test_a_sweeps_server_gets_no_option_that_does_nothing() -> None:
    """A grid may combine hints [none, tool_s] with errors [0, 1]."""
    crossed = RunOptions(hint_error="1", jps=3.0, arrivals="concurrency:2")
    assert settled(crossed) == RunOptions(arrivals="concurrency:2")
    assert settled(RunOptions(hints="tool_s", hint_error="1")).hint_error == "1"


def test_rules_name_options_that_exist() -> None:
    """A rule about an option that no command has beside it would never be broken."""
    beside: dict[tuple[str, Rule], bool] = {}

    def visit(command: Any) -> None:
        for inner in getattr(command, "commands", {}).values():
            visit(inner)
        names = {each.name for each in command.params}
        for kind in get_type_hints(getattr(command.callback, "__wrapped__", visit), include_extras=True).values():
            for name, rule in _rules(kind):
                beside[name, rule] = beside.get((name, rule), False) or rule.other in names

    visit(typer.main.get_command(app))
    assert len(beside) > 20
    assert [each for each, found in beside.items() if not found] == []


def _rules(kind: Any) -> Iterator[tuple[str, Rule]]:
    for option in declared(kind).values() if is_dataclass(kind) else ():
        yield from ((option.name, rule) for rule in rules_of(option))
