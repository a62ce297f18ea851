"""Other formats in and out: real files where they are at hand, hand-written ones always."""

from __future__ import annotations

import gzip
import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_server.vllm_plugin.tool_calls import tool_key as server_key
from continuum_traces.exporters import EXPORTERS, agentic_mooncake_rows, export, llmservingsim_rows
from continuum_traces.importers.registry import READERS, LeftOut, detect, read_any
from continuum_traces.importers.terminal_bench import keystrokes, typed_commands
from continuum_traces.jsonl import TraceError, read_programs, write_programs
from continuum_traces.lines import end_line, header_line, program_line, turn_line
from continuum_traces.schema import Program, ToolCall, Turn
from continuum_traces.shell import first_program
from continuum_traces.synth import load_profile, synthesize
from hypothesis import given
from hypothesis import strategies as st


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ------------------------------------------------------------------------------------------- real files


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


def test_mini_swe_originals_agree_with_their_numbers(real_traces: Path) -> None:
    """The trajectories and the numeric files were made from the same runs by different programs."""
    originals = {p.program_id: p for p in read_any(real_traces / "raw/mini_swe_agent/trajectories.tar.xz")}
    assert len(originals) == 43
    compared = 0
    for program in read_any(real_traces / "mswe_deepseek_chat_dev.jsonl.gz"):
        original = originals.get(program.program_id.rsplit("/", 1)[-1])
        if original is None:
            continue
        compared += 1
        assert original.prompt_tokens() == program.prompt_tokens()
        assert [t.output_tokens for t in original.turns] == [t.output_tokens for t in program.turns]
        ours, theirs = (sum(t.gap_s for t in p.turns[:-1]) for p in (original, program))
        assert ours == pytest.approx(theirs, rel=0.02)
    assert compared >= 20


def test_openhands_originals_agree_with_their_numbers(real_traces: Path) -> None:
    numeric = {p.program_id: p for p in read_any(real_traces / "openhands.jsonl.gz")}
    originals = list(read_any(real_traces / "raw/openhands/multi_swe_bench_examples.output.jsonl.xz"))
    originals += list(read_any(real_traces / "raw/openhands/gpt5_fastjson2-2775.output.jsonl.xz"))
    assert originals
    for program in originals:
        assert any(call.duration_s is not None for turn in program.turns for call in turn.tool_calls)
        other = numeric.get(program.program_id)
        if other is not None:
            assert program.prompt_tokens()[: len(other.turns)] == other.prompt_tokens()  # one logs a last answer more


def test_bfcl_heads(real_traces: Path) -> None:
    programs = list(read_any(real_traces / "raw/bfcl/heads.jsonl"))
    assert len(programs) == 3
    assert programs[0].prompt_tokens() == [1093, 2292, 6552, 7872, 25846, 26533, 44010, 44801, 47823]
    assert programs[0].turns[0].tool_calls == (ToolCall("search_engine_query"),)


# ------------------------------------------------------------------------------------- hand-written files


def assistant(content: str, timestamp: float, usage: Any = None, actions: Any = None) -> dict[str, Any]:
    extra: dict[str, Any] = {"timestamp": timestamp, "response": {"usage": usage, "model": "m"}}
    return {"role": "assistant", "content": content, "extra": extra | ({"actions": actions} if actions else {})}


