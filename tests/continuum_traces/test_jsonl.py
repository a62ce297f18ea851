"""Trace files: round trips, and every fault named with file, line and field."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.programs.jsonl import TraceError, read_programs, too_long, validate, write_programs
from continuum_traces.programs.lines import gap_line, header_line, turn_line
from continuum_traces.schema import Program, ToolCall, Turn
from hypothesis import given, settings
from hypothesis import strategies as st

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
seconds = st.floats(0, 1e6)
calls = st.builds(ToolCall, name=names, duration_s=st.none() | seconds, start_s=seconds, digest=st.none() | names)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    output = draw(st.integers(1, 500))
    return Turn(
        new_input_tokens=draw(st.integers(1, 1000)),
        output_tokens=output,
        carried_tokens=draw(st.none() | st.integers(0, output)),
        tool_calls=tuple(draw(st.lists(calls, max_size=3))),
        gap_overhead_s=draw(seconds),
        text=draw(st.none() | st.text(max_size=20)),
    )


programs = st.lists(
    st.builds(
        Program,
        program_id=names,
        turns=st.lists(turns(), min_size=1, max_size=5).map(tuple),
        source=names,
        synthetic=st.booleans(),
        arrival_s=st.none() | seconds,
        parent_id=st.none() | names,
        parent_turn=st.none() | st.integers(0, 9),
        parent_gap_s=seconds,
        metadata=st.none() | st.dictionaries(names, st.text(max_size=20) | st.integers(-9, 9) | seconds, max_size=3),
    ),
    max_size=4,
    unique_by=lambda program: program.program_id,
)


@given(programs, st.sampled_from(["t.jsonl", "t.jsonl.gz"]))
@settings(max_examples=settings.default.max_examples // 2)
def test_round_trip_and_equal_bytes(tmp_path_factory: pytest.TempPathFactory, made: list[Program], name: str) -> None:
    path = tmp_path_factory.mktemp("trace") / name
    assert write_programs(path, made, source="test") == len(made)
    assert list(read_programs(path)) == made
    assert validate(path) == []
    first = path.read_bytes()
    write_programs(path, made, source="test")
    assert path.read_bytes() == first


GOOD_TURN = {"kind": "turn", "program_id": "p", "turn": 0, "new_input_tokens": 5, "output_tokens": 2}
GAP = {"kind": "gap", "program_id": "p"}
OPEN = {"kind": "program", "program_id": "p"}


def file_of(path: Path, *lines: Any) -> Path:
    target = path / "t.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (header_line(), *lines)]
    target.write_text("\n".join(texts) + "\n")
    return target


def test_a_gap_completes_the_turn_before_it(tmp_path: Path) -> None:
    before, now = (turn_line("p", 0, Turn(5, 2, gap_overhead_s=gap_s, text="a")) for gap_s in (0.0, 1.5))
    line = gap_line(before, now)
    assert line == {**GAP, "turn": 0, "gap_overhead_s": 1.5}
    path = file_of(tmp_path, OPEN, before, line, {**GOOD_TURN, "turn": 1})
    assert [program.turns for program in read_programs(path)] == [
        (Turn(5, 2, gap_overhead_s=1.5, text="a"), Turn(5, 2)),
    ]


def test_every_fault_is_found(tmp_path: Path) -> None:
    good = [OPEN | {"program_id": "ok"}, GOOD_TURN | {"program_id": "ok"}]
    bad = [OPEN, {**GOOD_TURN, "output_tokens": 0, "gap_overhead_s": -1}, "broken"]
    path = file_of(tmp_path, *bad, *good)
    wanted = [f"{path}:3: output_tokens: ", f"{path}:3: gap_overhead_s: ", f"{path}:4: not JSON: "]
    assert [str(fault)[: len(start)] for fault, start in zip(validate(path), wanted, strict=True)] == wanted


def test_interleaved_programs_come_out_as_they_end(tmp_path: Path) -> None:
    lines = [OPEN | {"program_id": name} for name in "ab"]
    lines += [GOOD_TURN | {"program_id": name, "turn": index} for index in range(2) for name in "ab"]
    lines.append({"kind": "end", "program_id": "b"})
    assert [p.program_id for p in read_programs(file_of(tmp_path, *lines))] == ["b", "a"]


def test_a_cut_gzip_is_named_and_what_came_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    made = [Program(f"p{i}", tuple(Turn(i + j + 1, j + 1) for j in range(10))) for i in range(200)]
    write_programs(path, made)
    path.write_bytes(path.read_bytes()[:-400])
    assert any("cut short" in str(fault) for fault in validate(path))
    programs = read_programs(path)
    assert len(list(islice(programs, 100))) == 100
    with pytest.raises(TraceError, match="cut short"):
        list(programs)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("absent.jsonl", None, "cannot read"),
        ("empty.jsonl", b"", "empty"),
        ("latin.jsonl", b"\xff\xfe\n", "UTF-8"),
        ("headless.jsonl.gz", gzip.compress(b"{}\n", mtime=0), "the first line must be the header"),
        ("plain.jsonl.gz", b"{}\n", "gzip"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TraceError, match=said):
        list(read_programs(tmp_path / name))
    with pytest.raises(TraceError, match="cannot write"):
        write_programs(tmp_path / "absent" / "t.jsonl", [])


def test_turns_beyond_a_context() -> None:
    program = Program("p", (Turn(100, 20), Turn(10, 8)))
    assert too_long(program, 138) is None
    assert too_long(program, 137) == "program 'p', turn 1: prompt and output are 138 tokens"
