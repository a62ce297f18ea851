"""Import what benchmarks of engines play: TraceLab, SGLang's agentic traces, TensorRT-LLM's scaffolding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from continuum_traces.importers.described import (
    UNKNOWN,
    Imported,
    RequestUsage,
    count_of,
    first_of,
    in_order,
    listed,
    number,
    rows_by,
    usage_of,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.text_tokens import message_tokens
from continuum_traces.importers.timed_requests import AnsweredRequest, Thread, TimedCall, programs_on_timeline, seconds
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.truth import OUTPUT

Object = Mapping[str, Any]
ASKS = ("user_message", "tool_result")
"""TraceLab's events before an answer."""
GROWN_WITHOUT = "what the next prompt grew without its messages"
UNTIMED = "on a branch of its run: the run doesn't wait for its answers, whose times are not in the file"


def read_tracelab(file: Source) -> Iterator[Thread]:
    """TraceLab's rounds of coding agents (University of Washington): one request per line, ``session_id``,
    ``round_index``, ``input_tokens_total``, ``prefix_tokens`` (cached), ``output_tokens``, ``timing_events``,
    ``tools``."""
    for name, rows in rows_by("session_id", file.rows("session_id", "input_tokens_total", "output_tokens")).items():
        yield Thread(name, None, [_round(where, row) for where, row in in_order(rows, "round_index")])


def _round(where: str, row: Object) -> AnsweredRequest:
    usage = RequestUsage(
        count_of(where, row, "input_tokens_total"),
        count_of(where, row, "output_tokens"),
        count_of(where, row, "reasoning_output_tokens", 0),
        cached_tokens=first_of(where, row, "prefix_tokens"),
        response_id=str(row.get("round_id") or ""),
    )
    events = listed(where, row, "timing_events", dict)
    asked = [seconds(each.get("timestamp")) for each in events if each.get("event_type") in ASKS]
    answered = [seconds(each.get("timestamp")) for each in events if each.get("event_type") not in ASKS]
    calls = [_tool(f"{where}: tools[{n}]", tool) for n, tool in enumerate(listed(where, row, "tools", dict))]
    return AnsweredRequest(usage, _last(asked), _last(answered), calls, str(row.get("model") or "") or None)


def _last(instants: Sequence[float | None]) -> float | None:
    return max((at for at in instants if at is not None), default=None)


def _tool(where: str, tool: Object) -> TimedCall:
    """Return a tool that runs from its call to its result, or as long as the row says."""
    start_s, end_s = seconds(tool.get("emitted_at")), seconds(tool.get("result_at"))
    name = "tool_wall_latency_ms" if tool.get("tool_wall_latency_ms") is not None else "tool_internal_latency_ms"
    known = end_s is None and tool.get(name) is not None
    took_s = number(where, tool, name) / 1e3 if known else None
    return TimedCall(str(tool.get("tool_name") or UNKNOWN), start_s, end_s, None, took_s)


def read_sglang(file: Source) -> Iterator[Thread]:
    """SGLang's ``agentic-trace`` data: ``conversations`` of turns with ``prompt_tokens`` and their new ``messages``. It
    has no answers: an answer's length is what the next prompt grew, without that prompt's new messages."""
    for where, row in file.rows("conversations"):
        for n, turns in enumerate(listed(where, row, "conversations", list)):
            placed = [(f"{where}: conversations[{n}][{m}]", turn) for m, turn in enumerate(turns)]
            prompts = [count_of(*each, "prompt_tokens") for each in placed]
            asked = [_asked(file, *each) for each in placed]
            grown = [after - before - new for before, after, new in zip(prompts, prompts[1:], asked[1:], strict=False)]
            lengths = zip(prompts, [*grown, 0], strict=False)
            usages = [RequestUsage(each, max(0, output), estimated={OUTPUT: GROWN_WITHOUT}) for each, output in lengths]
            yield Thread(f"conversation-{n + 1}", None, list(map(AnsweredRequest, usages)))


def _asked(file: Source, where: str, turn: Object) -> int:
    return sum(message_tokens(each, file.assume) for each in listed(where, turn, "messages", dict))


