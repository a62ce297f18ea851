"""Mistakes of imports, by kind: counts that are no counts, requests counted twice, shapes that are passed over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.importers.call_logs import read_call_logs
from continuum_traces.importers.importer import HEAD_ROWS, Source
from continuum_traces.importers.registry import ImportLog, LeftOut, read_any
from continuum_traces.programs.jsonl import read_header, write_programs
from continuum_traces.schema import Program


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> tuple[dict[str, Program], list[str]]:
    """Return the programs by their ids, and what was assumed."""
    log = ImportLog()
    programs = {program.program_id: program for program in read_any(path, None, log)}
    return programs, log.assumptions.lines()


# ---------------------------------------------------------------------------------------- what an answer's length is


def said(at: int, kind: str, message: dict[str, Any], session: str = "s") -> dict[str, Any]:
    return {
        "type": kind,
        "sessionId": session,
        "uuid": f"{session}{at}",
        "parentUuid": None,
        "timestamp": f"2026-05-05T08:00:{at:02d}Z",
        "message": {"role": kind, **message},
    }


def answered(at: int, prompt: int, output: int, chars: int, cached: int = 0, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": output}
    content = [{"type": "text", "text": "x" * chars}]
    return said(at, "assistant", {"id": f"m{at}", "model": "m", "content": content, "usage": usage, **more})


ASKED = said(0, "user", {"content": "Go"})
BEGUN = {"stop_reason": None}


@pytest.mark.parametrize(
    ("more", "chars", "grown", "output", "estimates"),
    [
        (BEGUN, 800, 500, 200, 1),  # its characters
        (BEGUN, 800, 200, 200, 1),
        (BEGUN, 800, 199, 199, 1),  # at most what the next prompt grew
        (BEGUN, 4, 500, 3, 1),  # at least what is counted
        ({"stop_reason": "end_turn"}, 800, 500, 3, 0),
        ({}, 8, 500, 3, 0),
        ({}, 28, 500, 7, 1),  # a file without reasons to stop, and much more text than the count
    ],
)
def test_the_count_with_which_an_answer_began_is_not_its_length(
    tmp_path: Path, more: dict[str, Any], chars: int, grown: int, output: int, estimates: int
) -> None:
    last = answered(9, 1000 + grown, 20, 80, stop_reason="end_turn")
    file = lines(
        tmp_path / "s.jsonl", ASKED, answered(3, 1000, 3, chars, **more), said(6, "user", {"content": "on"}), last
    )
    programs, notes = read(file)
    assert [turn.output_tokens for turn in programs["s"].turns] == [output, 20]
    assert programs["s"].prompt_tokens() == [1000, 1000 + grown]
    assert [note.partition(" ")[0] for note in notes if "count of its beginning" in note] == [
        str(estimates)
    ] * estimates


def test_thoughts_that_are_not_shown_are_what_the_next_prompt_grew(tmp_path: Path) -> None:
    thought = [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "text", "text": "x" * 40}]
    first = answered(3, 1000, 1, 0, stop_reason=None)
    first["message"]["content"] = thought
    file = lines(tmp_path / "s.jsonl", ASKED, first, said(6, "user", {"content": "y" * 80}), answered(9, 1500, 20, 80))
    assert read(file)[0]["s"].turns[0].output_tokens == 500 - 20


# ---------------------------------------------------------------------------------------- what a prompt keeps


@pytest.mark.parametrize(("cached", "kept"), [(0, 0), (300, 300), (800, 799)])
def test_a_shorter_prompt_keeps_what_was_cached_of_it(tmp_path: Path, cached: int, kept: int) -> None:
    file = lines(tmp_path / "s.jsonl", ASKED, answered(3, 1000, 20, 80), answered(9, 800, 20, 80, cached))
    assert read(file)[0]["s"].turns[1].kept_tokens == kept


@pytest.mark.parametrize(
    ("prompts", "cached", "kept"),
    [
        ([100, 900, 400], [None] * 3, 100),  # the first prompt
        ([100, 900, 100], [None] * 3, 0),  # unknown, not the whole of it
        ([100, 900, 400], [0, 0, 0], 0),
        ([100, 900, 400], [0, 90, None], 0),  # a source that counts cached tokens, and has none here
        ([100, 900, 400], [0, 90, 60], 60),
    ],
)
def test_what_a_source_says_of_its_cache_is_what_a_prompt_keeps(
    tmp_path: Path, prompts: list[int], cached: list[int | None], kept: int
) -> None:
    rows = [
        {"program_id": "p", "turn": n, "prompt_tokens": prompt, "output_tokens": 5, "cached_tokens": tokens}
        for n, (prompt, tokens) in enumerate(zip(prompts, cached, strict=True))
    ]
    assert read(lines(tmp_path / "n.jsonl", *rows))[0]["p"].turns[2].kept_tokens == kept


# ---------------------------------------------------------------------------------------- shapes


@pytest.mark.parametrize("before", [HEAD_ROWS - 1, HEAD_ROWS, 5 * HEAD_ROWS])
def test_a_session_behind_other_lines_is_recognised(tmp_path: Path, before: int) -> None:
    others = [{"type": "summary", "summary": f"the {n}th", "leafUuid": str(n)} for n in range(before)]
    assert [*read(lines(tmp_path / "s.jsonl", *others, ASKED, answered(3, 900, 20, 80)))[0]] == ["s"]


def test_a_session_behind_a_line_of_megabytes_is_recognised(tmp_path: Path) -> None:
    long = {"type": "summary", "summary": "x" * 5_000_000}
    assert [*read(lines(tmp_path / "s.jsonl", long, ASKED, answered(3, 900, 20, 80)))[0]] == ["s"]


def span(number: int, kind: str = "GENERATION", **more: Any) -> dict[str, Any]:
    at = f"2026-05-05T08:00:{10 * number:02d}Z"
    return {"id": f"o{number}", "traceId": "t", "type": kind, "startTime": at, "endTime": at[:-2] + "5Z", **more}


SPANS = [span(n, model="m", usage={"input": 100 * n, "output": 9}) for n in (1, 2)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"data": SPANS, "meta": {"page": 1}}),
        json.dumps({"data": SPANS, "next_cursor": None}),
        json.dumps({"data": SPANS}) + "\n" + json.dumps({"data": []}),
        "\n".join(json.dumps(each, indent=2) for each in SPANS),
        ",\n".join(json.dumps(each, indent=2) for each in SPANS),
        json.dumps([{"data": SPANS[:1]}, {"data": SPANS[1:]}]),
    ],
)
def test_rows_in_an_envelope_or_one_behind_the_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    (program,) = read(tmp_path / "rows.json")[0].values()
    assert program.prompt_tokens() == [100, 200]


def test_objects_one_behind_the_other_that_end_in_the_middle(tmp_path: Path) -> None:
    text = "\n".join(json.dumps(each, indent=2) for each in [*SPANS, span(3)])
    (tmp_path / "rows.json").write_text(text[:-9])
    programs, notes = read(tmp_path / "rows.json")
    assert programs["t"].prompt_tokens() == [100, 200]
    assert any("cut short" in note for note in notes)


@pytest.mark.parametrize("dumped", [json.dumps, repr], ids=["JSON", "Python"])
def test_objects_in_the_cells_of_a_table(tmp_path: Path, dumped: Any) -> None:
    quoted = ['"' + dumped(each["usage"]).replace('"', '""') + '"' for each in SPANS]
    rows = [f"{s['id']},t,GENERATION,{s['startTime']},{s['endTime']},{u}" for s, u in zip(SPANS, quoted, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,traceId,type,startTime,endTime,usage", *rows]))
    assert read(tmp_path / "rows.csv")[0]["t"].prompt_tokens() == [100, 200]


def test_names_with_dots_in_them(tmp_path: Path) -> None:
    rows = [
        {
            "context.trace_id": "t",
            "context.span_id": str(n),
            "start_time": f"2026-05-05T08:00:0{n}Z",
            "attributes.llm.token_count.prompt": 100 * n,
            "attributes.openinference.span.kind": "LLM",
        }
        for n in (1, 2)
    ]
    (tmp_path / "spans.json").write_text(json.dumps(rows))
    assert read(tmp_path / "spans.json")[0]["t"].prompt_tokens() == [100, 200]


# ---------------------------------------------------------------------------------------- spans


def chat(number: int, parent: str = "", **attributes: Any) -> dict[str, Any]:
    at = 1_777_968_000_000_000_000 + number * 10**10
    pairs = [{"key": f"gen_ai.{k}", "value": {"stringValue": str(v)}} for k, v in attributes.items()]
    pairs.append({"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}})
    times = {"startTimeUnixNano": str(at), "endTimeUnixNano": str(at + 10**9)}
    return {"traceId": "t", "spanId": f"s{number}", "parentSpanId": parent, "attributes": pairs, **times}


def usage(prompt: int, **more: Any) -> dict[str, Any]:
    return {"usage.input_tokens": prompt, "usage.output_tokens": 5, **more}


@pytest.mark.parametrize("form", ["resourceSpans", "batches", "trace"])
def test_each_span_is_of_the_conversation_that_it_names(tmp_path: Path, form: str) -> None:
    spans = [chat(n, **usage(100 * n), **{"conversation.id": "ab"[n % 2]}) for n in (1, 2, 3, 4)]
    batches = [{"resource": {}, "scopeSpans": [{"spans": spans}]}]
    row = {form: batches} if form != "trace" else {"trace": {"resourceSpans": batches}}
    programs, _ = read(lines(tmp_path / "t.json", row))
    assert {name: program.prompt_tokens() for name, program in programs.items()} == {"b": [100, 300], "a": [200, 400]}


@pytest.mark.parametrize(
    ("outer", "inner", "prompt"), [({}, usage(100), 100), (usage(900), usage(100), 100), (usage(900), {}, 900)]
)
def test_of_requests_within_each_other_the_innermost_with_counts_is_read(
    tmp_path: Path, outer: dict[str, Any], inner: dict[str, Any], prompt: int
) -> None:
    spans = [chat(1, **outer), chat(2, "s1", **inner)]
    programs, notes = read(lines(tmp_path / "t.json", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    assert [program.prompt_tokens() for program in programs.values()] == [[prompt]]
    assert any("counted once" in note for note in notes)


@pytest.mark.parametrize(("cached", "prompts"), [(1000, [1000, 500]), (1001, [2001, 900])])
def test_whether_cached_tokens_are_beside_the_prompt_s_is_one_decision(
    tmp_path: Path, cached: int, prompts: list[int]
) -> None:
    name = "usage.cache_read.input_tokens"
    spans = [
        chat(1, **usage(1000, **{name: cached, "request.model": "x/m-large"})),
        chat(2, **usage(500, **{name: 400, "request.model": "m-small"})),
    ]
    programs, _ = read(lines(tmp_path / "t.json", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    assert programs["t"].prompt_tokens() == prompts


# ---------------------------------------------------------------------------------------- single formats


def test_codex_counts_requests_without_totals(tmp_path: Path) -> None:
    def event(at: int, kind: str, **payload: Any) -> dict[str, Any]:
        return {"timestamp": f"2026-05-05T08:00:{at:02d}Z", "type": kind, "payload": payload}

    def count(at: int, prompt: int) -> dict[str, Any]:
        return event(at, "event_msg", type="token_count", info={"last_token_usage": {"input_tokens": prompt}})

    def message(at: int, role: str) -> dict[str, Any]:
        return event(at, "response_item", type="message", role=role)

    rows = [event(0, "session_meta", id="c"), message(1, "user"), message(2, "assistant"), count(3, 100)]
    rows += [count(3, 100), message(4, "user"), message(5, "assistant"), count(6, 100)]
    assert read(lines(tmp_path / "rollout-c.jsonl", *rows))[0]["c"].prompt_tokens() == [100, 100]


def test_what_stands_beside_the_messages_is_part_of_the_prompt(tmp_path: Path) -> None:
    call, told = {"id": "k", "function": {"name": "f"}}, {"tool_call_id": "k", "content": "z" * 400}
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "x" * 40, "system": "y" * 80},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_results": [told]},
        {"role": "assistant", "content": "end."},
    ]
    rows = [{"conversation_id": "c", "turn": n, **row} for n, row in enumerate(said)]
    program = read(lines(tmp_path / "c.jsonl", *rows))[0]["c"]
    assert program.prompt_tokens()[0] == 30
    assert program.turns[1].new_input_tokens == 100


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [
        ("2026-05-05T08:00:01", "2026-05-05T08:00:03", 2),
        ("2026-05-05T08:00:01Z", "2026-05-05T10:00:03+02:00", 2),
        ("2026-05-05T08:00:01", "2026-05-05T08:00:03Z", None),
    ],
)
def test_a_time_zone_that_one_stamp_lacks(tmp_path: Path, start: str, end: str, seconds: float | None) -> None:
    action = {"id": "e1", "kind": "ActionEvent", "timestamp": start, "tool_name": "look", "tool_call_id": "k"}
    seen = {"id": "e2", "kind": "ObservationEvent", "timestamp": end, "tool_call_id": "k"}
    counts = [{"response_id": "r", "prompt_tokens": 9, "completion_tokens": 1}]
    run = {
        "instance_id": "i",
        "history": [{**action, "llm_response_id": "r"}, seen],
        "metrics": {"token_usages": counts},
    }
    assert read(lines(tmp_path / "output.jsonl", run))[0]["i"].turns[0].tool_calls[0].duration_s == seconds


def test_a_function_call_in_sharegpt_s_form_is_an_answer(tmp_path: Path) -> None:
    called = json.dumps({"name": "look_up", "arguments": {"word": "moth"}})
    spoken = [("human", "q" * 40), ("function_call", called), ("observation", "o" * 80), ("gpt", "a" * 20)]
    row = {"conversations": [{"from": who, "value": text} for who, text in spoken]}
    (program,) = read(lines(tmp_path / "talk.jsonl", row))[0].values()
    assert [[call.name for call in turn.tool_calls] for turn in program.turns] == [["look_up"], []]
    assert program.prompt_tokens()[0] == 10
    assert program.turns[1].new_input_tokens == 20


# ---------------------------------------------------------------------------------------- one run in several files


UUID = "0a1b2c3d-0000-4000-8000-00000000000f"


def trajectory(name: str, *prompts: int, **more: Any) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"source": "user", "message": "Go"}]
    steps += [{"source": "agent", "metrics": {"prompt_tokens": n, "completion_tokens": 20}} for n in prompts]
    for step in steps:
        step["observation"] = {"results": []}
    return {"schema_version": "ATIF-v1.5", "session_id": name, "agent": {"name": "x"}, "steps": steps, **more}


def session(name: str, *prompts: int) -> list[dict[str, Any]]:
    rows = [said(0, "user", {"content": "Go"}, name)]
    for n, prompt in enumerate(prompts, 1):
        answer = answered(5 * n, prompt, 20, 80, stop_reason="end_turn")
        rows += [{**answer, "sessionId": name, "uuid": f"{name}/{n}"}]
        answer["message"]["id"] = f"{name}/{n}"
    return rows


@pytest.mark.parametrize(
    ("name", "other", "prompts", "once"),
    [
        ("s", "s", [1000, 1100], True),
        ("s", "s", [1000, 1200], True),  # half of them
        ("s", "s", [1001, 1200], False),  # a task of the same name
        (UUID, UUID, [1001, 1200], True),
        ("s", "t", [1000, 1100], True),  # every length is the same
        ("s", "t", [1000, 1101], False),
    ],
)
def test_a_run_in_two_formats_counts_once(
    tmp_path: Path, name: str, other: str, prompts: list[int], once: bool
) -> None:
    lines(tmp_path / "agent" / "trajectory.json", trajectory(other, *prompts))
    lines(tmp_path / "agent" / "sessions" / "a.jsonl", *session(name, 1000, 1100))
    programs, notes = read(tmp_path)
    assert [program.source for program in programs.values()] == ["claude-code", "terminal-bench"][: 2 - once]
    assert sum("counted once" in note for note in notes) == once


def test_two_thousand_files_of_four_formats_have_each_run_once(tmp_path: Path) -> None:
    """600 runs are in two formats; a task has two runs in numbers, and one that a session has, too."""
    for n in range(700):
        prompts = (1000 + 7 * n, 1100 + 7 * n)
        if n < 650:
            lines(tmp_path / f"job/{n}/trajectory.json", trajectory(f"s{n}", *prompts))
        if n < 600 or n >= 650:
            lines(tmp_path / f"job/{n}/sessions/a.jsonl", *session(f"s{n}", *prompts))
        rows = [{"program_id": f"t{n}", "prompt_tokens": each + 3, "output_tokens": 5} for each in prompts]
        lines(tmp_path / f"table/{n}.jsonl", *rows)
    round_ = {"session_id": "r", "round_index": 0, "input_tokens_total": 77, "output_tokens": 7, "tools": []}
    lines(tmp_path / "rounds.jsonl", round_)
    assert sum(each.is_file() for each in tmp_path.rglob("*")) == 2001
    log = ImportLog()
    sources = Counter(program.source for program in read_any(tmp_path, None, log))
    assert sources == {"claude-code": 650, "terminal-bench": 50, "numeric": 700, "tracelab": 1}
    assert any(line.startswith("600 ") and "counted once" in line for line in log.assumptions.lines())


def openhands(name: str, *ids: str) -> dict[str, Any]:
    counts = [{"response_id": each, "prompt_tokens": 100 + n, "completion_tokens": 9} for n, each in enumerate(ids)]
    return {"instance_id": name, "history": [], "metrics": {"token_usages": counts}}


@pytest.mark.parametrize(("ids", "number"), [(["r1", "r2"], 1), (["q1", "q2"], 2)])
def test_a_copy_of_a_file_counts_once_and_a_second_run_twice(tmp_path: Path, ids: list[str], number: int) -> None:
    lines(tmp_path / "one" / "output.jsonl", openhands("task", "r1", "r2"))
    lines(tmp_path / "two" / "output.jsonl", openhands("task", *ids))
    assert [*read(tmp_path)[0]] == ["task", "task#2"][:number]


def with_helper(name: str, **more: Any) -> dict[str, Any]:
    """Return a trajectory in which a sub-agent's step stands behind the first step."""
    whole = trajectory(name, 1000, 1100, **more)
    child = {"source": "agent", "metrics": {"prompt_tokens": 77, "completion_tokens": 3}}
    whole["steps"].insert(2, {**child, "extra": {"is_sidechain": True, "agent_id": "helper"}})
    return whole


