"""Other formats in and out: real files where they are at hand, hand-written ones always."""

from __future__ import annotations

import gzip
import json
import os
import re
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_server.vllm_plugin.tool_calls import tool_key as server_key
from continuum_traces.exporters import export, mooncake_rows
from continuum_traces.importers.block_ids import BRANCHES, SharedBlocks
from continuum_traces.importers.described import Imported, RequestUsage
from continuum_traces.importers.registry import IMPORTERS, NEAREST, ImportLog, LeftOut, read_any, recognise
from continuum_traces.importers.terminal_bench import keystrokes, typed_commands
from continuum_traces.programs.assumptions import Assumptions, from_header
from continuum_traces.programs.jsonl import TraceError, read_header, read_programs, write_programs
from continuum_traces.programs.synth import load_profile, synthesize
from continuum_traces.schema import Program, ToolCall, Turn
from continuum_traces.shell import first_program
from hypothesis import given
from hypothesis import strategies as st


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ------------------------------------------------------------------------------------------- real files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "programs", "turns"),
    [
        ("sweagent_glm45_bs4.jsonl.gz", 64, 2832),
        ("mswe_deepseek_chat_test_1-100.jsonl.gz", 99, 7924),
        ("derived_paperlike_swe100.jsonl.gz", 100, 1099),
    ],
)
def test_numeric_prompts_to_the_token(real_traces: Path, name: str, programs: int, turns: int) -> None:
    made = list(read_any(real_traces / name))
    recorded: dict[str, list[int]] = {}
    with gzip.open(real_traces / name, "rt") as rows:
        for row in map(json.loads, rows):
            recorded.setdefault(row["program_id"], []).append(row["prompt_tokens"])
    assert (len(made), sum(len(p.turns) for p in made)) == (programs, turns)
    assert {p.program_id: p.prompt_tokens() for p in made} == recorded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("originals", "numbers", "compared"),
    [
        ("mini_swe_agent/trajectories.tar.xz", "mswe_deepseek_chat_dev", 20),
        ("openhands/multi_swe_bench_examples.output.jsonl.xz", "openhands", 1),
    ],
)
def test_originals_agree_with_their_numbers(real_traces: Path, originals: str, numbers: str, compared: int) -> None:
    """The originals and the numeric files were made from the same runs by different programs."""
    numeric = {p.program_id.rsplit("/", 1)[-1]: p for p in read_any(real_traces / f"{numbers}.jsonl.gz")}
    pairs = [(p, numeric[p.program_id]) for p in read_any(real_traces / "raw" / originals) if p.program_id in numeric]
    assert len(pairs) >= compared
    for program, other in pairs:
        turns = program.turns[: len(other.turns)]  # OpenHands' originals log a last answer more
        assert program.prompt_tokens()[: len(turns)] == other.prompt_tokens()
        assert [turn.output_tokens for turn in turns] == [turn.output_tokens for turn in other.turns]
        ours, theirs = (sum(turn.gap_s for turn in each[:-1]) for each in (turns, other.turns))
        assert ours == pytest.approx(theirs, rel=0.02)


def test_bfcl_heads(real_traces: Path) -> None:
    first, *_ = read_any(real_traces / "raw/bfcl/heads.jsonl")
    assert first.prompt_tokens() == [1093, 2292, 6552, 7872, 25846, 26533, 44010, 44801, 47823]


# ------------------------------------------------------------------------------------- hand-written files

SAMPLES = Path(__file__).with_name("samples")
"""Files of each format, by what is special. System prompts have 720 characters: 180 tokens by estimate, 181 with the
line feed behind them."""
IMPORTED = {file.name.split(".")[0]: file for file in sorted(Path(__file__).with_name("imported").iterdir())}
"""What is to be read of each sample, as a trace of ours: ``SAMPLE.FORMAT.jsonl``. ``REWRITE=1`` in the environment
writes what is read now."""


def form_of(name: str) -> str:
    return IMPORTED[name].name.split(".")[1]


def files_of(name: str) -> list[Path]:
    return sorted(file for file in (SAMPLES / name).rglob("*") if file.is_file())


