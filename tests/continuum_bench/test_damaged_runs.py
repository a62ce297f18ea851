"""Files of a whole run that were cut, changed or lost later: none ends in a traceback (what they say: mistakes.txt)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bench_cli import bench
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recorded_runs import write_recorded

T, S, E, M = "turns.jsonl", "scheduler_timestamps.jsonl", "engine.json", "manifest.json"


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