def test_sub_agents_of_a_run_that_is_left_out_belong_to_the_other(tmp_path: Path) -> None:
    lines(tmp_path / "trajectory.json", with_helper("t"))
    lines(tmp_path / "a.jsonl", *session("s", 1000, 1100))
    programs, _ = read(tmp_path)
    assert {name: program.parent_id for name, program in programs.items()} == {"s": None, "helper": "s"}


@pytest.mark.parametrize("total", [2100, 2177])
def test_a_sidechain_s_steps_are_a_sub_agent_s(tmp_path: Path, total: int) -> None:
    whole = with_helper("t", final_metrics={"total_prompt_tokens": total})
    programs, notes = read(lines(tmp_path / "trajectory.json", whole))
    assert {name: each.prompt_tokens() for name, each in programs.items()} == {"t": [1000, 1100], "helper": [77]}
    assert (programs["helper"].parent_id, programs["helper"].parent_turn) == ("t", 0)
    assert not any("total" in note for note in notes)


def test_a_trajectory_goes_on_in_another_file(tmp_path: Path) -> None:
    for job in ("one", "two"):
        more = {"continued_trajectory_ref": "trajectory.cont-1.json", "final_metrics": {"total_prompt_tokens": 2100}}
        lines(tmp_path / job / "trajectory.json", trajectory(job, 1000, 1100, **more))
        last = trajectory(f"{job}-cont-1", 500, final_metrics={"total_prompt_tokens": 2600})
        lines(tmp_path / job / "trajectory.cont-1.json", last)
    programs, notes = read(tmp_path)
    assert [each.prompt_tokens() for each in programs.values()] == [[1000, 1100, 500]] * 2
    assert not any("total" in note for note in notes)
    (tmp_path / "two" / "trajectory.cont-1.json").unlink()
    assert any("continuation: its file is missing" in note for note in read(tmp_path)[1])


