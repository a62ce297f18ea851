"""Files of a complete run that were cut, changed or lost later: commands name the file, the line and the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_cli import bench, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded_runs import write_recorded

COMMANDS = ("analyze", "compare", "report")


def cut_line(text: str) -> str:
    return text[:-20]


def cut_rows(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


def with_field(name: str, value: Any) -> Callable[[str], str]:
    """The second line, or the whole file, with another value of a field; ``a.b`` is a field of a field."""

    def change(text: str) -> str:
        whole = text.startswith("{\n")
        lines = [text] if whole else text.splitlines(keepends=True)
        at = 0 if whole else 1
        data = json.loads(lines[at])
        *outer, last = name.split(".", 1)
        inner = data
        for each in outer:
            inner = inner[each]
        inner[last] = value
        lines[at] = json.dumps(data, indent=2 if whole else None) + "\n"
        return "".join(lines)

    return change


T, S, E, M = "turns.jsonl", "scheduler_timestamps.jsonl", "engine.json", "manifest.json"
DAMAGES: list[tuple[str, Callable[[str], str], str]] = [
    (T, cut_line, "turns.jsonl:2: the line ends too soon, but the run was complete: the file was cut"),
    (T, cut_rows, "turns.jsonl: 1 lines, but the run wrote 2: the file was cut or changed later"),
    (S, cut_rows, "scheduler_timestamps.jsonl: 5 lines, but the run wrote 6"),
    (T, with_field("due_s", "soon"), "turns.jsonl:2: due_s: 'soon' is not a number"),
    (E, lambda text: text[:9], "engine.json: not JSON"),
    (E, with_field("rows", 3), "engine.json: rows: expected a number for each file"),
    (E, with_field("rows.../x", 3), "engine.json: rows: '../x' is no record of a run (scheduler"),
    (M, with_field("workload.jps", "fast"), "manifest.json: workload.jps: 'fast' is not a number"),
]


@pytest.mark.parametrize(("name", "damage", "said"), DAMAGES)
def test_damage_is_named(tmp_path: Path, name: str, damage: Callable[[str], str], said: str) -> None:
    run = write_recorded(tmp_path / "r", "vllm", 0, [2.0, 3.0])
    (run / name).write_text(damage((run / name).read_text()))
    for command in COMMANDS:
        assert said in refused(command, run), command


@pytest.mark.parametrize("name", [T, S])
def test_a_lost_file_is_missed(tmp_path: Path, name: str) -> None:
    run = write_recorded(tmp_path / "r", "vllm", 0, [2.0])
    (run / name).unlink()
    for command in COMMANDS:
        assert f"{run / name}: missing, but the run wrote it" in refused(command, run), command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recorded(tmp_path_factory.mktemp("whole") / "r", "vllm", 0, [2.0, 3.0], token_gaps_ms={"10": 10})


@given(
    name=st.sampled_from([T, S, M, E]),
    at=st.floats(0, 1),
    kept=st.sampled_from([0, 1, 40]),
    instead=st.sampled_from([b"", b"x", b"\xff", b"null", b"-1", b"9" * 400, b"[" * 5000, b'"', b"}\n{"]),
)
@settings(max_examples=settings.default.max_examples // 2)
@example(name=T, at=0.984375, kept=1, instead=b"-1")
@example(name=T, at=0.984375, kept=1, instead=b"9" * 400)
@example(name=E, at=0.5, kept=0, instead=b"9" * 400)
def test_no_damage_ends_in_a_traceback(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, at: float, kept: int, instead: bytes
) -> None:
    """A piece of a file is replaced by something else, or the file ends there."""
    run = tmp_path_factory.mktemp("damaged") / "r"
    shutil.copytree(whole, run)
    data = (run / name).read_bytes()
    place = round(at * len(data))
    (run / name).write_bytes(data[:place] + instead + (data[place + kept :] if kept else b""))
    for command in ("analyze", "compare"):
        done = bench(command, run)
        assert done.exit_code in (0, 2), done.output
        assert isinstance(done.exception, SystemExit | None), repr(done.exception)


def test_a_run_that_was_cut_short_is_said_to_be(tmp_path: Path) -> None:
    run = write_recorded(tmp_path / "e" / "vllm-seed0", "vllm", 0, [2.0])
    assert "cut short" not in bench("analyze", run).stderr
    (run / "engine.json").unlink()
    assert "cut short" in bench("analyze", run).stderr
    said = bench("compare", tmp_path / "e").stderr
    assert said.endswith("e: no finished run there; 1 there were cut short, which `analyze` shows\n")