USAGE = {"prompt_tokens": 100, "completion_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 10}}
MINI_SWE = {
    "messages": [
        {"role": "user", "content": "fix it"},
        assistant("Look.\n```bash\ncd /repo && FOO=1 timeout 5 pytest -q\n```", 10.0, USAGE),
        {"role": "user", "content": "ok", "extra": {"timestamp": 12.5}},
        assistant("Done.", 20.0, {"prompt_tokens": 130, "completion_tokens": 5}),
    ],
    "info": {},
}


def test_mini_swe_fenced_style(tmp_path: Path) -> None:
    path = tmp_path / "task-1.traj.json"
    path.write_text(json.dumps(MINI_SWE, indent=1))
    (program,) = read_any(path, "mini-swe-agent")
    assert program.program_id == "task-1"
    first = program.turns[0]
    assert (first.new_input_tokens, first.output_tokens, first.carried) == (100, 30, 20)
    assert [(c.name, c.duration_s) for c in first.tool_calls] == [("pytest", 2.5)]
    assert program.prompt_tokens() == [100, 130]
    assert detect(path) == "mini-swe-agent"
    assert [p.program_id for p in read_any(tmp_path)] == ["task-1"]


def test_mini_swe_without_usage_is_estimated_and_says_so(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x" * 400}, {"role": "assistant", "content": "y" * 40}]
    path = tmp_path / "a.traj.json"
    path.write_text(json.dumps({"messages": messages, "info": {}}))
    (program,) = read_any(path)
    assert program.prompt_tokens() == [100]
    assert "estimated" in program.source


def terminal_step(number: int, prompt: int, *typed: str, **more: Any) -> dict[str, Any]:
    calls = [
        {
            "tool_call_id": f"c{number}",
            "function_name": "bash_command",
            "arguments": {"keystrokes": keys, "duration": 1.5},
        }
        for keys in typed
    ]
    metrics = {"prompt_tokens": prompt, "completion_tokens": 20, "cached_tokens": prompt - 10}
    return {"step_id": number, "source": "agent", "message": "m", "tool_calls": calls, "metrics": metrics, **more}


ATIF = {
    "schema_version": "ATIF-v1.5",
    "session_id": "s-1",
    "agent": {"name": "terminus-2", "version": "2.0", "model_name": "m"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Do it."},
        terminal_step(2, 100, "cd /app\n", "make -j2\n"),
        terminal_step(3, 160, "", "C-c"),
        terminal_step(4, 200, tool_calls=[{"function_name": "mark_task_complete", "arguments": {}}]),
        terminal_step(5, 90, "ls", is_copied_context=True),
    ],
}


def test_terminal_bench(tmp_path: Path) -> None:
    path = tmp_path / "job" / "trial-1" / "agent" / "trajectory.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(ATIF, indent=1))
    assert detect(path) == "terminal-bench"
    (program,) = read_any(path)
    assert (program.program_id, program.source, program.model) == ("s-1", "terminal-bench", "m")
    assert program.prompt_tokens() == [100, 160, 200]
    assert program.turns[1].cached_tokens == 150
    tools = [[(call.name, call.duration_s) for call in turn.tool_calls] for turn in program.turns]
    assert tools == [[("make", 3.0)], [("C-c", 3.0)], [("mark_task_complete", None)]]
    assert list(read_any(tmp_path, "terminal-bench")) == [program]


def test_the_server_reads_terminal_bench_s_answers_as_the_importer_does() -> None:
    for typed in (["cd /app\n", "make -j2\n"], ["cat > x <<'E'\nrm\nE\n", "python3 x"], ["FOO=1 timeout 5 pytest\n"]):
        answer = json.dumps({"analysis": "a {b}", "plan": "p", "commands": [{"keystrokes": keys} for keys in typed]})
        assert first_program(keystrokes(list(typed_commands(answer)))) == server_key(answer)
        assert first_program(keystrokes(list(typed_commands(f"```json\n{answer}\n```")))) == server_key(answer)
    assert list(typed_commands('{"commands": "ls"} no')) == []


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "expected an object"), ('{"steps": [1]}', "steps[0]")]
)
def test_terminal_bench_s_faults(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        list(read_any(path, "terminal-bench"))
    assert said in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="no file in a known format"):
        list(read_any(tmp_path / "empty", "terminal-bench"))


def test_terminal_bench_s_answers_in_messages(tmp_path: Path) -> None:
    answer = {"analysis": "x", "plan": "y", "commands": [{"keystrokes": "cd src && pytest -q\n", "duration": 5}]}
    messages = [
        {"role": "user", "content": "fix it"},
        assistant(json.dumps(answer), 10.0, {"prompt_tokens": 100, "completion_tokens": 30}),
        {"role": "user", "content": "ok", "extra": {"timestamp": 12.5}},
        assistant("Done.", 20.0, {"prompt_tokens": 140, "completion_tokens": 5}),
    ]
    path = tmp_path / "t.traj.json"
    path.write_text(json.dumps({"messages": messages, "info": {}}))
    (program,) = read_any(path)
    assert [[call.name for call in turn.tool_calls] for turn in program.turns] == [["pytest"], []]


def sdk_event(kind: str, at: str, call: str, response: str | None = None, **tool: Any) -> dict[str, Any]:
    event = {"kind": kind, "timestamp": f"2026-01-01T00:00:{at}", "tool_call_id": call}
    return event | ({"llm_response_id": response} if response else {}) | tool


