"""Sessions and spans of agents: what the samples of ``test_importers.py`` don't show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.importers.codex import COPIED_S
from continuum_traces.importers.described import Imported, RequestUsage
from continuum_traces.importers.inspect_ai import zipfile
from continuum_traces.importers.registry import ImportLog, read_any
from continuum_traces.importers.timed_requests import AnsweredRequest, Thread, TimedCall, programs_on_timeline, seconds
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.schema import Program

ZSTANDARD = [zipfile.ZIP_ZSTANDARD] if hasattr(zipfile, "ZIP_ZSTANDARD") else []
"""What Inspect writes today: requirements/embedded.txt has the library that reads it."""
SAMPLES = Path(__file__).with_name("samples")


def written(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def imported(path: Path) -> tuple[dict[str, Program], list[str]]:
    """Return the programs by their ids, and what was assumed, without examples."""
    log = ImportLog()
    programs = {program.program_id: program for program in read_any(path, None, log)}
    return programs, [f"{each.count} {each.thing}: {each.text}" for each in log.assumptions]


# ------------------------------------------------------------------------------------------- timeline


def on_timeline(*answers: AnsweredRequest) -> tuple[Imported, list[str]]:
    assumptions = Assumptions()
    (program,) = programs_on_timeline([Thread("p", None, list(answers))], "x", assumptions)
    return program, [f"{each.count} {each.thing}: {each.text}" for each in assumptions]


def answer(sent_s: float, end_s: float, *calls: TimedCall, **more: Any) -> AnsweredRequest:
    return AnsweredRequest(RequestUsage(100, 10, cached_tokens=64), sent_s, end_s, list(calls), **more)


def test_gaps_end_when_the_next_request_is_sent() -> None:
    serial = TimedCall("b", 6.0, 7.0)
    early = TimedCall("a", 4.0, 5.5)
    late = TimedCall("c", 5.0, 99.0)
    first, last = on_timeline(answer(1, 5, early, serial, late), answer(8, 9, TimedCall("d", None, 9.5)))[0].requests
    assert [(c.name, c.start_s, c.duration_s) for c in first.tool_calls] == [("a", 0, 0.5), ("b", 1, 1), ("c", 0, 3)]
    assert (first.gap_overhead_s, first.llm_s) == (0.0, 4.0)
    assert [c.duration_s for c in last.tool_calls] == [0.5]
    waited, _ = on_timeline(answer(1, 5, TimedCall("a", 5, 6), TimedCall("?")), answer(9, 10))[0].requests
    assert ([c.duration_s for c in waited.tool_calls], waited.gap_overhead_s) == ([1.0, None], 3.0)


def test_gaps_of_unknown_length_are_said() -> None:
    unknown = AnsweredRequest(RequestUsage(100, 10))
    assert on_timeline(unknown, unknown)[1] == ["1 gap: of unknown length, taken as 0 s"]
    timed = AnsweredRequest(RequestUsage(100, 10), end_s=5.0, calls=[TimedCall("a", 5.0, 6.0)])
    assert on_timeline(timed, unknown)[1] == []


TASK = TimedCall("Task", 5.0, 30.0)


@pytest.mark.parametrize(
    ("parent", "sent_s", "started"),
    [
        ([answer(1, 5, TASK), answer(31, 40)], 4.9, (0, 0.0)),  # before the first turn ends
        ([answer(1, 5, TASK), answer(31, 40)], 5.0, (0, 0.0)),
        ([answer(1, 5, TASK), answer(31, 40)], 39.9, (0, 34.9)),
        ([answer(1, 5), answer(6, 40, TASK)], 42.5, (1, 2.5)),
        ([answer(1, 5, TASK), answer(31, 40)], 40.0, (None, 0.0)),  # a user's fork of the session
        ([AnsweredRequest(RequestUsage(100, 10), 1.0)], 5.0, (None, 0.0)),
        ([], 5.0, (None, 0.0)),
    ],
)
def test_a_sub_agent_follows_the_turn_that_ended_before_it(
    parent: list[AnsweredRequest], sent_s: float, started: tuple[int | None, float]
) -> None:
    threads = [Thread("p", None, parent), Thread("c", "p", [answer(sent_s, sent_s + 1)])]
    child = next(each for each in programs_on_timeline(threads, "x", Assumptions()) if each.program.parent_id)
    assert (child.program.parent_turn, child.program.parent_gap_s) == started


@pytest.mark.parametrize(("sent_s", "said"), [(4.999, 0), (4.998, 1), (5.0, 0)])
def test_requests_that_overlap_are_said(sent_s: float, said: int) -> None:
    program, lines = on_timeline(answer(1, 5), answer(sent_s, 6))
    assert program.requests[0].gap_overhead_s == 0.0
    assert len(lines) == said


def test_a_compaction_keeps_what_was_cached() -> None:
    assert [each.kept_tokens for each in on_timeline(answer(1, 2), answer(3, 4, compacted=True))[0].requests] == [
        None,
        64,
    ]


@pytest.mark.parametrize(
    ("value", "instant"),
    [
        ("2026-01-01T00:00:00Z", 1767225600.0),
        ("2026-01-01T01:00:00+01:00", 1767225600.0),
        ("2026-01-01T00:00:00", 1767225600.0),
        (1767225600.5, 1767225600.5),
        (9_999_999_999, 9_999_999_999.0),
        (10_000_000_000, 10_000_000.0),
        (1767225600500, 1767225600.5),
        ("1767225600500000000", 1767225600.5),
        (-1, None),
        (None, None),
        ("soon", None),
    ],
)
def test_instants(value: Any, instant: float | None) -> None:
    assert seconds(value) == instant


# ---------------------------------------------------------------------------------------- Claude Code

CLAUDE = SAMPLES / "claude-sessions/-home-me-shop"
FIRST = "aaaaaaaa-0000-4000-8000-000000000001"


def test_a_sub_agent_alone_names_its_session() -> None:
    programs, _ = imported(CLAUDE / FIRST / "subagents/agent-ag1.jsonl")
    assert {name: program.parent_id for name, program in programs.items()} == {"ag1": FIRST}


def test_answers_count_once_wherever_the_final_counts_are(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (CLAUDE / f"{FIRST}.jsonl").read_text().splitlines()[:6]]
    swapped = [*rows[:3], rows[5], rows[4], rows[3]]
    for order in (rows, swapped):
        programs, _ = imported(written(tmp_path / "s.jsonl", *order))
        assert [(turn.new_input_tokens, turn.output_tokens) for turn in programs[FIRST].turns] == [(20010, 150)]


def test_what_the_caller_says_of_a_sub_agent_is_compared(tmp_path: Path) -> None:
    session = (CLAUDE / f"{FIRST}.jsonl").read_text().splitlines()[:-1]
    agent = (CLAUDE / FIRST / "subagents/agent-ag1.jsonl").read_text().splitlines()
    text = "1 sub-agent: its last request has other token counts than its caller says"
    for tokens, said in ((8231, False), (8232, True)):
        rows = [json.loads(line.replace('"totalTokens": 8231', f'"totalTokens": {tokens}')) for line in session]
        written(tmp_path / "s.jsonl", *rows)
        written(tmp_path / "agent-ag1.jsonl", *map(json.loads, agent))
        assert (text in imported(tmp_path)[1]) == said


def test_a_resumed_session_goes_on_only_at_the_end_of_the_other(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (CLAUDE / f"{FIRST}.jsonl").read_text().splitlines()[2:9]]
    more = {**rows[-1], "uuid": "new", "timestamp": "2026-05-01T11:00:00.000Z"}
    more["message"] = {**more["message"], "id": "msg_new", "content": []}
    for last, ids in ((9, [FIRST]), (5, [FIRST, "other"])):
        written(tmp_path / "a.jsonl", *rows)
        written(tmp_path / "b.jsonl", *({**row, "sessionId": "other"} for row in (*rows[: last - 1], more)))
        programs, lines = imported(tmp_path)
        assert list(programs) == ids
        assert sum(len(program.turns) for program in programs.values()) == 3
        assert any(line.endswith("counts as new input") for line in lines) == (len(ids) == 2)


# ---------------------------------------------------------------------------------------------- Codex


def codex(at: str, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-05-02T09:00:{at}Z", "type": kind, "payload": payload}


def counted(at: str, total: int, last: int) -> dict[str, Any]:
    usage = ({"input_tokens": tokens, "output_tokens": 1} for tokens in (total, last))
    info = dict(zip(("total_token_usage", "last_token_usage"), usage, strict=True))
    return codex(at, "event_msg", type="token_count", info=info)


@pytest.mark.parametrize(("at", "prompts"), [("11.000", [600]), ("11.001", [500, 600])])
def test_lines_copied_at_a_fork_do_not_count(tmp_path: Path, at: str, prompts: list[int]) -> None:
    assert COPIED_S == 1.0
    meta = [codex("10.000", "session_meta", id=name) for name in ("child", "parent")]
    rows = [*meta, counted(at, 500, 500), counted("30.000", 1100, 600)]
    programs, _ = imported(written(tmp_path / "r.jsonl", *rows))
    assert programs["child"].prompt_tokens() == prompts


def test_a_resumed_thread_has_its_own_first_line_again(tmp_path: Path) -> None:
    meta = codex("10.000", "session_meta", id="th")
    programs, _ = imported(written(tmp_path / "r.jsonl", meta, meta, counted("10.500", 500, 500)))
    assert programs["th"].prompt_tokens() == [500]


@pytest.mark.parametrize("totals", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_a_thread_resumed_in_another_file_has_all_its_requests_once(tmp_path: Path, totals: bool, copied: bool) -> None:
    """Codex repeats the lines before, or goes on behind them."""

    def rows(*numbers: int) -> list[dict[str, Any]]:
        rows = [codex("01.000", "session_meta", id="th")]
        for n in numbers:
            rows.append(codex(f"{n}0.000", "response_item", type="message", role="assistant"))
            rows.append(counted(f"{n}5.000", sum(500 + 100 * m for m in range(1, n + 1)), 500 + 100 * n))
            rows[-1]["payload"]["info"] |= {} if totals else {"total_token_usage": None}
        return rows

    written(tmp_path / "a.jsonl", *rows(1, 2))
    written(tmp_path / "b.jsonl", *rows(*(1, 2, 3) if copied else (3,)))
    programs, _ = imported(tmp_path)
    assert programs["th"].prompt_tokens() == [600, 700, 800]


def test_requests_of_the_parent_s_file_count_once(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", codex("01.000", "session_meta", id="parent"), counted("05.000", 500, 500))
    meta = codex("20.000", "session_meta", id="child", forked_from_id="parent")
    written(tmp_path / "b.jsonl", meta, counted("25.000", 500, 500), counted("30.000", 1100, 600))
    programs, lines = imported(tmp_path)
    assert {name: each.prompt_tokens() for name, each in programs.items()} == {"parent": [500], "child": [600]}
    assert "1 request: repeated from the thread that was forked: counted once" in lines


# ---------------------------------------------------------------------------------------------- spans


def test_spans_sent_twice_and_attributes_as_text(tmp_path: Path) -> None:
    """Logfire writes attributes as text."""
    attributes = json.dumps(
        {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 70, "gen_ai.usage.output_tokens": 7}
    )
    row = {"trace_id": "t", "span_id": "s", "span_name": "chat m", "start_timestamp": "2026-05-01T10:00:00Z"}
    row |= {"end_timestamp": "2026-05-01T10:00:02Z", "attributes": attributes}
    programs, _ = imported(written(tmp_path / "x.jsonl", row, row))
    assert [(turn.new_input_tokens, turn.llm_s) for turn in programs["t"].turns] == [(70, 2.0)]


@pytest.mark.parametrize(
    ("kind", "turns"), [({}, 1), ({"gen_ai.operation.name": "embeddings"}, 0), ({"run_type": "chain"}, 0)]
)
def test_a_span_with_token_counts_is_a_request_unless_its_kind_says_otherwise(
    tmp_path: Path, kind: dict[str, str], turns: int
) -> None:
    row = {"trace_id": "t", "span_id": "s", "start_time": "2026-05-01T10:00:00Z", **kind}
    row["attributes"] = {"gen_ai.usage.prompt_tokens": 70, "gen_ai.usage.completion_tokens": 7}  # type: ignore[assignment]
    programs, lines = imported(written(tmp_path / "x.jsonl", row))
    assert [len(program.turns) for program in programs.values()] == [1] * turns
    assert lines == ([] if turns else ["1 file: without a span of a request"])


@pytest.mark.parametrize(("cached", "prompt"), [(100, 100), (101, 201)])
def test_cached_tokens_beside_the_prompt_s_are_added(tmp_path: Path, cached: int, prompt: int) -> None:
    usage = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.cache_read_input_tokens": cached}
    row = {"trace_id": "t", "span_id": "s", "start_time": "2026-05-01T10:00:00Z", "attributes": usage}
    row["attributes"] |= {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": 7}
    programs, lines = imported(written(tmp_path / "x.jsonl", row))
    assert programs["t"].prompt_tokens() == [prompt]
    assert len(lines) == (prompt > 100)


def test_agents_beside_each_other_are_programs_of_their_own(tmp_path: Path) -> None:
    def span(name: str, parent: str, second: int, **attributes: Any) -> dict[str, Any]:
        at = f"2026-05-01T10:00:{second:02d}Z"
        return {"trace_id": "t", "span_id": name, "parent_span_id": parent, "start_time": at, "attributes": attributes}

    agent = {"gen_ai.operation.name": "invoke_agent"}
    chat = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 70, "gen_ai.usage.output_tokens": 7}
    rows = [span("crew", "", 0, **agent), span("c1", "a", 2, **chat), span("c2", "b", 3, **chat)]
    rows += [span(name, "crew", 1, **agent, **{"gen_ai.agent.name": name}) for name in ("a", "b")]
    programs, _ = imported(written(tmp_path / "x.jsonl", *rows))
    assert {name: each.parent_id for name, each in programs.items()} == {"t/a": None, "t/b": None}


# ---------------------------------------------------------------------------------------- the others


def test_swe_agent_s_lengths_without_its_sums(tmp_path: Path) -> None:
    data = json.loads((SAMPLES / "swe-trajectory/bike-1.traj").read_text())
    data["info"]["model_stats"] = {"api_calls": 3}
    programs, lines = imported(written(tmp_path / "bike-1.traj", data))
    assert [turn.output_tokens for turn in programs["bike-1"].turns] == [22, 2, 1]
    assert lines[0] == "1 program: lengths estimated at 4 characters a token"
    assert not any("total" in line for line in lines)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, *ZSTANDARD])
def test_inspect_s_archives_hold_the_same(tmp_path: Path, compression: int) -> None:
    log = json.loads((SAMPLES / "inspect-log/log.json").read_text())
    with zipfile.ZipFile(tmp_path / "log.eval", "w", compression) as archive:
        archive.writestr("header.json", "{}")
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
    assert imported(tmp_path / "log.eval") == imported(SAMPLES / "inspect-log/log.json")


# ---- kinds found by a second search: sessions and messages

ASK = {"role": "user", "content": "x" * 40}
REPLY = {"role": "assistant", "content": "y" * 20}
COUNTS = {"prompt_tokens": 900, "completion_tokens": 30}


def lengths(program: Program) -> list[tuple[int, int]]:
    return [(*pair,) for pair in zip(program.prompt_tokens(), [t.output_tokens for t in program.turns], strict=True)]


@pytest.mark.parametrize(
    ("messages", "completion", "read"),
    [
        ([ASK, REPLY], {}, [(900, 30)]),
        ([ASK], {"completion": "y"}, [(900, 30)]),
        ([ASK, REPLY, ASK], {"completion": "y"}, [(10, 5), (900, 30)]),
        ([ASK, REPLY, ASK, REPLY], {}, [(10, 5), (25, 5)]),  # the counts can be those of both
        (
            [ASK, {**REPLY, "usage_metadata": {"input_tokens": 7, "output_tokens": 3}}, ASK, REPLY],
            {},
            [(7, 3), (20, 5)],
        ),
    ],
)
def test_counts_beside_the_messages_are_those_of_the_only_answer(
    tmp_path: Path, messages: list[Any], completion: dict[str, str], read: list[tuple[int, int]]
) -> None:
    row = {"id": "talk", "model": "m", "messages": messages, **completion, "usage": COUNTS}
    programs, said = imported(written(tmp_path / "x.jsonl", row))
    assert lengths(programs["talk"]) == read
    assert any("of its last answer or of all" in line for line in said) == (read[-1] != (900, 30))


def claude(second: int, kind: str, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    at = f"2026-05-06T07:00:{second:02d}Z"
    head = {"type": kind, "sessionId": "s", "uuid": f"u{second}{len(more)}", "timestamp": at}
    return {**head, "message": {"role": kind, **message}, **more}


@pytest.mark.parametrize(
    ("grown", "output", "carried"),
    [
        (120, 300, 110),  # the text, and no more of the thoughts than there is room for beside the question
        (310, 300, None),
        (309, 300, 299),
        (99, 299, 89),
        (10, 210, 0),
        (5, 205, 0),
    ],
)
def test_of_an_answer_with_a_first_count_the_next_prompt_repeats_what_it_has_room_for(
    tmp_path: Path, grown: int, output: int, carried: int | None
) -> None:
    usage = {"input_tokens": 1000, "output_tokens": 4}
    blocks = [{"type": "thinking", "thinking": "t" * 800}, {"type": "text", "text": "x" * 400}]
    rows = [claude(0, "user", {"content": "Go"})]
    rows += [
        claude(n, "assistant", {"id": "a", "content": [block], "stop_reason": None, "usage": usage})
        for n, block in enumerate(blocks, 1)
    ]
    last = {"id": "b", "stop_reason": "end_turn", "usage": {"input_tokens": 1000 + grown, "output_tokens": 5}}
    rows += [claude(4, "user", {"content": "q" * 40}), claude(6, "assistant", {**last, "content": []})]
    programs, said = imported(written(tmp_path / "s.jsonl", *rows))
    assert [(t.output_tokens, t.carried_tokens) for t in programs["s"].turns] == [(output, carried), (5, None)]
    assert programs["s"].turns[1].kept_tokens is None
    assert not any("nothing of the answer" in line for line in said)


@pytest.mark.parametrize(("prompt", "cached", "carried"), [(900, 700, 18), (901, None, None)])
def test_counts_in_two_places_complete_each_other(
    tmp_path: Path, prompt: int, cached: int | None, carried: int | None
) -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 700}, "completion_tokens_details": {"reasoning_tokens": 12}}
    raw = {"usage": {**COUNTS, "prompt_tokens": prompt, **details}}
    told = [ASK, {**REPLY, "usage": COUNTS, "raw_data": raw}]
    programs, _ = imported(written(tmp_path / "x.jsonl", {"id": "talk", "messages": told}))
    (turn,) = programs["talk"].turns
    assert (turn.new_input_tokens, turn.output_tokens) == (900, 30)
    assert (turn.cached_tokens, turn.carried_tokens) == (cached, carried)


def test_what_claude_streams_has_last_counts_and_the_calls_of_sub_agents(tmp_path: Path) -> None:
    def stream(agent: str | None, **event: Any) -> dict[str, Any]:
        return {"type": "stream_event", "session_id": "s", "parent_tool_use_id": agent, "event": event}

    def told(agent: str | None, ident: str, prompt: int, *content: Any) -> list[dict[str, Any]]:
        message = {"id": ident, "model": "m", "usage": {"input_tokens": prompt, "output_tokens": 1}}
        whole = {**message, "role": "assistant", "content": content, "stop_reason": None}
        line = {"type": "assistant", "session_id": "s", "parent_tool_use_id": agent, "message": whole}
        return [stream(agent, type="message_start", message=message), line]

    def end(agent: str | None, output: int) -> dict[str, Any]:
        usage = {"output_tokens": output}
        return stream(agent, type="message_delta", delta={"stop_reason": "end_turn"}, usage=usage)

    call = {"type": "tool_use", "id": "k", "name": "Task", "input": {}}
    rows = [*told(None, "m1", 500), end(None, 40), *told(None, "m2", 600, call), end(None, 60)]
    rows += [*told("k", "m3", 90), *told(None, "m4", 800), end("k", 7), end(None, 80)]
    programs, said = imported(written(tmp_path / "out.jsonl", *rows))
    assert {name: lengths(each) for name, each in programs.items()} == {
        "s": [(500, 40), (600, 60), (800, 80)],
        "k": [(90, 7)],
    }
    assert (programs["k"].parent_id, programs["k"].parent_turn) == ("s", 1)
    assert not any("count of its beginning" in line for line in said)


def kimi(second: int, kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": 1_777_968_000.0 + second, "message": {"type": kind, "payload": payload}}


def status(second: int, prompt: int, output: int, ident: str) -> dict[str, Any]:
    return kimi(second, "StatusUpdate", token_usage={"input_other": prompt, "output": output}, message_id=ident)


@pytest.mark.parametrize(
    ("ident", "name"),
    [
        ({"task_tool_call_id": "c"}, "home/c"),
        ({"parent_tool_call_id": "c"}, "home/c"),
        ({"parent_tool_call_id": "c", "agent_id": "helper"}, "helper"),
    ],
)
def test_sub_agents_of_kimi_are_programs(tmp_path: Path, ident: dict[str, str], name: str) -> None:
    side = [kimi(4, "StepBegin"), status(6, 70, 9, "k1")]
    call = kimi(2, "ToolCall", id="c", function={"name": "Task", "arguments": "{}"})
    rows = [kimi(0, "TurnBegin", user_input="Go"), kimi(0, "StepBegin"), call, status(3, 500, 40, "m1")]
    rows += [kimi(int(row["timestamp"] % 60), "SubagentEvent", **ident, event=row["message"]) for row in side]
    rows += [kimi(8, "ToolResult", tool_call_id="c"), kimi(8, "StepBegin"), status(9, 600, 20, "m2")]
    file = written(tmp_path / "home/wire.jsonl", *rows)
    written(tmp_path / "home/agents/helper/wire.jsonl", {"type": "metadata", "protocol_version": "1"}, *side)
    for path in (file, *([tmp_path] if name == "helper" else [])):  # beside its own file it counts once
        programs, _ = imported(path)
        assert {each: lengths(program) for each, program in programs.items()} == {
            "home": [(500, 40), (600, 20)],
            name: [(70, 9)],
        }
        assert (programs[name].parent_id, programs[name].parent_turn) == ("home", 0)


@pytest.mark.parametrize(
    ("sizes", "read", "estimated"), [((500, 540, 700, 720), [(500, 40), (700, 20)], False),
                                     ((None, 540, None, 720), [(535, 5), (715, 5)], True)]
)  # fmt: skip
def test_sizes_between_the_messages_of_kimi(
    tmp_path: Path, sizes: tuple[int | None, ...], read: list[tuple[int, int]], estimated: bool
) -> None:
    a, b, c, d = ([{"role": "_usage", "token_count": size}] if size else [] for size in sizes)
    result = {"role": "tool", "content": "r" * 80}
    rows = [{"role": "_system_prompt", "content": "s"}, ASK, *a, REPLY, *b, result, *c, REPLY, *d]
    programs, said = imported(written(tmp_path / "context.jsonl", *rows))
    assert lengths(programs["context"]) == read
    assert any("estimated" in line for line in said) == estimated


def test_states_of_a_thread_are_one_conversation(tmp_path: Path) -> None:
    def state(thread: str, length: int) -> dict[str, Any]:
        told = [{"type": kind, "content": "x" * 8, "id": f"{thread}{n}"} for n, kind in enumerate(["human", "ai"] * 2)]
        return {"values": {"messages": told[:length]}, "next": [], "config": {"configurable": {"thread_id": thread}}}

    states = [state("a", 2), state("a", 4), state("a", 1), state("b", 2)]
    (tmp_path / "states.json").write_text(json.dumps(states))
    programs, said = imported(tmp_path / "states.json")
    assert [len(each.turns) for each in programs.values()] == [2, 1]
    assert not any("left out" in line for line in said)


AGENT = {"source": "helper", "type": "TextMessage", "content": "x"}
REQUEST = {"parts": [{"part_kind": "user-prompt", "content": "x" * 40}], "kind": "request"}
RESPONSE = {
    "parts": [{"part_kind": "tool-call", "tool_name": "look", "args": {}, "tool_call_id": "c"}],
    "usage": {"input_tokens": 900, "cache_read_tokens": 700, "output_tokens": 30},
    "kind": "response",
}
RETURN = {"parts": [{"part_kind": "tool-return", "tool_call_id": "c", "content": "r"}], "kind": "request"}
AI = {"content": "y", "type": "ai", "usage_metadata": {"input_tokens": 900, "output_tokens": 30}}
HUMAN = {"content": "x" * 40, "type": "human"}
OPENCODE = {"id": "msg_2", "sessionID": "ses_1", "role": "assistant", "tokens": {"input": 900, "output": 30}}


@pytest.mark.parametrize(
    ("rows", "read"),
    [
        ([{"messages": [{**AGENT, "source": "user"}, {**AGENT, "content": "y", "models_usage": COUNTS}]}], [(900, 30)]),
        ([{"type": "session", "id": "p", "cwd": "/"}, {"type": "message_end", "message": ASK},
          {"type": "message_end", "message": {**REPLY, "usage": COUNTS, "timestamp": 1_777_968_000_000}}], [(900, 30)]),
        ([REQUEST, RESPONSE, RETURN], [(900, 30)]),
        ([{"lc": 1, "type": "constructor", "id": ["m"], "kwargs": each} for each in (HUMAN, AI)], [(900, 30)]),
        ([{"type": each["type"], "data": each} for each in (HUMAN, AI)], [(900, 30)]),
        ([{"info": {**OPENCODE, "id": "msg_1", "role": "user"}, "parts": []}, {"info": OPENCODE, "parts": []}],
         [(900, 30)]),
        ([{**ASK, "conversation": "c"}, REPLY], [(10, 5)]),
        ([{"id": "c", "messages": json.dumps([ASK, REPLY])}], [(10, 5)]),
        ([{"id": "c", "conversations": [ASK, REPLY]}], [(10, 5)]),
        ([{"conversation_id": "c", "conversation": [ASK, REPLY]}], [(10, 5)]),
        ([{"instance_id": "c", "trajectory": [ASK, REPLY], "exit_status": "ok"}], [(10, 5)]),
        ([{"trajectory": [{"role": "system", "system_prompt": "s" * 40, "text": None}, ASK, REPLY]}], [(20, 5)]),
    ],
    ids=["AutoGen", "pi", "Pydantic AI", "dumps", "messages_to_dict", "OpenCode", "bare", "JSON", "conversations",
         "conversation", "trajectory", "system_prompt"],
)  # fmt: skip
def test_other_places_of_messages(tmp_path: Path, rows: list[Any], read: list[tuple[int, int]]) -> None:
    programs, _ = imported(written(tmp_path / "x.jsonl", *rows))
    assert [lengths(each) for each in programs.values()] == [read]


EVENTS = [
    {**AGENT, "type": "ToolCallRequestEvent", "models_usage": COUNTS, "created_at": "2026-05-06T07:00:01Z"},
    {**AGENT, "type": "ToolCallExecutionEvent", "models_usage": None, "created_at": "2026-05-06T07:00:04Z"},
]
EVENTS[0]["content"] = [{"id": "c", "name": "look", "arguments": "{}"}]
EVENTS[1]["content"] = [{"call_id": "c", "name": "look", "content": "r"}]
TIMED = [{**RESPONSE, "timestamp": "2026-05-06T07:00:01Z"}, {**RETURN, "timestamp": "2026-05-06T07:00:04Z"}]


@pytest.mark.parametrize(
    "rows", [[{"messages": [{**AGENT, "source": "user"}, *EVENTS]}], [REQUEST, *TIMED]], ids=["AutoGen", "Pydantic AI"]
)
def test_other_places_of_calls(tmp_path: Path, rows: list[Any]) -> None:
    (program,) = imported(written(tmp_path / "x.jsonl", *rows))[0].values()
    assert [[(call.name, call.duration_s) for call in turn.tool_calls] for turn in program.turns] == [[("look", 3.0)]]


def test_pi_s_printed_answers_have_no_end(tmp_path: Path) -> None:
    call = {"type": "toolCall", "id": "c", "name": "look", "arguments": {}}
    rows = [{**REPLY, "content": [call]}, {"role": "toolResult", "toolCallId": "c"}, REPLY]
    told = [{**row, "usage": COUNTS, "timestamp": 1_777_968_000_000 + n} for n, row in enumerate([ASK, *rows])]
    lines = [{"type": "message_end", "message": message} for message in told]
    programs, _ = imported(written(tmp_path / "x.jsonl", {"type": "session", "id": "p", "cwd": "/"}, *lines))
    assert [turn.llm_s for turn in programs["p"].turns] == [None, None]
    assert [call.duration_s for call in programs["p"].turns[0].tool_calls] == [None]


def test_reasons_are_true(tmp_path: Path) -> None:
    items = [ASK, {"type": "reasoning", "summary": []}, {"type": "message", **REPLY}]
    _, said = imported(written(tmp_path / "items.jsonl", *items))
    assert not any("left out" in line for line in said)
    old = [{"id": "i", "timestamp": "2025-06-01T10:00:00Z", "instructions": None}, {"record_type": "state"}, *items]
    log = ImportLog()
    assert list(read_any(written(tmp_path / "rollout.jsonl", *old), None, log)) == []
    assert list(log.reasons) == ["no answer has token counts"]


def test_a_task_of_roo_names_the_task_that_started_it(tmp_path: Path) -> None:
    for name, second, parent in (("a", 0, None), ("b", 5, "a")):
        request = json.dumps({"tokensIn": 70, "tokensOut": 7})
        said = [("api_req_started", request), ("text", "I look"), ("tool", "{}")]
        rows = [{"ts": 1_777_968_000_000 + 1000 * (second + n), "type": "say", "say": kind, "text": text}
                for n, (kind, text) in enumerate(said)]  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "ui_messages.json").write_text(json.dumps(rows))
        (tmp_path / name / "history_item.json").write_text(json.dumps({"id": name, "parentTaskId": parent}))
    programs, _ = imported(tmp_path)
    assert [(each.parent_id, each.parent_turn) for each in programs.values()] == [(None, None), ("a", 0)]