def _anywhere(assumptions: Assumptions) -> Assumptions:
    """Return the assumptions without the place of this checkout."""
    return Assumptions(replace(each, example=each.example.replace(f"{SAMPLES}{os.sep}", "")) for each in assumptions)


@pytest.mark.parametrize("name", IMPORTED)
def test_each_format(name: str) -> None:
    log, form = ImportLog(), form_of(name)
    programs = list(read_any(SAMPLES / name, None, log))
    assert {recognise(file).importer.name for file in files_of(name)} == {form}
    if os.environ.get("REWRITE"):
        write_programs(IMPORTED[name], programs, _anywhere(log.assumptions))
    assert list(from_header(read_header(IMPORTED[name]))) == list(_anywhere(log.assumptions))
    assert programs == list(read_any(SAMPLES / name, form)) == list(read_programs(IMPORTED[name]))
    assert set(map(form_of, IMPORTED)) == set(IMPORTERS)


def test_each_format_has_a_row_in_the_documentation() -> None:
    """Its files, and what is exact, estimated and left out."""
    page = (Path(__file__).parents[2] / "docs/trace-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^- (`.+?`) \(.+\): .+\.$", page, flags=re.M)
    assert sorted(name.strip("`") for row in rows for name in row.split(", ")) == sorted(
        IMPORTERS.keys() - {"continuum"}
    )


def test_the_server_reads_terminal_bench_s_answers_as_the_importer_does() -> None:
    for typed in (["cd /app\n", "make -j2\n"], ["cat > x <<'E'\nrm\nE\n", "python3 x"], ["FOO=1 timeout 5 pytest\n"]):
        answer = json.dumps({"analysis": "a {b}", "plan": "p", "commands": [{"keystrokes": keys} for keys in typed]})
        assert first_program(keystrokes(list(typed_commands(answer)))) == server_key(answer)
        assert first_program(keystrokes(list(typed_commands(f"```json\n{answer}\n```")))) == server_key(answer)
    assert list(typed_commands('{"commands": "ls"} no')) == []


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """``value`` with one part of it replaced or left out."""
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 3)) == 0:
        return draw(
            st.sampled_from([None, True, -1, 10**400, float("inf"), 1e300, 7, "", "x", "2024", [], {}, [[1]], [5]])
        )
    key = draw(st.sampled_from(list(value) if isinstance(value, dict) else range(len(value))))
    changed = copy(value)
    changed[key] = draw(damaged(value[key]))
    return changed