def asked(at: int, span_id: str, prompt: int) -> dict[str, Any]:
    counts = {"input_tokens": prompt, "output_tokens": 10, "total_tokens": prompt + 10}
    stamp = "2026-05-05T08:00:{:02d}Z"
    times = {"timestamp": stamp.format(at), "completed": stamp.format(at + 1)}
    return {"event": "model", "span_id": span_id, "model": "m", "output": {"usage": counts}, **times}


def begins(name: str, parent: str, kind: str = "agent") -> dict[str, Any]:
    return {"event": "span_begin", "id": name, "span_id": name, "parent_id": parent, "type": kind, "name": f"n{name}"}


@pytest.mark.parametrize(
    ("events", "programs"),
    [
        ([begins("a", "s"), asked(1, "a", 100), begins("b", "a"), asked(3, "b", 50), asked(5, "a", 120)], 2),
        ([begins("a", "s"), asked(1, "a", 100), begins("b", "a", "tool"), asked(3, "b", 50)], 1),
        ([begins("a", "s"), begins("b", "a"), asked(1, "b", 100), asked(3, "b", 150)], 1),  # the outer one asks nothing
        ([begins("a", "s"), asked(1, "a", 100), begins("c", "a", "x"), begins("b", "c"), asked(3, "b", 50)], 2),
    ],
)
def test_an_agent_that_an_agent_runs_is_a_program(tmp_path: Path, events: list[Any], programs: int) -> None:
    log = {"eval": {"task": "t"}, "samples": [{"id": "s", "epoch": 1, "events": events}]}
    read_programs, _ = read(lines(tmp_path / "log.json", log))
    assert [each.parent_id for each in read_programs.values()] == [None, "s"][:programs]
    assert [*read_programs] == ["s", "s/nb"][:programs]


