"""Import Weka's traces of coding agents (kv-cache-tester): a conversation with its requests, sub-agents among them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from continuum_traces.importers.described import (
    Imported,
    RequestUsage,
    count_of,
    differing_totals,
    inner,
    listed,
    number,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.schema import Program, ToolCall

Object = Mapping[str, Any]
CLOCKS_S = 0.5
"""A sub-agent that seems to start at most so long before the answer that calls it is that answer's all the same."""
TOTALS = {"prompt_tokens": "input", "output_tokens": "output"}


def read_weka(file: Source) -> Iterator[Imported]:
    """One conversation per line, or a file of one: ``requests[]`` of ``in``, ``out``, ``think_time`` (s, before the
    request), ``api_time`` (s) and ``hash_ids``. A request of type ``subagent`` is a program with requests of its own;
    its ``t`` is when it ended, ``duration_ms`` before that it started. The turn with the last answer before its start
    started it."""
    for number_in_file, (where, row) in enumerate(file.rows("requests"), 1):
        name = str(row.get("id") or row.get("conversation_id") or f"conversation-{number_in_file}")
        parent, *children = _programs(file, where, name, row, row, None)
        totals = inner(where, row, "totals")
        _check(file, where, name, inner(where, totals, "parent_tokens"), [parent])
        _check(file, where, f"{name}: sub-agents", inner(where, totals, "subagent_tokens"), children)
        yield from (parent, *children)


def _check(file: Source, where: str, name: str, totals: Object, programs: Sequence[Imported]) -> None:
    expected = {total: totals.get(field) for total, field in TOTALS.items()}
    file.assumptions.add(*differing_totals(name, expected, [r for each in programs for r in each.requests]))


def _programs(
    file: Source, where: str, name: str, row: Object, conversation: Object, started_by: Program | None
) -> Iterator[Imported]:
    """Yield a conversation or a sub-agent, then the sub-agents that it started."""
    items = listed(where, row, "requests", dict)
    requests: list[RequestUsage] = []
    ids: list[list[Any]] = []
    children: list[Imported] = []
    ends_s, waiting = list[float](), list[ToolCall]()
    for item in items:
        end_s = ends_s[-1] if ends_s else 0.0
        if "requests" in item:
            since_s, call = _sub_agent(where, item, end_s)
            turn = max(0, bisect_right(ends_s, since_s + CLOCKS_S) - 1)
            gap_s = max(0.0, since_s - (ends_s[turn] if ends_s else 0.0))
            started = Program(name, (), parent_id=name, parent_turn=turn, parent_gap_s=gap_s)
            child = f"{name}/{item.get('agent_id') or f'agent-{len(children) + 1}'}"
            children += _programs(file, where, child, item, conversation, started)
            if turn == max(0, len(requests) - 1):
                waiting.append(call)
        elif "in" in item:
            if requests:
                requests[-1] = _before(requests[-1], tuple(waiting), _think_s(file, where, item, end_s))
            waiting.clear()
            requests.append(_request(where, item))
            ids.append(_scoped(str(name.split("/")[0]), conversation, listed(where, item, "hash_ids", int)))
            ends_s.append(number(where, item, "t", end_s) + number(where, item, "api_time", 0))
        else:
            file.assume("request", "no prompt length: left out")
    if requests and waiting:
        requests[-1] = _before(requests[-1], tuple(waiting), 0.0)
    model = next((item["model"] for item in items if isinstance(item.get("model"), str)), None)
    block_tokens = count_of(where, conversation, "block_size", 0) or None
    program = replace(started_by or Program(name, ()), program_id=name, source="weka", model=model)
    yield Imported(program, requests, ids=ids, block_tokens=block_tokens)
    yield from children


def _think_s(file: Source, where: str, item: Object, end_s: float) -> float:
    """Return the seconds between the answer before, which ended at ``end_s``, and this request."""
    if item.get("think_time") is not None:
        return number(where, item, "think_time")
    file.assume("gap", "neither think_time nor t: taken as 0 s", int(item.get("t") is None))
    return max(0.0, number(where, item, "t", end_s) - end_s)


def _request(where: str, item: Object) -> RequestUsage:
    seconds = None if item.get("api_time") is None else float(number(where, item, "api_time"))
    return RequestUsage(count_of(where, item, "in"), count_of(where, item, "out"), llm_s=seconds)


def _sub_agent(where: str, item: Object, end_s: float) -> tuple[float, ToolCall]:
    """Return the second at which a sub-agent started, and the sub-agent as a call of the turn that ended at ``end_s``.

    ``t`` is when the call returned: without a duration the parent did not wait, and the sub-agent starts then.
    """
    took_s = None if item.get("duration_ms") is None else number(where, item, "duration_ms") / 1e3
    since_s = max(0.0, number(where, item, "t", end_s + (took_s or 0.0)) - (took_s or 0.0))
    return since_s, ToolCall(str(item.get("subagent_type") or "subagent"), took_s, max(0.0, since_s - end_s))


def _before(request: RequestUsage, calls: tuple[ToolCall, ...], gap_s: float) -> RequestUsage:
    """Return the request with the sub-agents for which the next one waits; ``gap_s`` lies between the two."""
    inside = tuple(replace(call, start_s=min(call.start_s, max(0.0, gap_s - (call.duration_s or 0)))) for call in calls)
    rest = gap_s - max((call.end_s for call in inside), default=0.0)
    return replace(request, tool_calls=inside, gap_overhead_s=max(0.0, rest))


def _scoped(name: str, conversation: Object, ids: list[int]) -> list[Any]:
    """Return ids that are equal only where blocks are: local ids mean something within their conversation."""
    scope = name if conversation.get("hash_id_scope") == "local" else ""
    return [(scope, each) for each in ids]


IMPORTERS = (
    Importer(
        "weka",
        read_weka,
        (
            Signs(
                {"requests": list, "requests.in": int, "requests.out": int},
                more=("id", "block_size", "hash_id_scope", "totals", "requests.hash_ids", "requests.think_time"),
            ),
        ),
    ),
)