@pytest.mark.parametrize("name", [name for name in IMPORTED if "table" not in name])
@given(data=st.data())
def test_damaged_fields(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    """A fault is named, or the programs are good ones: they are written and read again as they are."""
    form, sample = form_of(name), files_of(name)[0]
    text = sample.read_text(encoding="utf-8")
    rows = [json.loads(text)] if sample.suffix == ".json" else [json.loads(line) for line in text.splitlines()]
    at = data.draw(st.integers(0, len(rows) - 1))
    folder = tmp_path_factory.mktemp("damaged")
    file = lines(folder / "in.json", *rows[:at], data.draw(damaged(rows[at])), *rows[at + 1 :])
    try:
        programs = list(read_any(file, form))
    except TraceError as error:
        assert str(file) in str(error)  # noqa: PT017 - a damaged part may also be one that nobody reads
        return
    write_programs(folder / "out.jsonl", programs)
    assert list(read_programs(folder / "out.jsonl")) == programs


@pytest.mark.parametrize("form", sorted(IMPORTERS))
def test_no_reader_falls_over_rubbish(tmp_path: Path, form: str) -> None:
    for name, content in (
        ("a.jsonl", b"not json\n"),
        ("b.jsonl", b"[1,2]\n"),
        ("c.jsonl.gz", b"\x1f\x8bxx"),
        ("d", b"\xff"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceError):
            list(read_any(tmp_path / name, form))
    with pytest.raises(TraceError):
        list(read_any(tmp_path / "absent", form))


# -------------------------------------------------------------------------------------------- exporters


@pytest.mark.parametrize(("form", "kept"), [("mooncake", 1024), ("agentic-mooncake", 1024), ("dynamo", 1152)])
def test_a_round_trip_keeps_lengths_gaps_and_shared_blocks(tmp_path: Path, form: str, kept: int) -> None:
    programs = synthesize(load_profile("swebench"), 8, 1)
    rewritten = (Turn(3000, 100), Turn(900, 50), Turn(400, 20, kept_tokens=1200), Turn(600, 10))
    programs.append(Program("rewritten", rewritten, shared_prefix_id="other", shared_prefix_tokens=2000))
    programs.append(replace(programs[-1], program_id="again"))
    export(tmp_path / "x.jsonl", programs, form)
    back = list(read_any(tmp_path / "x.jsonl"))
    assert [p.program_id for p in back] == [p.program_id for p in programs]
    for ours, theirs in zip(programs, back, strict=True):
        assert theirs.prompt_tokens() == ours.prompt_tokens()
        assert [t.gap_s for t in theirs.turns] == pytest.approx([t.gap_s for t in ours.turns], abs=1e-5)
    assert [turn.kept_tokens for turn in back[-1].turns] == [None, None, kept, None]
    export(tmp_path / "y.jsonl", back, form)
    ids = [
        [row.get("hash_ids") or row.get("request") for row in map(json.loads, (tmp_path / name).open())]
        for name in ("x.jsonl", "y.jsonl")
    ]
    assert ids[0] == ids[1]


def test_dynamo_s_records_carry_tools_reuse_and_ids(tmp_path: Path) -> None:
    turns = (
        Turn(1000, 200, tool_calls=(ToolCall("a", 1.5), ToolCall("b", 0.25, start_s=2.0)), cached_tokens=64, llm_s=0.5),
        Turn(500, 200, carried_tokens=50, tool_calls=(ToolCall("c"),), gap_overhead_s=0.75),
        Turn(500, 10, tool_calls=(ToolCall("d", 0.1),)),
    )
    programs = [Program("p", turns, arrival_s=1.0, model="m"), Program("q", turns[:1], arrival_s=1.25, parent_id="p")]
    export(tmp_path / "x.jsonl", programs, "dynamo")
    back, child = read_any(tmp_path / "x.jsonl")
    # The calls that were not timed share their gap. Where an answer is not carried, its tokens count as new input.
    assert back.turns == (
        turns[0],
        Turn(500, 200, tool_calls=(ToolCall("c", 0.75),), llm_s=0.001),
        Turn(550, 10, kept_tokens=1700, tool_calls=(ToolCall("d", 0.1),), llm_s=0.001),
    )
    assert (back.model, child.parent_id, child.arrival_s) == ("m", "p", 0.25)
    assert back.reusable_tokens() == programs[0].reusable_tokens()


def test_dynamo_s_files_are_one_trace(tmp_path: Path) -> None:
    """Dynamo begins a new file when one is full, in the middle of a session; a copy among them is found."""
    text = (SAMPLES / "requests/trace.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for number, part in enumerate((text[:2], text[2:5], text[5:])):
        with gzip.open(tmp_path / f"t.00000{number}.jsonl.gz", "wt") as file:
            file.writelines(part)
    assert list(read_any(tmp_path)) == list(read_any(SAMPLES / "requests"))
    (tmp_path / "copy.jsonl").write_text(text[0])
    with pytest.raises(TraceError, match=r"000000.jsonl.gz:1: request: request_id: '.*' is also at .*copy.jsonl:1"):
        list(read_any(tmp_path))


def moon(length: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"input_length": length, "output_length": 5, "hash_ids": ids, **more}


def test_equal_block_ids_are_a_shared_prefix(tmp_path: Path) -> None:
    one = [moon(8192, [*range(15), 1000 + n]) for n in range(3)]
    other = [moon(1100, [500, 501, 600 + n]) for n in range(2)]
    programs = list(read_any(lines(tmp_path / "m.jsonl", *one, *other, moon(100, [900]))))
    assert [p.shared_prefix_tokens for p in programs] == [7680] * 3 + [1024] * 2 + [0]
    assert len({p.shared_prefix_id for p in programs}) == 3
    assert {p.source for p in programs} == {"mooncake"}


def test_prefixes_that_branch_twice_say_what_is_lost(tmp_path: Path) -> None:
    """Two groups of three share six blocks each, and all six share one: one level is kept, 24 of 25 blocks."""
    rows = [
        moon(4096, [0, *(10 * g + n for n in range(1, 5)), 90 + g, 100 + 10 * g + k]) for g in (1, 2) for k in range(3)
    ]
    log = ImportLog()
    programs = list(read_any(lines(tmp_path / "m.jsonl", *rows), None, log))
    assert len({p.shared_prefix_id for p in programs}) == 2
    assert [(each.text, each.count) for each in log.assumptions] == [(BRANCHES, 1)]


@pytest.mark.parametrize(
    ("rows", "prompts", "how"),
    [
        ([{}, {}, {}], [300, 455, 610], "each row added to the rows before it"),
        ([{"context_mode": "deltas_without_responses"}] * 3, [300, 455, 610], "each row added to the rows before it"),
        ([{"context_mode": "message_array_with_responses"}] * 3, [300, 150, 150], "each row read as a whole prompt"),
        ([{"hash_ids": [7]}, {"hash_ids": [7]}, {}], [300, 150, 150], "each row read as a whole prompt"),
        ([{"hash_ids": [7]}, {"hash_ids": [8]}, {}], [300, 455, 610], "each row added to the rows before it"),
    ],
)
def test_rows_of_a_session_are_read_as_the_format_says(
    tmp_path: Path, rows: list[dict[str, Any]], prompts: list[int], how: str
) -> None:
    lengths = [{"session_id": "s", "input_length": tokens, "output_length": 5} for tokens in (300, 150, 150)]
    session = [length | row for length, row in zip(lengths, rows, strict=True)]
    log = ImportLog()
    (program,) = read_any(lines(tmp_path / "m.jsonl", *session), None, log)
    assert program.prompt_tokens() == prompts
    assert [each.text for each in log.assumptions if each.thing == "session"] == [how]


def test_hashes_show_exactly_the_shared_prefix() -> None:
    turns = (Turn(1000, 100, carried_tokens=40), Turn(500, 50), Turn(300, 10))
    programs = [Program(name, turns, shared_prefix_id="system", shared_prefix_tokens=600) for name in ("a", "b")]
    rows = list(mooncake_rows(programs, agentic=True, block_tokens=100))
    hashes = [row["hash_ids"] for row in rows]
    assert hashes[0][:6] == hashes[3][:6]  # the system prompt
    assert hashes[0][6] != hashes[3][6]
    assert hashes[1][:10] == hashes[0]  # the whole first prompt: 1000 tokens
    assert hashes[2][:15] == hashes[1][:15]  # prompt of 1540: 15 full blocks and a part
    assert len(set(hashes[2])) == len(hashes[2])
    assert rows[1]["wait_for"] == ["a/0"]


# ---------------------------------------------------------------------------- folders, and what is left out


def test_a_folder_of_any_formats() -> None:
    folder, left_out = SAMPLES / "mixed", list[LeftOut]()
    programs = {
        program.program_id: program.prompt_tokens()[0] for program in read_any(folder, None, ImportLog(left_out.append))
    }
    assert programs == {"a": 400, "a#2": 500, "p": 9, "s-1": 500}
    assert [each.program_id for each in left_out] == [None, "no tokens"]
    assert "1 files: no traces: README" in str(left_out[0])
    assert [program.program_id for program in read_any(folder, "numeric")] == ["p"]
    with pytest.raises(TraceError, match="no file in a known format"):
        list(read_any(folder, "bfcl"))


def call(at: object, said: str, *before: tuple[str, str]) -> dict[str, Any]:
    """Return a logged call that ended at ``at``; ``before`` are the questions and answers before it."""
    texts = [text for pair in before for text in pair]
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate([*texts, said])]
    answer = {"message": {"role": "assistant", "content": f"to {said}"}}
    usage = {"prompt_tokens": 100 * len(messages), "completion_tokens": 10}
    times = {} if at is None else {"endTime": at, "response_time": 1}
    return {"messages": messages, "response": {"choices": [answer], "usage": usage}, **times}


SAID = [("a", "to a"), ("b", "to b")]


@pytest.mark.parametrize(
    ("instants", "gaps_s"),
    [
        ((1_700_000_000, 1_700_000_005, 1_700_000_010), [4, 4, 0]),
        ((1_700_000_000_000, 1_700_000_005_000, 1_700_000_010_000), [4, 4, 0]),  # milliseconds
        (("2023-11-14T22:13:20", "2023-11-14T22:13:25Z", "2023-11-14T23:13:30+01:00"), [4, 4, 0]),
        (("1700000000000000000", 1_700_000_005, "2023-11-14T22:13:30Z"), [4, 4, 0]),  # nanoseconds as text
        ((1_700_000_000, None, 1_700_000_010), [0, 0, 0]),
        ((1_700_000_000, "yesterday", 1_700_000_010), [0, 0, 0]),
    ],
)
def test_times_of_logged_calls(tmp_path: Path, instants: tuple[object, ...], gaps_s: list[float]) -> None:
    rows = [call(instants[0], "a"), call(instants[1], "b", SAID[0]), call(instants[2], "c", *SAID)]
    log = ImportLog()
    (program,) = read_any(lines(tmp_path / "calls.jsonl", *rows), None, log)
    assert [turn.gap_s for turn in program.turns] == gaps_s
    assert any("no times" in line for line in log.assumptions.lines()) == (not sum(gaps_s))


def test_mooncake_as_a_table_keeps_its_arrivals(tmp_path: Path) -> None:
    table = tmp_path / "mooncake.csv"
    table.write_text("timestamp,input_length,output_length\n0,100,10\n2500,200,20\n")
    assert [program.arrival_s for program in read_any(table)] == [0, 2.5]
    table.write_text("timestamp,input_length,output_length\nnoon,100,10\n")
    with pytest.raises(TraceError, match="timestamp: expected a number"):
        list(read_any(table))


@pytest.mark.parametrize("name", ["calls.jsonl", "calls.jsonl.gz"])
def test_a_byte_order_mark_is_no_fault(tmp_path: Path, name: str) -> None:
    data = ("\ufeff" + json.dumps(call(1, "a")) + "\r\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert [len(program.turns) for program in read_any(tmp_path / name)] == [1]


def test_a_linked_file_counts_once(tmp_path: Path) -> None:
    lines(tmp_path / "calls.jsonl", call(1, "a"))
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "latest.jsonl").symlink_to(tmp_path / "calls.jsonl")
    left_out: list[LeftOut] = []
    assert len(list(read_any(tmp_path, None, ImportLog(left_out.append)))) == 1
    assert [each.reason for each in left_out] == ["a link to calls.jsonl, which is in the folder, too"]


def test_a_long_file_in_a_folder_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continuum_traces.importers.importer.PROGRESS_ROWS", 2)
    lines(tmp_path / "calls.jsonl", call(1, "a"), call(2, "b"), call(3, "c"))
    said: list[str] = []
    list(read_any(tmp_path, None, ImportLog(on_progress=said.append)))
    assert said == [f"{tmp_path / 'calls.jsonl'}: 2 rows read"]


@pytest.mark.parametrize(
    ("usage", "contradiction"),
    [
        ({"completion_tokens": 0}, "answer without tokens"),
        ({"completion_tokens": 1}, ""),
        ({"prompt_tokens_details": {"cached_tokens": 101}}, "more tokens cached than in its prompt"),
        ({"prompt_tokens_details": {"cached_tokens": 100}}, ""),
        ({"cache_read_input_tokens": 5_000}, "more tokens cached than in its prompt"),
        ({"completion_tokens_details": {"reasoning_tokens": 11}}, "more tokens of reasoning than in its answer"),
        ({"completion_tokens_details": {"reasoning_tokens": 10}}, ""),
    ],
)
def test_counts_that_contradict_each_other_are_said(tmp_path: Path, usage: dict[str, Any], contradiction: str) -> None:
    row = call(1, "a")
    row["response"]["usage"] |= usage
    log = ImportLog()
    (program,) = read_any(lines(tmp_path / "calls.jsonl", row), None, log)
    assert (program.prompt_tokens(), program.turns[0].output_tokens) == ([100], usage.get("completion_tokens", 10) or 1)
    assert [line for line in log.assumptions.lines() if contradiction in line][:1] == [*log.assumptions.lines()]
    assert bool(log.assumptions.lines()) == bool(contradiction)


@pytest.mark.parametrize(
    ("prompt", "new", "kept", "said"),
    [
        (120, 30, 90, False),  # the context before has 100 + 20 tokens
        (121, 30, None, False),  # one more than it: the prompt only grew
        (115, 5, 100, False),  # no more than the prompt before is kept
        (90, 0, 89, False),  # a prompt has a new token
        (90, 91, 0, False),
        (90, None, 0, True),  # what is kept is unknown
        (110, None, 100, True),  # it only grew
    ],
)
def test_new_tokens_that_a_source_counts_tell_what_a_rewritten_history_keeps(
    tmp_path: Path, prompt: int, new: int | None, kept: int | None, said: bool
) -> None:
    first = {"program_id": "p", "turn": 0, "prompt_tokens": 100, "output_tokens": 20}
    second = {**first, "turn": 1, "prompt_tokens": prompt} | ({} if new is None else {"new_input_tokens": new})
    log = ImportLog()
    (program,) = read_any(lines(tmp_path / "n.jsonl", first, second), None, log)
    assert program.prompt_tokens() == [100, prompt]
    assert (program.turns[1].kept_tokens, bool(log.assumptions.lines())) == (kept, said)


def test_a_chat_id_that_is_there_twice_is_said(tmp_path: Path) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 1, "input_length": 32, "output_length": 3}
    log = ImportLog()
    (program,) = read_any(lines(tmp_path / "chats.jsonl", row, {**row, "timestamp": 2}), None, log)
    assert program.arrival_s == 1
    assert [line[:60] for line in log.assumptions.lines()] == [
        "1 request: with the chat_id of an earlier one: left out (the"
    ]


WEKA = {"id": "w", "block_size": 64, "requests": [{"t": 0, "in": 100, "out": 5, "api_time": 2}, {"in": 200, "out": 5}]}
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01,100,5\n"


def rows_of(folder: Path, text: str) -> Path:
    path = folder / ("rows.json" if text.startswith("{") else "rows.csv")
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (BURST + "1,m,10,5,15\n", ""),
        (BURST + "1,m,10,5,16\n", "1 request: a total that is not the sum of prompt and output: the latter are read"),
        (json.dumps(WEKA), "1 gap: neither think_time nor t: taken as 0 s"),
        (AZURE + "2023-11-16 18:00:03,100,5\n", ""),
    ],
)
def test_what_a_row_lacks_or_contradicts_is_said(tmp_path: Path, text: str, line: str) -> None:
    log = ImportLog()
    assert list(read_any(rows_of(tmp_path, text), None, log))
    assert any(line in each for each in log.assumptions.lines()) if line else not log.assumptions.lines()