# ---------------------------------------------------------------------------------------- logs of calls


def spent(number: int, session: str, prompt: int) -> dict[str, Any]:
    at = f"2026-05-05T08:00:{10 * number:02d}Z"
    row = {"request_id": f"q{number}", "call_type": "acompletion", "spend": 0.1, "model": "m", "messages": "{}"}
    counts = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    return {**row, **counts, "session_id": session, "startTime": at, "endTime": at[:-2] + "4Z"}


@pytest.mark.parametrize("wrapped", [False, True])
def test_spend_logs_are_joined_by_their_session(tmp_path: Path, wrapped: bool) -> None:
    rows = [spent(1, "a", 100), spent(2, "b", 300), spent(3, "a", 200), spent(4, "b", 400)]
    (tmp_path / "spend.json").write_text(json.dumps({"data": rows} if wrapped else rows))
    programs, _ = read(tmp_path / "spend.json")
    assert {name: each.prompt_tokens() for name, each in programs.items()} == {"a": [100, 200], "b": [300, 400]}
    assert [each.turns[0].gap_s for each in programs.values()] == [16, 16]


def responded(number: int, asked: Any, prompt: int, *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    counts = {"input_tokens": prompt, "output_tokens": 5, "total_tokens": prompt + 5}
    answer = {"id": f"resp{number}", "object": "response", "output": list(output), "usage": counts}
    return {"request": {"model": "m", "input": asked, **more}, "response": answer, "timestamp": 1_777_968_000 + number}


CALL = {"type": "function_call", "call_id": "k", "name": "look", "arguments": "{}"}
SEEN = {"type": "function_call_output", "call_id": "k", "output": "a moth"}


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ([{"role": "user", "content": "What is it?"}, {**CALL, "status": "completed"}, SEEN], {}),
        ([SEEN], {"previous_response_id": "resp1"}),
    ],
)
def test_calls_of_the_responses_api_are_joined(tmp_path: Path, asked: list[Any], more: dict[str, Any]) -> None:
    thought = {"type": "reasoning", "summary": []}
    rows = [responded(1, "What is it?", 100, thought, CALL), responded(9, asked, 150, **more)]
    rows.append(responded(5, "Another one", 70))
    programs, _ = read(lines(tmp_path / "calls.jsonl", *rows))
    assert [each.prompt_tokens() for each in programs.values()] == [[100, 150], [70]]
    assert [call.name for call in next(iter(programs.values())).turns[0].tool_calls] == ["look"]