@dataclass(slots=True)
class _Run:
    """A run's conversations so far, and how late it is on each of its branches, in seconds."""

    name: str
    threads: dict[str, Thread] = field(default_factory=dict)
    clocks: dict[tuple[int, ...], float] = field(default_factory=lambda: {(): 0.0})
    answers: dict[tuple[int, ...], tuple[Thread, AnsweredRequest]] = field(default_factory=dict)
    """The last answer of each branch."""
    prefixes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The named system prompt of each conversation, and its tokens."""

    def answer_before(self, branch: tuple[int, ...]) -> tuple[Thread, AnsweredRequest] | None:
        """Return the last answer of the branch, or else of the one that it is part of."""
        return next((self.answers[branch[:n]] for n in range(len(branch), -1, -1) if branch[:n] in self.answers), None)

    def pass_s(self, branch: tuple[int, ...], took_s: float) -> tuple[float, float]:
        """Let time pass on a branch, which waits for its own branches. Returns when that begins and ends."""
        inner = [at for each, at in self.clocks.items() if each[: len(branch)] == branch]
        outer = [at for each, at in self.clocks.items() if branch[: len(each)] == each]
        start_s = max(inner or outer)
        self.clocks = {each: at for each, at in self.clocks.items() if each[: len(branch)] != branch}
        self.clocks[branch] = start_s + took_s
        return start_s, start_s + took_s


def read_scaffolding(file: Source) -> Iterator[_Run]:
    """TensorRT-LLM's execution traces of scaffolding: ``events`` of a run. A turn is an assistant's ``message`` with
    ``prompt_tokens``, a conversation of the run is a program; a ``tool_call`` runs behind the one before it, on another
    branch beside it."""
    for number_in_file, (where, row) in enumerate(file.rows("events"), 1):
        run = _Run(str(row.get("trace_id") or f"run-{number_in_file}"))
        for place, event in _events(f"{where}: events", listed(where, row, "events", dict)):
            _add(file, run, place, event)
        timed = all(answer.sent_s != answer.end_s for each in run.threads.values() for answer in each.answers)
        parents = sum(each.parent is not None for each in run.threads.values())
        file.assume("conversation", UNTIMED, 0 if timed else parents)
        yield run


def _events(where: str, events: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Yield the events; those that older traces have within one (``children``) on branches of their own."""
    for n, event in enumerate(events):
        place = f"{where}[{n}]"
        yield place, event
        for m, child in enumerate(listed(place, event, "children", dict)):
            branch = [*listed(place, event, "branch_path", int), m]
            yield f"{place}: children[{m}]", {**child, "branch_path": branch}


def _add(file: Source, run: _Run, where: str, event: Object) -> None:
    kind, branch = event.get("event_type"), tuple(listed(where, event, "branch_path", int))
    name = f"{run.name}/{event.get('conversation_id')}"
    before = run.answer_before(branch)
    if kind == "message" and event.get("role") == "assistant":
        took_s = number(where, event, "llm_duration_ms", 0) / 1e3
        parent = before[0].name if before is not None and run.answers.get(branch) is not before else None
        thread = run.threads.setdefault(name, Thread(name, parent))
        answer = AnsweredRequest(usage_of(where, event), *run.pass_s(branch, took_s))
        thread.answers.append(answer)
        run.answers[branch] = thread, answer
    elif kind == "message" and event.get("system_prompt_id"):
        run.prefixes[name] = str(event["system_prompt_id"]), count_of(where, event, "tokens", 0)
    elif kind == "tool_call" and before is not None:
        start_s, end_s = run.pass_s(branch, number(where, event, "duration_ms", 0) / 1e3)
        before[1].calls.append(TimedCall(str(event.get("tool_name") or UNKNOWN), start_s, end_s))
    file.assume("drop_kv_cache", "is not played", int(kind == "drop_kv_cache"))


def _join_runs(runs: Iterable[_Run], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the conversations as programs. A file doesn't say when its run began, so programs have no arrival. Most
    files don't say how long an answer took."""
    for run in runs:
        for each in programs_on_timeline(run.threads.values(), "trtllm-scaffolding", assumptions):
            name, tokens = run.prefixes.get(each.program.program_id, ("", 0))
            shared: dict[str, Any] = (
                {"shared_prefix_id": name, "shared_prefix_tokens": tokens} if name and tokens else {}
            )
            requests = [replace(request, llm_s=request.llm_s or None) for request in each.requests]
            yield replace(each, program=replace(each.program, arrival_s=None, **shared), requests=requests)


def _joining(source: str, one_agent: bool = False) -> Callable[[Iterable[Thread], Assumptions], Iterator[Imported]]:
    return lambda threads, assumptions: programs_on_timeline(threads, source, assumptions, one_agent)


IMPORTERS = (
    Importer(
        "tracelab",
        read_tracelab,
        (
            Signs(
                {"session_id": str, "round_index": int, "input_tokens_total": int, "output_tokens": int},
                ("provider", "prefix_tokens", "newly_append_tokens", "timing_events", "tools", "trace_key"),
            ),
        ),
        _joining("tracelab"),
    ),
    Importer(
        "sglang-agentic",
        read_sglang,
        (Signs({"conversations": list, "conversations.messages": list, "conversations.prompt_tokens": int}),),
        _joining("sglang-agentic"),
    ),
    Importer(
        "trtllm-scaffolding",
        read_scaffolding,
        (Signs({"events": list, "events.event_type": str, "events.branch_path": list}, ("trace_id", "events.role")),),
        _join_runs,
    ),
)
