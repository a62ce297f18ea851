"""Import logs in which a row is a request, with counts, times and ids of blocks: one reader for all.

``FORMS`` says what each format has where, as the fields of a ``Form``. A ``Column`` returns a value of a row, which
follows its place; the functions behind ``Form`` make the usual ones. A format of this kind is one more entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

from continuum_traces.importers.described import (
    CHARACTERS,
    CHARS_PER_TOKEN,
    ESTIMATED,
    TOTAL_DIFFERS,
    UNKNOWN,
    Imported,
    RequestUsage,
    Row,
    calls_sharing_a_time,
    count_of,
    estimate_tokens,
    first_of,
    in_order,
    inner,
    listed,
    number,
    rows_by,
)
from continuum_traces.importers.importer import Importer, Signs, Source, Wanted, is_table
from continuum_traces.importers.text_tokens import message_text, message_tokens, prompt_head_tokens
from continuum_traces.importers.timed_requests import seconds
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.programs.truth import OUTPUT, PROMPT
from continuum_traces.schema import Program, ToolCall

Column = Callable[[str, Mapping[str, Any]], Any]
MS, US, NS = 1e-3, 1e-6, 1e-9
WHOLE = "message_array_with_responses"
"""aiperf's ``context_mode`` of sessions whose rows are whole prompts."""
BLOCK_TOKENS = 16
"""Tokens of a block in Qwen-Bailian's traces, and in the texts that are compared here."""
BRANCH = "goes on from a request that another one goes on from: a program of its own"
START_TO_START = "time to the next counted from start to start: the answer's own time is part of it"


class Estimate(int):
    """A token count that was estimated from text."""


def nothing(where: str, row: Mapping[str, Any]) -> Any:
    """The column of a format that doesn't say this."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A format: what its rows have where."""

    doc: str
    needs: Sequence[str]
    """Fields that every row of the file has. They are signs of the format."""
    signs: Sequence[Mapping[str, Wanted]] = ({},)
    """Further signs; one of these sets is enough."""
    more: Sequence[str] = ()
    without: Sequence[str] = ()
    prompt: Column
    output: Column
    program: str = ""
    """The field with the id of a row's program. A row without one is a program."""
    order: str = ""
    """The field by which a program's rows are sorted; ``turn`` counts them."""
    requests: str = ""
    """The field with a program's requests, if a row is a whole program."""
    sessions: Callable[[Source, Iterable[Row]], Iterable[list[Row]]] | None = None
    """Makes programs of the rows, if no field names them."""
    adds: bool = False
    """A row can be only what its turn adds to the conversation."""
    cached: Column = nothing
    new: Column = nothing
    """New tokens of the prompt, of use if the history was rewritten."""
    sent_s: Column = nothing
    llm_s: Column = nothing
    tools: Column = nothing
    """The names of the tools behind the answer, or their calls."""
    tools_s: Column = nothing
    other_s: Column = nothing
    """Other time until the next request."""
    before: bool = False
    """``tools_s``, ``other_s`` and ``gap_s`` of a request stand in the row of the next request."""
    gap_s: Column = nothing
    """The whole time until the next request. Without this and ``other_s`` it is counted from the rows' ``sent_s``."""
    total: Column = nothing
    """The source's own sum of prompt and output."""
    model: Column = nothing
    source: Column = nothing
    parent: Column = nothing
    """What ``Program`` says of the program that started a row's program, by field."""
    ids: Column = nothing
    block_tokens: int | None = None
    messages: Column = nothing
    """The texts of the messages of a program's first row."""
    failed: str = ""
    """What a row without output is."""


def count(name: str) -> Column:
    """Return the column of a count without which a row is refused."""
    return lambda where, row: count_of(where, row, name)


def some(*names: str) -> Column:
    """Return the column of the first of these counts that is there."""
    return lambda where, row: first_of(where, row, *names)