def test_of_the_texts_of_calls_only_what_opens_a_conversation_is_kept(tmp_path: Path) -> None:
    opening = [{"role": "system", "content": "x" * 4000}, {"role": "user", "content": "Go"}]
    said_since = [{"role": "assistant", "content": "y" * 4000}, {"role": "user", "content": "z" * 4000}]
    counts = {"usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    rows = [{"messages": [*opening, *said_since * n], "response": counts} for n in range(3)]
    calls = list(read_call_logs(Source(lines(tmp_path / "calls.jsonl", *rows))))
    assert {call.opening for call in calls} == {("x" * 4000, "Go")}
    assert len({id(call.opening[0]) for call in calls}) == 1


# ---------------------------------------------------------------------------------------- what is exact


TALK = {"messages": [{"role": "user", "content": "a"}, {"role": "ai", "content": "b"}]}


def test_a_trace_says_how_much_of_it_is_exact(tmp_path: Path) -> None:
    rows = session("s", 1000, 1100)
    rows[1]["message"] |= {
        "stop_reason": None,
        "content": [{"type": "tool_use", "id": "k", "name": "look", "input": {}}],
    }
    lines(tmp_path / "in" / "s.jsonl", *rows)
    lines(tmp_path / "in" / "t.jsonl", TALK)
    log = ImportLog()
    write_programs(tmp_path / "out.jsonl", read_any(tmp_path / "in", None, log), log.assumptions, log.truth)
    said_of = {
        "programs": 2,
        "turns": 3,
        "prompt": [2, 1, 0],
        "output": [1, 2, 0],
        "cached": [2, 0, 1],
        "tools": [0, 0, 1],
        "estimated_from": {
            "prompt": ["4 characters a token"],
            "output": ["its text, and what the next prompt grew", "4 characters a token"],
        },
    }
    assert read_header(tmp_path / "out.jsonl")["counts"] == said_of
    again = ImportLog()
    assert len(list(read_any(tmp_path / "out.jsonl", None, again))) == 2
    assert again.truth.as_json() == said_of
    line = "of 3 turns, prompts: 1 estimated of 3; outputs: 2 estimated of 3; cached tokens: 1 unknown of 3; "
    assert again.truth.line() == line + "tool times: 1 unknown of 1"


@pytest.mark.parametrize(
    "counts",
    [{}, [], {"programs": 1, "turns": "1"}, {"programs": 1, "turns": 1, "prompt": [1, 0, 0], "output": [1, 0, 0]}],
)
def test_a_header_with_other_counts_says_nothing(tmp_path: Path, counts: Any) -> None:
    head = {"kind": "header", "schema": "continuum-trace", "version": 1, "counts": counts}
    turn = {"kind": "turn", "program_id": "p", "turn": 0, "new_input_tokens": 9, "output_tokens": 1}
    log = ImportLog()
    file = lines(tmp_path / "t.jsonl", head, {"kind": "program", "program_id": "p"}, turn)
    assert len(list(read_any(file, None, log))) == 1
    assert log.truth.programs == 0


def test_what_is_left_out_for_the_same_reason_is_said_once(tmp_path: Path) -> None:
    talks = [{"id": str(n), "messages": [{"role": "user", "content": "?"}]} for n in range(5)]
    lines(
        tmp_path / "t.jsonl", *talks, {"messages": [{"role": "user", "content": "a"}, {"role": "ai", "content": "b"}]}
    )
    said_out: list[LeftOut] = []
    log = ImportLog(said_out.append)
    assert len(list(read_any(tmp_path, None, log))) == 1
    assert ([each.program_id for each in said_out], log.programs_left_out) == (["0"], 5)
    assert log.further_left_out() == ["4 more: no answer in it"]


def test_claude_s_stream_is_its_session(tmp_path: Path) -> None:
    """What ``--output-format stream-json`` prints has other names and no times."""
    rows = [{**row, "session_id": "s", "parent_tool_use_id": None} for row in session("s", 1000, 1100)]
    for row in rows:
        del row["sessionId"], row["timestamp"]
    helper = answered(3, 70, 5, 8, stop_reason="end_turn")
    helper["message"]["id"] = "h"
    del helper["sessionId"], helper["timestamp"]
    stream = [{"type": "system", "subtype": "init", "session_id": "s"}, *rows[:2]]
    stream += [{**helper, "session_id": "s", "parent_tool_use_id": "k"}, rows[2], {"type": "result", "usage": {}}]
    lines(tmp_path / "claude-code.txt", *stream)
    programs, _ = read(tmp_path / "claude-code.txt")
    assert {name: each.prompt_tokens() for name, each in programs.items()} == {"s": [1000, 1100], "k": [70]}
    assert programs["k"].parent_id == "s"
    lines(tmp_path / "a" / "s.jsonl", *session("s", 1000, 1100))
    both, notes = read(tmp_path)
    assert both["s"].prompt_tokens() == [1000, 1100]
    assert both["s"].turns[0].llm_s == 5
    assert any("2 answers: repeated in another file: counted once" in note for note in notes)


def test_calls_of_two_sessions_can_have_the_same_id(tmp_path: Path) -> None:
    for name in ("s", "t"):
        rows = session(name, 1000, 1100)
        rows[1]["message"]["content"] = [{"type": "tool_use", "id": "k", "name": "look", "input": {}}]
        seen = said(7, "user", {"content": [{"type": "tool_result", "tool_use_id": "k", "content": "ok"}]}, name)
        lines(tmp_path / f"{name}.jsonl", *rows[:2], seen, rows[2])
    programs, _ = read(tmp_path)
    assert [[call.duration_s for call in each.turns[0].tool_calls] for each in programs.values()] == [[2.0]] * 2


def jaeger(number: int, kind: str = "chat", **tags: Any) -> dict[str, Any]:
    pairs = [{"key": "gen_ai.operation.name", "type": "string", "value": kind}]
    pairs += [{"key": f"gen_ai.usage.{name}", "type": "int64", "value": value} for name, value in tags.items()]
    span_of = {"traceID": "t", "spanID": f"s{number}", "operationName": "look", "references": [], "tags": pairs}
    return {**span_of, "startTime": 1_777_968_000_000_000 + number * 10**7, "duration": 3_000_000}


def mlflow(number: int, kind: str, **counts: int) -> dict[str, Any]:
    at = 1_777_968_000_000_000_000 + number * 10**10
    attributes = {"mlflow.spanType": json.dumps(kind), "mlflow.chat.tokenUsage": json.dumps(counts) if counts else None}
    times = {"start_time_unix_nano": at, "end_time_unix_nano": at + 3 * 10**9}
    return {"trace_id": "t", "span_id": f"s{number}", "name": "look", "attributes": attributes, **times}


def weave(number: int, parent: str | None, prompt: int) -> dict[str, Any]:
    at = f"2026-05-05T08:00:{10 * number:02d}Z"
    counts = {"m-4.1": {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}}
    row = {"id": f"w{number}", "op_name": f"op{number}", "trace_id": "t", "parent_id": parent, "started_at": at}
    return {**row, "ended_at": at[:-2] + "3Z", "summary": {"usage": counts}}


TRACED = {
    "jaeger": {
        "data": [
            {
                "traceID": "t",
                "spans": [
                    jaeger(1, input_tokens=100, output_tokens=5),
                    jaeger(2, "execute_tool"),
                    jaeger(3, input_tokens=200, output_tokens=5),
                ],
                "processes": {},
            }
        ],
        "errors": None,
    },
    "mlflow": {
        "info": {"trace_id": "tr", "trace_metadata": {"mlflow.trace.session": "t"}},
        "data": {
            "spans": [
                mlflow(1, "CHAT_MODEL", input_tokens=100, output_tokens=5),
                mlflow(2, "TOOL"),
                mlflow(3, "LLM", input_tokens=200, output_tokens=5),
            ]
        },
    },
    "weave": [weave(0, None, 300), weave(1, "w0", 100), weave(3, "w0", 200)],
}


@pytest.mark.parametrize("tool", TRACED)
def test_what_tracing_tools_export(tmp_path: Path, tool: str) -> None:
    (tmp_path / "trace.json").write_text(json.dumps(TRACED[tool]))
    (program,) = read(tmp_path / "trace.json")[0].values()
    assert (program.program_id, program.prompt_tokens()) == ("t", [100, 200])
    calls = [(call.name, call.duration_s) for call in program.turns[0].tool_calls]
    assert calls == ([] if tool == "weave" else [("look", 3)])


def test_a_state_of_langgraph_is_a_conversation(tmp_path: Path) -> None:
    programs, _ = read(lines(tmp_path / "state.json", {"values": TALK, "next": [], "config": {}}))
    assert [len(each.turns) for each in programs.values()] == [1]


# ---- kinds found by a second search: spans and logs


def prompts(programs: dict[str, Program]) -> dict[str, list[int]]:
    return {name: program.prompt_tokens() for name, program in programs.items()}


def ran(program: Program, turn: int = 0) -> list[tuple[str, float | None]]:
    return [(call.name, call.duration_s) for call in program.turns[turn].tool_calls]


def run_of(number: int, kind: str, begin: int, end: int, parent: int | None = 0, **more: Any) -> dict[str, Any]:
    """Return a run as LangSmith exports it."""
    times = {side: f"2026-05-05T08:00:{at:02d}" for side, at in (("start_time", begin), ("end_time", end))}
    ids = {"id": f"r{number}", "trace_id": "r0", "parent_run_id": None if parent is None else f"r{parent}"}
    return {**ids, "run_type": kind, "name": f"{kind}-{number}", **times, **more}


def llm(number: int, begin: int, prompt: int, parent: int = 0, **more: Any) -> dict[str, Any]:
    return run_of(number, "llm", begin, begin + 2, parent, prompt_tokens=prompt, completion_tokens=5, **more)


LOOP = [run_of(0, "chain", 0, 30, None), llm(1, 0, 100), run_of(2, "tool", 2, 9), llm(3, 10, 200)]


def test_a_tool_that_sends_requests_is_a_sub_agent(tmp_path: Path) -> None:
    """Whether or not a span of the kind agent is around its requests, and its tools are its own."""
    asked = [llm(5, 3, 40, 4), run_of(6, "tool", 5, 6, 4), llm(7, 7, 60, 4)]
    for name, kind in (("chain", "chain"), ("agent", "agent")):
        programs, _ = read(lines(tmp_path / f"{name}.jsonl", *LOOP, run_of(4, kind, 2, 9, 2), *asked))
        (main, child), (_, child_id) = programs.values(), programs
        assert (main.program_id, *prompts(programs).values()) == ("r0", [100, 200], [40, 60])
        assert (child.parent_id, child.parent_turn, child_id.split("/")[0]) == ("r0", 0, "r0")
        assert (ran(main), ran(child)) == ([("tool-2", 7)], [("tool-6", 1)])


def test_tools_that_nobody_runs_have_no_parent(tmp_path: Path) -> None:
    runs = [run_of(0, "tool", 0, 9, None), llm(1, 1, 40)]
    programs, _ = read(lines(tmp_path / "runs.jsonl", *runs))
    assert [(each.parent_id, each.prompt_tokens()) for each in programs.values()] == [(None, [40])]


def test_cached_tokens_of_langsmith_and_litellm(tmp_path: Path) -> None:
    runs = [llm(1, 0, 100, prompt_token_details={"cache_read": 80}, prompt_cost_details={"cache_read": 0.5})]
    assert next(iter(read(lines(tmp_path / "runs.jsonl", *runs))[0].values())).turns[0].cached_tokens == 80
    places = ("usage_object", {"prompt_tokens_details": {"cached_tokens": 80}})
    others = ("additional_usage_values", {"cache_read_input_tokens": 80, "service_tier": None})
    for n, (place, counts) in enumerate((places, others, ("usage_object", {}))):
        for as_text in (False, True):
            metadata: Any = {place: counts}
            row = billed(1, 100, metadata=json.dumps(metadata) if as_text else metadata)
            (program,) = read(lines(tmp_path / f"{n}{as_text}.jsonl", row))[0].values()
            assert (program.prompt_tokens(), program.turns[0].cached_tokens) == ([100], None if n == 2 else 80)


def billed(number: int, prompt: int, **more: Any) -> dict[str, Any]:
    """Return a row as LiteLLM logs it."""
    times = {"startTime": 1_777_968_000.0 + 8 * number, "endTime": 1_777_968_003.0 + 8 * number}
    counts = {"prompt_tokens": prompt, "completion_tokens": 5, "total_tokens": prompt + 5}
    return {"request_id": f"q{number}", "call_type": "acompletion", "session_id": "s", **times, **counts, **more}


@pytest.mark.parametrize("hidden", [[{"role": "user", "content": "redacted-by-litellm"}], "redacted-by-litellm", {}])
def test_calls_without_their_messages_are_joined_by_session(tmp_path: Path, hidden: Any) -> None:
    rest = {"messages": hidden, "response": {"text": "redacted-by-litellm"}}
    rows = [billed(n, 100 * n, session_id=name, **rest) for n, name in ((1, "a"), (2, "a"), (3, "b"), (4, "a"))]
    programs, _ = read(lines(tmp_path / "rows.jsonl", *rows))
    assert prompts(programs) == {"a": [100, 200, 400], "b": [300]}
    assert [each.shared_prefix_tokens for each in programs.values()] == [0, 0]


def test_embeddings_are_no_turns(tmp_path: Path) -> None:
    listed = {"object": "list", "data": [{"object": "embedding"}], "usage": {"prompt_tokens": 9, "total_tokens": 9}}
    asked = {"request": {"input": "a"}, "response": listed}
    programs, notes = read(lines(tmp_path / "a.jsonl", billed(1, 100), billed(2, 9, call_type="aembedding"), asked))
    assert prompts(programs) == {"s": [100]}
    assert any(note.startswith("2 calls: of embeddings: left out") for note in notes)


OTLP = [{"scopeSpans": [{"spans": [{**mlflow(n, "LLM", input_tokens=100 * n, output_tokens=5)} for n in (1, 2)]}]}]
for each in OTLP[0]["scopeSpans"][0]["spans"]:
    each.update({"traceId": each.pop("trace_id"), "spanId": each.pop("span_id")})
OF_MLFLOW = TRACED["mlflow"]["data"]["spans"]
ENVELOPED = {
    "langsmith": {"runs": LOOP, "cursors": {"next": None}, "parsed_query": None},
    "tempo": {"trace": {"resourceSpans": OTLP}, "status": "COMPLETE", "metrics": {"inspectedBytes": "1"}},
    "jaeger": {"result": {"resourceSpans": OTLP}, "error": {}},
    "mlflow-artifact": {"spans": OF_MLFLOW},
    "mlflow-api": {"trace": {"trace_info": {"trace_metadata": {"mlflow.trace.session": "t"}}, "spans": OF_MLFLOW}},
}


@pytest.mark.parametrize("api", ENVELOPED)
def test_envelopes_of_tracing_tools(tmp_path: Path, api: str) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(ENVELOPED[api]))
    programs, _ = read(tmp_path / "answer.json")
    assert prompts(programs) == {"r0" if api == "langsmith" else "t": [100, 200]}