def test_a_session_without_requests_leaves_the_others(tmp_path: Path) -> None:
    """LLMServingSim passes over an empty list."""
    session = {"arrival_time_ns": 0, "sub_requests": [{"input_toks": 8, "output_toks": 2}]}
    made = read_any(lines(tmp_path / "s.jsonl", session, {**session, "sub_requests": []}))
    assert [program.program_id for program in made] == ["session-1"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (BURST + "1,m,10.5,5,15\n", ":2: Request tokens: expected a whole number, found 10.5"),
        (AZURE + "yesterday,100,5\n", ":3: TIMESTAMP: expected an instant, found 'yesterday'"),
        (
            json.dumps({**WEKA, "requests": [{"in": 1, "out": 5}, {"in": 1.5, "out": 5}]}),
            "in: expected a whole number, found 1.5",
        ),
    ],
)
def test_rows_that_cannot_be_right(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(TraceError, match=re.escape(fault)):
        list(read_any(rows_of(tmp_path, text)))


def test_a_gap_without_think_time_lies_between_the_instants(tmp_path: Path) -> None:
    requests = [WEKA["requests"][0], {**WEKA["requests"][1], "t": 9}]
    (program,) = read_any(lines(tmp_path / "weka.jsonl", {**WEKA, "requests": requests}))
    assert [turn.gap_s for turn in program.turns] == [7, 0]


def test_several_answers_to_one_prompt_are_said(tmp_path: Path) -> None:
    row, log = call(1, "a"), ImportLog()
    row["response"]["choices"] *= 2
    row["response"]["usage"]["total_tokens"] = 1
    (program,) = read_any(lines(tmp_path / "calls.jsonl", row), None, log)
    assert len(program.turns) == 1
    assert [line.partition(":")[2].strip()[:30] for line in log.assumptions.lines()] == [
        "total_tokens is not the sum of",
        "several answers to one prompt:",
    ]


def test_a_group_takes_the_path_of_most_programs(tmp_path: Path) -> None:
    rows = [moon(1024, [0, end]) for end in (2, 1, 1, 2, 1)]
    programs = list(read_any(lines(tmp_path / "m.jsonl", *rows)))
    assert [p.shared_prefix_tokens for p in programs] == [512, 1024, 1024, 512, 1024]
    assert {p.shared_prefix_id for p in programs} == {"blocks-0"}


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=10))
def test_blocks_that_programs_share_are_kept_or_said_to_be_lost(prompts: list[list[int]]) -> None:
    described = [
        Imported(Program(str(n), ()), [RequestUsage(16 * len(ids), 1)], ids=[ids], block_tokens=16)
        for n, ids in enumerate(prompts)
    ]
    assumptions, saved = Assumptions(), 0
    blocks = SharedBlocks(described, assumptions)
    programs = [blocks.program(n, each, assumptions) for n, each in enumerate(described)]
    for name in {program.shared_prefix_id for program in programs} - {None}:
        kept = [
            ids[: p.shared_prefix_tokens // 16]
            for p, ids in zip(programs, prompts, strict=True)
            if p.shared_prefix_id == name
        ]
        longest = max(kept, key=len)
        assert all(ids == longest[: len(ids)] for ids in kept)
        saved += sum(map(len, kept)) - len(longest)
    distinct = {tuple(ids[:n]) for ids in prompts for n in range(1, len(ids) + 1)}
    lost = sum(each.count for each in assumptions if each.text == BRANCHES)
    assert saved + lost == sum(map(len, prompts)) - len(distinct)


def test_vllm_s_own_log_says_where_to_record(tmp_path: Path) -> None:
    line = "(APIServer pid=7) INFO 11-27 09:24:01 [request_logger.py:65] Received request chatcmpl-1: params: ..."
    (tmp_path / "vllm.log").write_text(f"INFO 11-27 09:23:59 [api_server.py:1] starting\n{line}\n")
    with pytest.raises(
        TraceError, match="neither prompts nor token counts; record requests with continuum-bench serve"
    ):
        list(read_any(tmp_path / "vllm.log"))


def test_what_nothing_reads_says_what_to_write_instead(tmp_path: Path) -> None:
    """The message for an unknown format names fields. A file with these fields is read, with its tool times."""
    unread, written = tmp_path / "unread.jsonl", tmp_path / "written.jsonl"
    unread.write_text('{"task_id": 0, "prompt": "hello", "output_tokens": 5}\n')
    with pytest.raises(TraceError, match=re.escape(NEAREST)) as said:
        recognise(unread)
    names = [name.split()[0] for name in NEAREST.split(", ")]
    rows = [("a", "1", 0, 100, 10, 0), ("a", "2", 900, 150, 20, 500)]
    written.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    assert str(said.value).endswith(f"read as {recognise(written).importer.name}")
    (program,) = read_any(written)
    assert [(turn.new_input_tokens, turn.output_tokens) for turn in program.turns] == [(100, 10), (40, 20)]
    assert [call.duration_s for call in program.turns[0].tool_calls] == [0.5]


@pytest.mark.parametrize("reason", ["a.jsonl:3: not JSON", "3 files: no traces"])
def test_what_is_left_out_names_its_file_once(reason: str) -> None:
    assert str(LeftOut("a.jsonl", reason)).count("a.jsonl") == 1