TERMINAL = {"tool_name": "terminal", "tool_call": {"arguments": '{"command": "cd x && pytest -q"}'}}
EDITOR = {"tool_name": "file_editor", "tool_call": {"arguments": '{"command": "view", "path": "/x"}'}}
OPENHANDS = {
    "instance_id": "a",
    "history": [
        sdk_event("ActionEvent", "01.0", "c1", "r1", **TERMINAL),
        sdk_event("ActionEvent", "01.0", "c2", "r1", **EDITOR),
        sdk_event("ObservationEvent", "03.0", "c1"),
        sdk_event("ObservationEvent", "03.5", "c2"),
        sdk_event("ActionEvent", "05.0", "c3", "r2", **{**TERMINAL, "tool_call": {"arguments": "{"}}),
        sdk_event("AgentErrorEvent", "05.25", "c3"),
    ],
    "metrics": {
        "token_usages": [
            {"response_id": name, "prompt_tokens": prompt, "completion_tokens": 10}
            for name, prompt in (("r1", 100), ("r2", 150))
        ]
    },
}


def test_openhands_sdk_events(tmp_path: Path) -> None:
    """Two actions of one reply run one after the other: the second from the end of the first."""
    (program,) = read_any(lines(tmp_path / "output.jsonl", OPENHANDS))
    assert [[(call.name, call.duration_s) for call in turn.tool_calls] for turn in program.turns] == [
        [("pytest", 2.0), ("file_editor", 0.5)],
        [("terminal", 0.25)],
    ]


BFCL = {
    "id": "web_search_base_1",
    "result": [[[{"search_engine_query": "{}"}], [{"fetch_url_content": "{}"}, {"fetch_url_content": "{}"}], "done"]],
    "input_token_count": [[10, 50, 90]],
    "output_token_count": [[5, 6, 7]],
    "latency": [[1.0, 2.0, 3.0]],
}


def test_bfcl_result_file(tmp_path: Path) -> None:
    (program,) = read_any(lines(tmp_path / "r.json", BFCL))
    assert [[c.name for c in t.tool_calls] for t in program.turns] == [
        ["search_engine_query"],
        ["fetch_url_content", "fetch_url_content"],
        [],
    ]
    assert [t.llm_s for t in program.turns] == [1.0, 2.0, 3.0]


WEKA = {"id": "c", "requests": [{"in": 100, "out": 10, "model": "m"}, {"in": 150, "out": 5, "think_time": 2.0}]}
MLPERF = [
    {"conversation_id": "k", "turn": 0, "role": "user", "content": "a" * 80},
    {
        "conversation_id": "k",
        "turn": 1,
        "role": "assistant",
        "content": "b" * 40,
        "tool_calls": [{"function": {"name": "browse", "arguments": "{}"}}],
    },
    {"conversation_id": "k", "turn": 2, "role": "tool", "content": "c" * 20, "delay_seconds": 1.5},
    {"conversation_id": "k", "turn": 3, "role": "assistant", "content": "d" * 8},
]


def test_weka_and_mlperf(tmp_path: Path) -> None:
    (program,) = read_any(lines(tmp_path / "w.jsonl", WEKA))
    assert (program.prompt_tokens(), program.turns[0].gap_s) == ([100, 150], 2.0)
    (program,) = read_any(lines(tmp_path / "m.jsonl", *MLPERF))
    assert [c.name for c in program.turns[0].tool_calls] == ["browse"]
    assert program.turns[0].gap_s == 1.5
    assert "estimated" in program.source


def test_a_numeric_tool_without_a_name_is_unknown(tmp_path: Path) -> None:
    row = {"program_id": "p", "prompt_tokens": 3, "output_tokens": 1, "tools": ["", " "], "tool_s": 2.0}
    (program,) = read_any(lines(tmp_path / "f.jsonl", row), "numeric")
    assert program.turns[0].tool_calls == (ToolCall("unknown", 2.0), ToolCall("unknown", 0.0))