@pytest.mark.parametrize("result", [True, 5, "resourceSpans", None, ["resourceSpans"]])
def test_a_result_that_is_no_envelope(tmp_path: Path, result: Any) -> None:
    (program,) = read(lines(tmp_path / "rows.jsonl", billed(1, 100, result=result)))[0].values()
    assert program.prompt_tokens() == [100]


def test_times_of_the_responses_api(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}
    rows = [
        {
            "request": {"input": "Go" if n == 1 else [], "previous_response_id": None if n == 1 else "r1"},
            "response": {
                "id": f"r{n}",
                "created_at": 1_777_968_000 + 8 * n,
                "completed_at": 1_777_968_003 + 8 * n,
                "output": [call if n == 1 else said],
                "usage": {"input_tokens": 100 * n, "output_tokens": 5, "total_tokens": 100 * n + 5},
            },
        }
        for n in (1, 2)
    ]
    programs, notes = read(lines(tmp_path / "calls.jsonl", *rows))
    (program,) = programs.values()
    assert (program.prompt_tokens(), ran(program), program.turns[0].llm_s) == ([100, 200], [("look", 5)], 3)
    assert not any("no times" in note for note in notes)


def flat(number: int, response: Any, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a call whose times are those of a proxy, and whose answer is no choice."""
    times = {"request_created_at": f"2026-05-05T08:00:{10 * number:02d}Z"}
    times["response_created_at"] = f"2026-05-05T08:00:{10 * number + 3:02d}Z"
    usage = {"prompt_tokens": 100 * number, "completion_tokens": 5, "total_tokens": 100 * number + 5}
    answer = {**response, "usage": usage} if isinstance(response, dict) else response
    return {"messages": [{"role": "user", "content": "Go"}, *messages], "response": answer, "usage": usage, **times}


def test_answers_that_are_flat_or_a_text(tmp_path: Path) -> None:
    """A call's name stands beside its id, a content of several lines is a list, an answer is its text."""
    called = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]}
    told = {"role": "tool", "content": "r", "tool_call_id": "c"}
    two = {"role": "assistant", "content": ["one", "two"]}
    rows = [
        flat(1, {"content": None, "tool_calls": [{"id": "c", "name": "look", "arguments": {}}]}),
        flat(2, {"content": "one\ntwo", "tool_calls": None}, called, told),
        flat(3, "Bye", called, told, two, {"role": "user", "content": "ok"}),
    ]
    (program,) = read(lines(tmp_path / "calls.jsonl", *rows))[0].values()
    assert (program.prompt_tokens(), ran(program), program.turns[1].gap_overhead_s) == (
        [100, 200, 300],
        [("look", 7)],
        7,
    )
    (alone,) = read(lines(tmp_path / "text.jsonl", rows[2]))[0].values()
    assert alone.prompt_tokens() == [300]


