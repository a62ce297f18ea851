"""Sessions and spans of agents: what the samples of ``test_importers.py`` don't show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.codex import COPIED_S
from continuum_traces.importers.inspect_ai import zipfile
from continuum_traces.importers.registry import ImportLog, read_any
from continuum_traces.importers.timeline import AnsweredRequest, Thread, TimedCall, programs_on_timeline, seconds
from continuum_traces.importers.usage import Imported, RequestUsage
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