def time(name: str, unit: float = 1.0, needed: bool = False) -> Column:
    """Return the column of seconds in a field whose unit is so many seconds."""
    return lambda where, row: None if row.get(name) is None and not needed else float(number(where, row, name)) * unit


def ids_of(name: str) -> Column:
    return lambda where, row: listed(where, row, name, int)


def estimate(name: str) -> Column:
    """Return the column of the estimated tokens of a text, or of messages."""
    return lambda where, row: Estimate(estimate_tokens(_words(where, row, name)))


def _words(where: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name) or ""
    return value if isinstance(value, str) else "".join(map(message_text, listed(where, row, name, dict)))


def text(name: str) -> Column:
    return lambda where, row: row.get(name)


def _instant(where: str, row: Mapping[str, Any]) -> float:
    at_s = seconds(row["TIMESTAMP"])
    if at_s is None:
        raise TraceError(f"{where}: TIMESTAMP: expected an instant, found {str(row['TIMESTAMP'])[:60]!r}")
    return at_s


def _names(where: str, row: Mapping[str, Any]) -> list[str]:
    """Return the numeric format's tools: a list, or a cell of a table in which ``;`` is between them."""
    name = "tools_main" if row.get("tools_main") else "tools"
    cell = isinstance(row.get(name), str) and is_table(Path(where.rpartition(":")[0]))
    return row[name].split(";") if cell else listed(where, row, name, str)


def _one_by_one(where: str, row: Mapping[str, Any]) -> Iterator[ToolCall]:
    """Yield the tool calls of an agentperf row. Each one began when the one before had ended."""
    start_s = 0.0
    for call in listed(where, row, "recorded_tool_calls_after", dict):
        took_s = time("duration_ms", 1e-3)(where, call)
        yield ToolCall(str(call.get("tool_name") or UNKNOWN), took_s, start_s)
        start_s += took_s or 0.0


def _task_prompt(where: str, row: Mapping[str, Any]) -> int:
    """Return agentperf's recorded count, or else an estimate."""
    recorded = first_of(where, row, "recorded_prompt_tokens")
    if recorded is not None:
        return recorded
    messages = listed(where, row, "messages", dict)
    return Estimate(prompt_head_tokens(row) + sum(message_tokens(each, lambda *_: None) for each in messages))


def _of_text(where: str, row: Mapping[str, Any]) -> list[int]:
    """Return ids of the blocks of a prompt whose text is there."""
    size, prompt = BLOCK_TOKENS * CHARS_PER_TOKEN, _words(where, row, "input")
    blocks = (prompt[at : at + size].encode() for at in range(0, len(prompt), size))
    return [int.from_bytes(blake2b(block, digest_size=7).digest()) for block in blocks]