def test_openhands_counts_of_titles_are_left_out(tmp_path: Path) -> None:
    """But not if no entry's answers are in an event."""

    def entry(*names: str) -> dict[str, Any]:
        return {"token_usages": [{"response_id": n, "prompt_tokens": 100, "completion_tokens": 5} for n in names]}

    stats = {"usage_to_metrics": {"agent": entry("r1", "r2"), "title": entry("t1"), "condenser": {"token_usages": []}}}
    (tmp_path / "run/events").mkdir(parents=True)
    (tmp_path / "run/base_state.json").write_text(json.dumps({"id": "c", "agent": {}, "stats": stats}))
    event = {"id": "e", "kind": "MessageEvent", "timestamp": "2026-05-05T08:00:00", "source": "agent"}
    for answer, turns, note in (("r2", 2, True), ("else", 3, False)):
        text = json.dumps({**event, "llm_response_id": answer})
        (tmp_path / "run/events/event-0.json").write_text(text)
        programs, notes = read(tmp_path / "run")
        assert [len(each.turns) for each in programs.values()] == [turns]
        assert any(each.startswith("1 request: in no event, as of a title: left out") for each in notes) == note


def test_messages_of_lmcache(tmp_path: Path) -> None:
    begun = [{"role": "user", "content": "a" * 400}]
    more = [{"role": "assistant", "content": "b" * 40}, {"role": "tool", "content": "c" * 80}]
    sent = [(begun, 10, 0.0), (begun + more, 20, 2.5)]
    rows = [
        {"session_id": "s", "model": "m", "input": said, "output_length": output, "pre_gap": gap}
        for said, output, gap in sent
    ]
    (program,) = read(lines(tmp_path / "rows.jsonl", *rows))[0].values()
    assert (program.prompt_tokens(), program.model) == ([100, 130], "m")
    assert [(turn.output_tokens, turn.gap_overhead_s) for turn in program.turns] == [(10, 2.5), (20, 0)]


@pytest.mark.parametrize(("begin_s", "arrivals"), [(2e9, [5, 0]), (1_000_000_001, [5, 0]), (1e9, [1e9 + 5, 1e9])])
def test_instants_are_arrivals_since_the_first(tmp_path: Path, begin_s: float, arrivals: list[float]) -> None:
    """Of all files of the format; what begins near 0 stays."""
    for n, at in enumerate((begin_s + 5, begin_s)):
        lines(tmp_path / f"{n}.jsonl", {"timestamp": at * 1000, "input_length": 100 + n, "output_length": 5})
    assert [each.arrival_s for each in read(tmp_path)[0].values()] == arrivals