@pytest.mark.parametrize(
    ("form", "row", "message"),
    [
        ("numeric", {"program_id": "p", "prompt_tokens": 3}, "1: output_tokens: missing"),
        ("numeric", {"program_id": "p", "prompt_tokens": 3, "output_tokens": 1, "tool_s": -1}, "1: tool_s: expected"),
        ("numeric", {"program_id": "p", "prompt_tokens": 3, "output_tokens": 1, "tools": "bash"}, "1: tools: expected"),
        ("bfcl", {"id": "a", "input_token_count": [1, 2], "output_token_count": [1]}, "output_token_count: 1 steps"),
        ("bfcl", {"id": "a", "input_token_count": [1], "output_token_count": [-1]}, "whole numbers"),
        ("openhands", {"instance_id": "a"}, "1: history: missing"),
        ("weka", {"requests": [{"in": "x", "out": 1}]}, "1: in: expected"),
        ("mooncake", {"input_length": 5}, "1: output_length: missing"),
        ("mooncake", {"input_length": 5, "output_length": 5, "hash_ids": ["a"]}, "1: hash_ids: expected a list"),
        ("agentic-mooncake", {"session_id": "s", "input_length": 5, "output_length": 5}, "1: request_id: missing"),
        ("mlperf-agentic", {"conversation_id": "c"}, "1: role: missing"),
        ("mini-swe-agent", {"info": {}}, "messages: missing"),
    ],
)
def test_faults_name_file_line_and_field(tmp_path: Path, form: str, row: Any, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        list(read_any(lines(tmp_path / "f.jsonl", row), form))


def length_row(name: str, **more: Any) -> dict[str, Any]:
    return {"session_id": "s", "input_length": 100, "output_length": 5, "timestamp": 0, "delay": 10, **more}


def samples() -> dict[str, list[Any]]:
    """Lines of a good file of each format."""
    numeric = {"program_id": "p", "turn": 0, "prompt_tokens": 9, "new_input_tokens": 9, "output_tokens": 1}
    call = ToolCall("ls", 1.0, digest="d")
    program = Program(
        "p", (Turn(9, 2, tool_calls=(call,), cached_tokens=1, llm_s=1.0), Turn(3, 1)), "s", "m", arrival_s=1.0
    )
    own = [header_line(), program_line(program), *(turn_line("p", i, turn) for i, turn in enumerate(program.turns))]
    return {
        "continuum": [*own, end_line("p")],
        "numeric": [numeric | {"tools": ["ls"], "tool_s": 1.0, "pack_s": 1.0, "cached_tokens": 3, "llm_s": 1.0}],
        "mini-swe-agent": [MINI_SWE],
        "openhands": [OPENHANDS, older_openhands("b", 100, 150)],
        "terminal-bench": [ATIF],
        "bfcl": [BFCL],
        "mooncake": [length_row("a"), length_row("b", hash_ids=[0, 1])],
        "agentic-mooncake": [length_row("a", request_id="a"), length_row("b", request_id="b", tool_wait_ms=5)],
        "weka": [WEKA],
        "mlperf-agentic": MLPERF,
    }


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


@pytest.mark.parametrize("form", sorted(READERS))
@given(data=st.data())
def test_damaged_fields(tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject) -> None:
    """A fault is named, or the programs are good ones: they are written and read again as they are."""
    rows = samples()[form]
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


def test_the_samples_are_good(tmp_path: Path) -> None:
    for form, rows in samples().items():
        assert list(read_any(lines(tmp_path / "in.json", *rows), form))
    assert samples().keys() == READERS.keys()


@pytest.mark.parametrize("form", sorted(READERS))
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


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TraceError, match="the file is empty"):
        list(read_any(tmp_path / "empty.jsonl"))


# -------------------------------------------------------------------------------------------- exporters


@pytest.mark.parametrize("form", ["mooncake", "agentic-mooncake"])
def test_a_round_trip_keeps_lengths_gaps_and_shared_blocks(tmp_path: Path, form: str) -> None:
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
    assert [turn.kept_tokens for turn in back[-1].turns] == [None, None, 1024, None]
    export(tmp_path / "y.jsonl", back, form)
    ids = [[json.loads(line)["hash_ids"] for line in (tmp_path / name).open()] for name in ("x.jsonl", "y.jsonl")]
    assert ids[0] == ids[1]


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
    programs = list(read_any(lines(tmp_path / "m.jsonl", *rows)))
    assert len({p.shared_prefix_id for p in programs}) == 2
    assert {p.source for p in programs} == {"mooncake, 96% of shared blocks kept"}


@pytest.mark.parametrize(
    ("rows", "prompts", "source"),
    [
        ([{}, {}, {}], [300, 455, 610], "each row added to its session"),
        ([{"context_mode": "deltas_without_responses"}] * 3, [300, 455, 610], "each row added to its session"),
        ([{"context_mode": "message_array_with_responses"}] * 3, [300, 150, 150], "each row a whole prompt"),
        ([{"hash_ids": [7]}, {"hash_ids": [7]}, {}], [300, 150, 150], "each row a whole prompt"),
        ([{"hash_ids": [7]}, {"hash_ids": [8]}, {}], [300, 455, 610], "each row added to its session"),
    ],
)
def test_rows_of_a_session_are_read_as_the_format_says(
    tmp_path: Path, rows: list[dict[str, Any]], prompts: list[int], source: str
) -> None:
    lengths = [{"session_id": "s", "input_length": tokens, "output_length": 5} for tokens in (300, 150, 150)]
    session = [length | row for length, row in zip(lengths, rows, strict=True)]
    (program,) = read_any(lines(tmp_path / "m.jsonl", *session))
    assert (program.prompt_tokens(), program.source) == (prompts, f"mooncake, {source}")