def _chats(file: Source, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield Bailian's chats: each request goes on from its ``parent_chat_id`` (-1: from none)."""
    by_id: dict[str, Row] = {}
    for where, row in rows:
        again = by_id.setdefault(str(row["chat_id"]), (where, row))[0] != where
        file.assume("request", "with the chat_id of an earlier one: left out", int(again))
    latest: dict[str, list[Row]] = {}
    for where, row in in_order(list(by_id.values()), "timestamp"):
        parent = str(row["parent_chat_id"])
        begun = latest.pop(parent, [])
        file.assume("chat", "its earlier requests are not in the file", int(parent != "-1" and parent not in by_id))
        file.assume("chat", BRANCH, int(parent in by_id and not begun))
        latest[str(row["chat_id"])] = [*begun, (where, row)]
    yield from sorted(latest.values(), key=lambda chat: number(chat[0][0], chat[0][1], "timestamp"))


_AIPERF = {"usage_prompt_tokens": "input_sequence_length", "usage_completion_tokens": "output_sequence_length"}
"""Names of aiperf's token counts: the server's own, and the one that aiperf makes, for servers that report none."""


def _profiled(file: Source, rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the requests of each conversation that aiperf played. Sub-agents come after all other conversations."""
    flat = [(where, _flat(where, row)) for where, row in rows]
    warm_up = sum(row.get("benchmark_phase") == "warmup" for _, row in flat)
    file.assume("request", "of the warm-up: left out", warm_up)
    named = rows_by("program", [each for each in flat if each[1].get("benchmark_phase") != "warmup"])
    plays = {name: in_order(play, "request_start_ns") for name, play in named.items()}
    for name, play in plays.items():
        where, first = play[0]
        root = first.get("root_correlation_id")
        if root in plays and root != name:
            ends_ns = [number(*each, "request_end_ns") for each in plays[str(root)]]
            start_ns = number(where, first, "request_start_ns")
            before = [end_ns for end_ns in sorted(ends_ns) if end_ns <= start_ns]
            gap_s = (start_ns - before[-1]) * NS if before else 0.0
            started = {"parent_id": str(root), "parent_turn": max(0, len(before) - 1), "parent_gap_s": gap_s}
            play[0] = (where, {**first, "parent": started})
    yield from sorted(plays.values(), key=lambda play: "parent" in play[0][1])


def _flat(where: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of aiperf with its metrics as fields; counts of a failed request are 0."""
    said, metrics = (inner(where, row, name) for name in ("metadata", "metrics"))
    values = {name: inner(where, metrics, name).get("value") for name in metrics}
    counts = {name: values.get(name, values.get(other, 0)) for name, other in _AIPERF.items()}
    if row.get("error") is not None:
        counts = dict.fromkeys(counts, 0)
    return {**values, **said, **counts, "program": said.get("x_correlation_id") or said.get("conversation_id")}


# ------------------------------------------------------------------------------------------------- the one reader


def _sessions(file: Source, form: Form) -> Iterator[tuple[str, list[Row], Row, bool]]:
    """Yield each program's name and rows, the row with its arrival, model and source, and whether its rows are whole
    prompts if they don't say it themselves."""
    rows = file.rows(*form.needs)
    if form.sessions is not None:
        yield from ((str(chat[0][1][form.program]), chat, chat[0], True) for chat in form.sessions(file, rows))
        return
    named: list[Row] = []
    for n, (where, row) in enumerate(rows, 1):
        name = row.get(form.program)
        if form.requests in row:
            inner = listed(where, row, form.requests, dict)
            places = [(f"{where}: {form.requests}[{m}]", each) for m, each in enumerate(inner)]
            yield str(name or f"session-{n}"), places, (where, row), True
        elif name is None:
            yield f"request-{n}", [(where, row)], (where, row), True
        else:
            named.append((where, row))
    groups = rows_by(form.program, named)
    whole = not form.adds or any(_repeats(form, group) for group in groups.values())
    for name, group in groups.items():
        ordered = _ordered(file, form, group)
        yield name, ordered, ordered[0], whole


def _ordered(file: Source, form: Form, rows: list[Row]) -> list[Row]:
    """Return a program's rows in their order.

    Raises:
        TraceError: a turn is there twice.
    """
    ordered = in_order(rows, form.order) if len(rows) > 1 else rows
    turns = [row.get(form.order) for _, row in ordered]
    if form.order != "turn" or None in turns:
        return ordered
    for (where, _), turn, before in zip(ordered[1:], turns[1:], turns, strict=False):
        if turn == before:
            raise TraceError(f"{where}: turn: {turn} is there twice")
    missing = count_of(*ordered[-1], "turn") - count_of(*ordered[0], "turn") + 1 - len(turns)
    file.assume("turn", "missing in the table; what came after it is taken as its successor", missing)
    return ordered


def _reader(name: str, form: Form) -> Callable[[Source], Iterator[Imported]]:
    def read(file: Source) -> Iterator[Imported]:
        for program_id, rows, head, whole in _sessions(file, form):
            source, model = str(form.source(*head) or name.replace("-", "_")), form.model(*head)
            program = Program(program_id, (), source, model, arrival_s=form.sent_s(*head), **(form.parent(*head) or {}))
            messages = form.messages(*head) or ()
            yield replace(_program(file, form, program, rows, _whole(file, form, rows, whole)), messages=messages)

    read.__doc__ = form.doc
    return read


def _repeats(form: Form, rows: list[Row]) -> bool:
    ids = [form.ids(*row) for row in rows]
    return any(before and after and before[0] == after[0] for before, after in pairwise(ids))


def _whole(file: Source, form: Form, rows: list[Row], whole: bool) -> bool:
    """Return whether each row is a whole prompt: what the rows say, or else ``whole``."""
    mode = rows[0][1].get("context_mode") if form.adds else None
    whole = whole if mode is None else mode == WHOLE
    if len(rows) > 1 and (form.adds or form.failed):
        file.assume("session", "each row read as a whole prompt" if whole else "each row added to the rows before it")
    return whole


def _program(file: Source, form: Form, program: Program, rows: list[Row], whole: bool) -> Imported:
    answered = [row for row in rows if not form.failed or form.output(*row)]
    file.assume("request", f"{form.failed}: left out", len(rows) - len(answered) if answered else 0)
    requests, ids, context = list[RequestUsage](), list[Any](), 0
    for row, after in zip(answered, [*answered[1:], None], strict=False):
        request = _request(file, form, row, after)
        ids.append((form.ids(*row) or ()) if whole or not requests else ())
        prompt = context + request.prompt_tokens
        requests.append(replace(request, prompt_tokens=prompt))
        context = 0 if whole else prompt + request.output_tokens
    file.assume("program", ESTIMATED, int(any(each.estimated for each in requests)))
    imported = Imported(program, requests, ids=ids, block_tokens=form.block_tokens)
    return replace(imported, empty=f"a {form.failed}") if form.failed else imported


def _request(file: Source, form: Form, row: Row, after: Row | None) -> RequestUsage:
    """Return the request of a row, with the tools and the time until the next request."""
    counts, estimated = dict[str, int](), dict[str, str]()
    for name, column in ((PROMPT, form.prompt), (OUTPUT, form.output)):
        value = column(*row)
        counts[name] = int(value or 0)
        if isinstance(value, Estimate):
            estimated[name] = CHARACTERS
    file.assume("request", TOTAL_DIFFERS, int(form.total(*row) not in (None, sum(counts.values()))))
    behind = after if form.before else row
    tools_s, other_s = (None, None) if behind is None else (form.tools_s(*behind), form.other_s(*behind))
    tools = tuple(form.tools(*row) or ())
    if not all(isinstance(each, ToolCall) for each in tools) or (tools_s and not tools):
        tools = calls_sharing_a_time(tools or (UNKNOWN,), tools_s)
    gap_s = form.gap_s(*behind) if behind is not None and other_s is None else None
    if gap_s is None and other_s is None and after is not None:
        gap_s = _between(file, form, row, after)
    if gap_s is not None:
        other_s = max(0.0, gap_s - max((call.end_s for call in tools), default=0.0))
    return RequestUsage(
        counts[PROMPT],
        counts[OUTPUT],
        new_tokens_hint=form.new(*row),
        estimated=estimated,
        tool_calls=tools,
        gap_overhead_s=other_s or 0.0,
        cached_tokens=form.cached(*row),
        llm_s=form.llm_s(*row),
    )


def _between(file: Source, form: Form, row: Row, after: Row) -> float | None:
    """Return the seconds between a request and the next, of a source that says when each was sent; None: it doesn't."""
    start_s, next_s, took_s = form.sent_s(*row), form.sent_s(*after), form.llm_s(*row)
    if form.other_s is not nothing or start_s is None or next_s is None:
        return None
    file.assume("request", START_TO_START, int(took_s is None))
    return max(0.0, float(next_s - start_s - (took_s or 0.0)))


# ------------------------------------------------------------------------------------------------------ the formats


_LENGTHS = {"prompt": count("input_length"), "output": count("output_length"), "ids": ids_of("hash_ids")}
_TIMES = {"order": "timestamp", "sent_s": time("timestamp", MS), "other_s": time("delay", MS), "before": True}
_MORE = ("timestamp", "hash_ids", "session_id", "delay", "context_mode", "tool_wait_ms", "wait_for", "turn", "type")
_BAILIAN = ("chat_id", "parent_chat_id")
# fmt: off
FORMS: dict[str, dict[str, Any]] = {
    "numeric": {
        "doc": """Token counts and seconds without text: one turn per line, JSON or CSV (tools divided by ``;``), in the
            order of ``turn`` if it is there.""",
        "needs": ("program_id", "prompt_tokens", "output_tokens"),
        "more": ("turn", "tools", "tools_main", "tool_s", "pack_s", "new_input_tokens", "src"),
        "program": "program_id", "order": "turn", "source": text("src"), "model": text("model"),
        "prompt": count("prompt_tokens"), "output": count("output_tokens"), "new": some("new_input_tokens"),
        "cached": some("cached_tokens"), "tools": _names, "tools_s": time("tool_s"), "other_s": time("pack_s"),
        "llm_s": time("llm_s"),
    },
    "mooncake": {
        "doc": """One request per line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, ``delay``
            (ms, before the request). Rows with the same ``session_id`` are the turns of a program; a row without it is
            a whole program.

            As in aiperf, a later row of a session holds what its turn adds to the conversation. It is a whole prompt if
            ``context_mode`` says so, or without one if some row's ``hash_ids`` begin like those of the row before.""",
        "needs": ("input_length", "output_length"), "more": _MORE,
        "without": ("tool_wait_ms", "wait_for", "request_id", *_BAILIAN),
        "program": "session_id", "adds": True, **_LENGTHS, **_TIMES,
    },
    "agentic-mooncake": {
        "doc": """One request per line, with its whole prompt. ``tool_wait_ms`` is the time of the tools, ``delay`` (ms)
            is other time.""",
        "needs": ("input_length", "output_length", "request_id"), "signs": ({"session_id": object},), "more": _MORE,
        "without": _BAILIAN, "program": "session_id", "tools_s": time("tool_wait_ms", MS), **_LENGTHS, **_TIMES,
    },
    "bailian": {
        "doc": """Qwen-Bailian's usage traces: one request per line, with its whole prompt. ``parent_chat_id`` is the
            chat's request before it (-1: none), ``timestamp`` is in seconds, ``hash_ids`` name blocks of 16 tokens.""",
        "needs": ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"), "more": _MORE,
        "program": "chat_id", "sessions": _chats, "sent_s": time("timestamp", needed=True),
        "block_tokens": BLOCK_TOKENS, **_LENGTHS,
    },
    "azure": {
        "doc": """Azure's LLM inference traces: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. Each row is a
            program.""",
        "needs": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "sent_s": _instant,
        "prompt": count("ContextTokens"), "output": count("GeneratedTokens"),
    },
    "burstgpt": {
        "doc": """BurstGPT: ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``. Rows with the same
            ``Session ID`` are the turns of a program, a row without it is a program. ``Elapsed time`` (s) is how
            long the answer took. A row with 0 response tokens is a failed request.""",
        "needs": ("Timestamp", "Request tokens", "Response tokens"),
        "more": ("Model", "Log Type", "Session ID", "Elapsed time"),
        "program": "Session ID", "order": "Timestamp", "model": text("Model"), "sent_s": time("Timestamp", needed=True),
        "prompt": count("Request tokens"), "output": count("Response tokens"), "total": some("Total tokens"),
        "llm_s": time("Elapsed time"), "failed": "failed request, without an answer",
    },
    "agentperf": {
        "doc": """A task's requests, in order: ``recorded_prompt_tokens``, ``recorded_completion_tokens``,
            ``recorded_tool_calls_after`` (one after the other), ``simulated_tool_delay_ms_after``. Without recorded
            tokens, prompts are estimated from ``messages``.""",
        "needs": ("task_id", "messages"), "signs": ({"messages": list, "recorded_tool_calls_after": list},),
        "more": ("turn_id", "conversation_idx", "recorded_prompt_tokens", "target_output_tokens", "messages.role",
                 "simulated_tool_delay_ms_after", "recorded_model_duration_ms"),
        "program": "task_id", "prompt": _task_prompt,
        "output": some("recorded_completion_tokens", "target_output_tokens"), "tools": _one_by_one,
        "gap_s": time("simulated_tool_delay_ms_after", MS), "llm_s": time("recorded_model_duration_ms", MS),
        "messages": lambda where, row: tuple(map(message_text, listed(where, row, "messages", dict))),
    },
    "aiperf": {
        "doc": """aiperf's ``profile_export.jsonl``: a request per line, with ``metadata`` and ``metrics``. Those with
            one ``x_correlation_id`` are a play of a conversation, ``root_correlation_id`` is a sub-agent's parent.""",
        "needs": ("metadata", "metrics"), "more": ("metadata.x_correlation_id", "metrics.time_to_first_token"),
        "signs": ({"metadata.request_start_ns": int, "metadata.conversation_id": str},),
        "program": "program", "sessions": _profiled, "prompt": count("usage_prompt_tokens"),
        "output": count("usage_completion_tokens"), "cached": some("usage_prompt_cache_read_tokens"),
        "sent_s": time("request_start_ns", NS, needed=True), "llm_s": time("request_latency", MS),
        "parent": text("parent"), "failed": "failed request",
    },
    "llmservingsim": {
        "doc": """LLMServingSim's workloads: one session per line, ``sub_requests`` of ``input_toks``, ``output_toks``,
            ``tool_duration_ns`` (behind the answer) and ``input_tok_ids``, or one request per line.
            ``arrival_time_ns`` is when it begins.""",
        "needs": ("arrival_time_ns",), "more": ("session_id", "sub_requests.tool_duration_ns", "input_tok_ids"),
        "signs": ({"sub_requests": list, "sub_requests.input_toks": int}, {"input_toks": int, "output_toks": int}),
        "program": "session_id", "requests": "sub_requests", "prompt": count("input_toks"),
        "output": count("output_toks"), "sent_s": time("arrival_time_ns", NS), "tools_s": time("tool_duration_ns", NS),
        "ids": ids_of("input_tok_ids"), "block_tokens": 1,
    },
    "lmcache": {
        "doc": """LMCache's agent traces: one request per line, ``session_id``, ``timestamp`` (us) or ``pre_gap`` (s),
            ``input`` (a text, or messages), ``output`` or ``output_length``. Lengths of texts are estimated.""",
        "needs": ("session_id", "input"), "more": ("model", "pre_gap"),
        "signs": ({"timestamp": object, "input": str, "output": str}, {"input": list, "output_length": int}),
        "program": "session_id", "order": "timestamp", "sent_s": time("timestamp", US),
        "prompt": estimate("input"), "output": lambda *row: some("output_length")(*row) or estimate("output")(*row),
        "gap_s": time("pre_gap"), "before": True, "ids": _of_text, "block_tokens": BLOCK_TOKENS, "model": text("model"),
    },
}
# fmt: on
"""The formats whose rows are requests."""


def _importer(name: str, form: Form) -> Importer:
    fields = dict.fromkeys(form.needs, object)
    return Importer(
        name, _reader(name, form), tuple(Signs({**fields, **s}, form.more, form.without) for s in form.signs)
    )


IMPORTERS = tuple(_importer(name, Form(**columns)) for name, columns in FORMS.items())