def test_hashes_show_exactly_the_shared_prefix() -> None:
    turns = (Turn(1000, 100, carried_tokens=40), Turn(500, 50), Turn(300, 10))
    programs = [Program(name, turns, shared_prefix_id="system", shared_prefix_tokens=600) for name in ("a", "b")]
    rows = list(agentic_mooncake_rows(programs, block_tokens=100))
    hashes = [row["hash_ids"] for row in rows]
    assert hashes[0][:6] == hashes[3][:6]  # the system prompt
    assert hashes[0][6] != hashes[3][6]
    assert hashes[1][:10] == hashes[0]  # the whole first prompt: 1000 tokens
    assert hashes[2][:15] == hashes[1][:15]  # prompt of 1540: 15 full blocks and a part
    assert len(set(hashes[2])) == len(hashes[2])
    assert rows[1]["wait_for"] == ["a/0"]


def test_llmservingsim_rows() -> None:
    program = Program("p", (Turn(10, 2, tool_calls=(ToolCall("ls", 0.5),)), Turn(5, 1)), arrival_s=2.0)
    (row,) = llmservingsim_rows([program])
    assert row["arrival_time_ns"] == 2_000_000_000
    assert row["sub_requests"][0] == {"input_toks": 10, "output_toks": 2, "tool_duration_ns": 500_000_000}
    assert set(EXPORTERS) == {"agentic-mooncake", "mooncake", "llmservingsim"}
    with pytest.raises(TraceError, match="llmservingsim"):
        export(Path("x"), [], "moon")


# ---------------------------------------------------------------------------- folders, and what is left out


def older_openhands(name: str, *prompts: int) -> dict[str, Any]:
    """A log without ``token_usages``: each answer stands beside every action that it asked for."""
    history = [
        {
            "id": 10 * index + part,
            "source": "agent",
            "action": "run",
            "timestamp": "2026-01-01T00:00:00",
            "args": {"command": "pytest -q"},
            "tool_call_metadata": {
                "function_name": "execute_bash",
                "model_response": {
                    "id": f"r{index}",
                    "model": "gpt-5",
                    "usage": {
                        "prompt_tokens": prompt,
                        "completion_tokens": 20,
                        "completion_tokens_details": {"reasoning_tokens": 5},
                        "prompt_tokens_details": {"cached_tokens": 64},
                    },
                },
            },
        }
        for index, prompt in enumerate(prompts)
        for part in range(2)
    ]
    return {"instance_id": name, "history": history, "metrics": {"costs": []}}


def test_openhands_tokens_that_only_the_answers_have(tmp_path: Path) -> None:
    (program,) = read_any(lines(tmp_path / "output.jsonl", older_openhands("a", 100, 150)))
    assert (program.prompt_tokens(), program.model) == ([100, 150], "gpt-5")
    assert [(turn.output_tokens, turn.carried, turn.cached_tokens) for turn in program.turns] == [(20, 15, 64)] * 2
    assert [call.name for call in program.turns[0].tool_calls] == ["pytest", "pytest"]


def test_gpt5_original(real_traces: Path) -> None:
    (program,) = read_any(real_traces / "raw/openhands/gpt5_fastjson2-2775.output.jsonl.xz")
    assert program.prompt_tokens()[0] == 3457
    assert len(program.turns) > 15


def test_a_folder_of_any_formats(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    lines(tmp_path / "one" / "output.jsonl", older_openhands("a", 100), older_openhands("no tokens"))
    lines(tmp_path / "two" / "output.jsonl", older_openhands("a", 200))
    lines(tmp_path / "table.jsonl", {"program_id": "n", "prompt_tokens": 7, "output_tokens": 1})
    (tmp_path / "trajectory.json").write_text(json.dumps(ATIF, indent=1))
    (tmp_path / "README").write_text("runs of Monday")
    left_out: list[LeftOut] = []
    programs = {program.program_id: program.prompt_tokens()[0] for program in read_any(tmp_path, None, left_out.append)}
    assert programs == {"a": 100, "a#2": 200, "n": 7, "s-1": 100}
    assert [each.program_id for each in left_out] == [None, "no tokens"]
    assert "1 files: no traces: README" in str(left_out[0])
    assert [program.program_id for program in read_any(tmp_path, "numeric")] == ["n"]
    with pytest.raises(TraceError, match="no file in a known format"):
        list(read_any(tmp_path, "bfcl"))
    assert not list(tmp_path.glob("*.tmp"))
