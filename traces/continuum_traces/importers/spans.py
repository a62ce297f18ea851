"""Import spans of requests, tools and agents: OpenTelemetry's GenAI conventions, and what tracing tools export."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import TOTAL_DIFFERS, Imported, count_of, counts_of, request_of
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timed_requests import AnsweredRequest, Thread, TimedCall, programs_on_timeline, seconds
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.wire.usage import Usage

Facts = Mapping[str, Any]
"""The fields and attributes of a span, by their names with dots."""

# Names of each fact in OpenTelemetry (now and earlier), OpenInference, Traceloop, Langfuse, LangSmith, Logfire and
# Vercel's AI SDK. The first that a span has counts.
_TRACE = ("traceId", "trace_id", "context.trace_id", "traceID")
_SPAN = ("spanId", "span_id", "context.span_id", "spanID", "id")
_PARENT = (
    "parentSpanId",
    "parent_span_id",
    "parentObservationId",
    "parent_observation_id",
    "parent_run_id",
    "parent_id",
    "references.spanID",
)
_START = ("startTime", "start_time", "start_timestamp", "startTimestamp", "started_at", "start_time_ns", "timestamp_ms")
_END = ("endTime", "end_time", "end_timestamp", "endTimestamp", "ended_at", "end_time_ns")
_CONVERSATION = (
    "gen_ai.conversation.id", "session.id", "langfuse.session.id", "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id", "langsmith.trace.session_id", "metadata.thread_id",
    "metadata.session_id", "metadata.conversation_id", "metadata.mlflow.trace.session", "mlflow.trace.session",
    "info.trace_metadata.mlflow.trace.session", "trace_metadata.mlflow.trace.session",
    "trace_info.trace_metadata.mlflow.trace.session",
    "info.request_metadata.mlflow.trace.session", "sessionId", "thread_id", "conversation_id",
)  # fmt: skip
_MODEL = (
    "gen_ai.request.model",
    "gen_ai.response.model",
    "llm.model_name",
    "metadata.ls_model_name",
    "model",
    "ai.model.id",
)
_AGENT_NAME = ("gen_ai.agent.name", "agent.name", "traceloop.entity.name", "graph.node.id", "name")
_TOOL_NAME = (
    "gen_ai.tool.name",
    "tool.name",
    "ai.toolCall.name",
    "traceloop.entity.name",
    "name",
    "span_name",
    "operationName",
)
_KIND = (
    "gen_ai.operation.name", "openinference.span.kind", "span_kind", "traceloop.span.kind", "llm.request.type",
    "run_type", "type", "langfuse.observation.type", "ai.operationId", "mlflow.spanType", "span_type",
)  # fmt: skip
_USAGE = re.compile(
    r"(?:.*\.)?(?:usage|usage_metadata|token_count|token_usage|tokenUsage|usageMetadata|(usageDetails|usage_details))\."
)
"""An object with token counts, wherever it stands. Langfuse's details have a bucket for each kind of tokens."""
_CHATS = frozenset({
    "chat", "text_completion", "generate_content", "llm", "completion", "generation", "responses", "chat_model",
    "ai.generatetext.dogenerate", "ai.streamtext.dostream",
})  # fmt: skip
_TOOLS = frozenset({"execute_tool", "tool", "ai.toolcall"})
_AGENTS = frozenset({"invoke_agent", "agent"})
_WITHIN = ("attributes.", "tags.", "extra.", "outputs.", "llm_output.")
"""Objects whose members stand for themselves."""
_LISTS = ("observations", "spans", "runs", "child_runs", "data", "calls")
_BATCHES = ("resourceSpans", "resource_spans", "batches")
_SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
_FIRST_OF = ("generations", "references", "choices")
"""Lists whose first item stands for itself."""
_AS_TEXT = (
    "attributes",
    "metadata",
    "usage",
    "usageDetails",
    "usage_details",
    "summary",
    "context",
    "extra",
    "outputs",
)
"""Objects that some exports write as their JSON text."""


NOTHING_COUNTED = Usage()


@dataclass(slots=True)
class _Span:
    where: str
    facts: Facts
    span_id: str
    parent_id: str
    trace: str
    kind: str
    """chat, tool, agent, or empty."""
    start_s: float | None
    end_s: float | None
    agents: list[_Span] = field(default_factory=list)
    """The agents within which it ran, the outermost first; among them tools that sent requests."""
    counts: Usage = NOTHING_COUNTED
    """Of a request."""
    holds_request: bool = False
    """A request with token counts ran within it."""
    chats: bool = False
    """An agent: it sends requests itself."""

    def first(self, names: Iterable[str]) -> Any:
        return next((self.facts[name] for name in names if self.facts.get(name) not in (None, "")), None)

    def above(self, by_id: Mapping[tuple[str, str], _Span]) -> Iterator[_Span]:
        """Yield the spans within which it ran, the innermost first."""
        span, seen = by_id.get((self.trace, self.parent_id)), {id(self)}
        while span is not None and id(span) not in seen:
            seen.add(id(span))
            yield span
            span = by_id.get((span.trace, span.parent_id))


def read_spans(source: Source) -> Iterator[_Span]:
    """A conversation (``gen_ai.conversation.id`` or a session's id) is a program, or else a trace.

    A turn is a span of a request with token counts, and its tools are the spans of tools that begin after it and before
    the next request. Of requests within each other the innermost with token counts is read. An agent that another agent
    runs is a program of its own, if the other one sends requests too; so is a tool within which requests ran. Spans are
    those of OTLP JSON, or rows with one span each, as Langfuse, Phoenix, LangSmith, Logfire, MLflow, Jaeger, Tempo and
    Weave export them. ``spans.py`` lists the names that are read.
    """
    chats = 0
    for where, row in source.rows():
        for place, facts in _facts(where, row, {}):
            span = _Span(place, facts, "", "", "", "", None, None)
            span.span_id, span.parent_id = str(span.first(_SPAN) or place), str(span.first(_PARENT) or "")
            span.trace, span.kind = str(span.first(_TRACE) or facts.get("id") or place), _kind(facts)
            span.start_s, span.end_s = _instant(span, "start", _START), _instant(span, "end", _END)
            if span.end_s is None and span.start_s is not None and isinstance(facts.get("duration"), int):
                span.end_s = span.start_s + facts["duration"] / 1e6  # Jaeger
            span.counts = _counts(place, facts)
            chats += span.kind == "chat"
            yield span
    source.assume("file", "without a span of a request", int(not chats))


def _facts(where: str, row: Facts, inherited: Facts) -> Iterator[tuple[str, Facts]]:
    """Yield the facts of each span in a row: of OTLP's batch, of a trace with its spans, or of one span."""
    batches = next((row[name] for name in _BATCHES if isinstance(row.get(name), list)), None)
    if batches is not None:
        for batch in batches:
            for scope in next((batch[name] for name in _SCOPES if batch.get(name)), ()):
                for number_, span in enumerate(scope.get("spans") or ()):
                    yield f"{where}: spans[{number_}]", dict(_flat(span))
        return
    if isinstance(row.get("data"), dict) and "spans" in row["data"]:  # MLflow
        row = {**row, "spans": row["data"]["spans"], "data": None}
    inner = [(name, each) for name in _LISTS if isinstance(row.get(name), list) for each in row[name]]
    own = dict(_flat({name: value for name, value in row.items() if name not in _LISTS}))
    if not inner or any(name in own for name in _TRACE[:3]):
        yield where, {**inherited, **own}
    session = {name: own[name] for name in _CONVERSATION if name in own}
    for number_, (name, each) in enumerate(inner):
        if isinstance(each, dict):
            yield from _facts(f"{where}: {name}[{number_}]", each, session)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of an object by their names with dots; OTLP's lists of attributes as objects, texts that are
    JSON as what they say."""
    if isinstance(value, str) and value[:1] in ("{", '"') and (name in _AS_TEXT or "mlflow." in name):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, list) and all(isinstance(each, dict) and "key" in each for each in value):
        value = {str(each["key"]): _any_value(each.get("value")) for each in value}
    while isinstance(value, list) and value and name.rpartition(".")[2] in _FIRST_OF:
        value = value[0]
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(each, f"{name}.{key}" if name else str(key))
    elif not isinstance(value, list):
        while name.startswith(_WITHIN):
            name = name.partition(".")[2]
        yield name, value


def _any_value(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _kind(facts: Facts) -> str:
    kinds = {str(facts[name]).lower() for name in _KIND if facts.get(name) is not None}
    if kinds & {"embeddings", "embedding"}:
        return ""
    if kinds & _CHATS or (not kinds and _counts("", facts).prompt_tokens):
        return "chat"
    return "tool" if kinds & _TOOLS else "agent" if kinds & _AGENTS else ""


def _counts(where: str, facts: Facts) -> Usage:
    """Return the token counts of a span: of the first object of counts with a prompt, or at its top."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in facts.items():
        usage = _USAGE.match(name)
        if usage is not None and value not in (None, "") and ".cost" not in name:
            groups.setdefault(f"{usage[1] or ''}/{usage[0]}", {})[name[usage.end() :]] = value
        elif (name.lower().endswith(("tokens", "token_usage")) or "token_details." in name) and value not in (None, ""):
            groups.setdefault("", {})[name] = value
    for place in sorted(groups, key=lambda place: (place.startswith("/"), place == "")):
        buckets = bool(place) and not place.startswith("/")
        counts = _buckets(where, groups[place]) if buckets else counts_of(where, groups[place], False)
        if counts.prompt_tokens:
            return counts
    return NOTHING_COUNTED


def _buckets(where: str, details: Facts) -> Usage:
    """Read Langfuse's details: the kinds of input tokens add up to the prompt, unless the total says that they do
    not."""
    read = {name: count_of(where, details, name, 0) for name in details if "cost" not in name}
    inputs = {name: n for name, n in read.items() if "input" in name or name.startswith(("cache", "prompt"))}
    outputs = {name: n for name, n in read.items() if "output" in name or name.startswith("completion")}
    cached = [n for name, n in inputs.items() if "cache" in name and "creation" not in name and "write" not in name]
    prompt, output, total = sum(inputs.values()), sum(outputs.values()), read.get("total")
    if total and total == read.get("input", -1) + read.get("output", -1):
        prompt, output = read["input"], read["output"]
    reasoning = sum(n for name, n in outputs.items() if "reasoning" in name)
    return Usage(prompt, output, sum(cached) if cached else None, reasoning, 0, 0, total, True)


def _instant(span: _Span, which: str, names: tuple[str, ...]) -> float | None:
    nanos = span.first((f"{which}TimeUnixNano", f"{which}_time_unix_nano"))
    with suppress(TypeError, ValueError):
        return seconds(span.first(names)) if nanos is None else float(nanos) / 1e9
    return None


def join_spans(spans: Iterable[_Span], assumptions: Assumptions) -> Iterator[Imported]:
    by_id = {(span.trace, span.span_id): span for span in spans}
    for span in by_id.values():
        for above in span.above(by_id) if span.kind == "chat" and span.counts.prompt_tokens else ():
            above.holds_request = True
    for span in by_id.values():
        outer = list(span.above(by_id))[::-1]
        span.agents = [each for each in outer if each.kind == "agent" or (each.kind == "tool" and each.holds_request)]
    chats = _requests(by_id, assumptions)
    for span in chats:
        if span.agents:
            span.agents[-1].chats = True
    _settle_cached(chats, assumptions)
    keys = _Keys(by_id, chats)
    threads = _threads(chats, keys, assumptions)
    _add_tools([span for span in by_id.values() if span.kind == "tool"], keys, threads, assumptions)
    _check_agents(by_id.values(), chats, assumptions)
    yield from programs_on_timeline(threads.values(), "spans", assumptions)


def _requests(by_id: Mapping[tuple[str, str], _Span], assumptions: Assumptions) -> list[_Span]:
    """Return the spans of requests, each request once: the innermost span that counts its tokens, or else the
    outermost."""
    chats = [span for span in by_id.values() if span.kind == "chat"]
    outer = [span for span in chats if span.holds_request]
    alone = [
        span
        for span in chats
        if not span.holds_request
        and (span.counts.prompt_tokens or not any(each.kind == "chat" for each in span.above(by_id)))
    ]
    inside = len(chats) - len(outer) - len(alone)
    text = "of a request that another span within it or around it has: counted once"
    assumptions.assume("span", text, inside + len(outer))
    return alone


def _settle_cached(chats: Iterable[_Span], assumptions: Assumptions) -> None:
    """Decide for each family of models whether its counts of prompt tokens leave the cached tokens out.

    They do if a request has more cached tokens than prompt tokens, or if a total is the sum of both.
    """
    for spans in grouped((_family(span), span) for span in chats).values():
        counts = [span.counts for span in spans]
        shown = any(each.beside or _cached(each) > (each.prompt_tokens or 0) > 0 for each in counts)
        for span in spans if shown else ():
            if not span.counts.beside and span.counts.prompt_tokens and _cached(span.counts):
                span.counts = span.counts.with_cached_beside()
                text = "cached tokens counted beside the prompt's: added to it"
                assumptions.assume("request", text, example=span.where)


def _cached(counts: Usage) -> int:
    return (counts.cached_tokens or 0) + counts.written_tokens


def _family(span: _Span) -> str:
    """Return the first word of the model's name, behind a provider's."""
    name = re.search(r"[a-z]+", str(span.first(_MODEL) or "").lower().rpartition("/")[2])
    return name[0] if name else ""


Key = tuple[str, ...]
"""Of a program: the conversation, the agent's name, and the span of an agent that another agent runs."""


class _Keys:
    """The programs of spans. A conversation is one program, or one for each of several agents."""

    def __init__(self, by_id: Mapping[tuple[str, str], _Span], chats: Iterable[_Span]) -> None:
        self._by_id = by_id
        named = [(span.trace, str(name)) for span in by_id.values() if (name := span.first(_CONVERSATION))]
        self._only = {trace: names[0] for trace, names in grouped(named).items() if len({*names}) == 1}
        """The conversation of each trace that has one."""
        self._agents: dict[str, set[str]] = {}
        for span in chats:
            self._agents.setdefault(self.conversation(span), set()).update(self._name(span.agents))

    def conversation(self, span: _Span) -> str:
        """Return the conversation that the span names, or one around it, or else the trace's."""
        if span.trace in self._only:
            return self._only[span.trace]
        named = (each.first(_CONVERSATION) for each in (span, *span.above(self._by_id)))
        return str(next((name for name in named if name), span.trace))

    def _name(self, agents: list[_Span]) -> list[str]:
        """Return the agent's name, unless there is none or another agent runs it."""
        run = any(agent.chats for agent in agents[:-1]) or any(agent.kind == "tool" for agent in agents)
        return [str(agents[-1].first(_AGENT_NAME) or "")] if agents and not run else []

    def of(self, conversation: str, agents: list[_Span]) -> Key:
        if agents and not self._name(agents):
            return conversation, str(agents[-1].first(_AGENT_NAME) or ""), agents[-1].span_id
        several = len(self._agents.get(conversation, ())) > 1
        return (conversation, *(self._name(agents) if several else ()))

    def caller(self, conversation: str, agents: list[_Span]) -> Key | None:
        """Return the program that runs this agent; None: nobody does."""
        above = [agent for agent in agents[:-1] if agent.chats]
        root = self.of(conversation, []) if any(agent.kind == "tool" for agent in agents) else None
        return self.of(conversation, [*above[-1].agents, above[-1]]) if above else root

    def answers_in(self, trace: str, threads: Mapping[Key, Thread]) -> list[AnsweredRequest]:
        """Return the requests of all conversations of a trace."""
        spans = (span for span in self._by_id.values() if span.trace == trace and span.kind == "chat")
        keys = {self.of(self.conversation(span), span.agents) for span in spans}
        return [answer for key in keys if key in threads for answer in threads[key].answers]


def _threads(chats: list[_Span], keys: _Keys, assumptions: Assumptions) -> dict[Key, Thread]:
    threads: dict[Key, Thread] = {}
    groups = grouped((keys.of(keys.conversation(span), span.agents), span) for span in chats)
    for key, group in groups.items():
        group.sort(key=lambda span: (span.start_s or 0.0, span.end_s or 0.0))
        caller = keys.caller(key[0], group[0].agents)
        parent = "/".join(filter(None, caller)) if caller in groups else None
        threads[key] = Thread("/".join(filter(None, key)), parent, [_answer(span, assumptions) for span in group])
    return threads


def _answer(span: _Span, assumptions: Assumptions) -> AnsweredRequest:
    if span.counts.differs:
        assumptions.assume("request", TOTAL_DIFFERS, example=span.where)
    usage, model = request_of(span.counts), span.first(_MODEL)
    named = str(span.first(("gen_ai.response.id", "response.id", "llm.response.id")) or "")
    usage = replace(usage, reasoning_tokens=min(usage.output_tokens, usage.reasoning_tokens), response_id=named)
    return AnsweredRequest(usage, span.start_s, span.end_s, model=str(model) if model else None)


def _add_tools(tools: list[_Span], keys: _Keys, threads: Mapping[Key, Thread], assumptions: Assumptions) -> None:
    """Give each tool to the last request that was sent before it."""
    for span in tools:
        agents = span.agents
        while agents and keys.of(keys.conversation(span), agents) not in threads:
            agents = agents[:-1]
        thread = threads.get(keys.of(keys.conversation(span), agents))
        answers = thread.answers if thread is not None else keys.answers_in(span.trace, threads)
        sent = sorted((a for a in answers if (a.sent_s or 0.0) <= (span.start_s or 0.0)), key=lambda a: a.sent_s or 0.0)
        if sent:
            name = str(span.first(_TOOL_NAME) or "").removeprefix("execute_tool ").removesuffix(".tool")
            sent[-1].calls.append(TimedCall(name, span.start_s, span.end_s))
        text = "of a tool before its program's first request: left out"
        assumptions.assume("span", text, int(not sent), example=span.where)


def _check_agents(spans: Iterable[_Span], chats: list[_Span], assumptions: Assumptions) -> None:
    """Note the agents whose own token counts are not the sums of their requests'."""
    below = grouped((id(agent), chat) for chat in chats for agent in chat.agents)
    for span in spans:
        prompts = span.counts.prompt_tokens if span.kind == "agent" else 0
        if prompts and prompts != sum(chat.counts.prompt_tokens or 0 for chat in below.get(id(span), ())):
            text = "its prompt tokens are not the sum of its requests'"
            assumptions.assume("agent", text, example=span.where)


IMPORTERS = (
    Importer(
        "spans",
        read_spans,
        (
            Signs({"resourceSpans.scopeSpans.spans.traceId": str, "resourceSpans.scopeSpans.spans.spanId": str}),
            Signs({"resource_spans.scope_spans.spans.trace_id": str, "resource_spans.scope_spans.spans.span_id": str}),
            Signs(
                {"trace_id": str, "span_id": str}, ("attributes", "start_time", "parent_span_id", "span_name", "name")
            ),
            Signs({"traceId": str, "spanId": str}, ("attributes", "startTime", "parentSpanId", "name")),
            Signs(
                {"context.trace_id": str, "context.span_id": str},
                ("attributes", "start_time", "parent_id", "span_kind"),
            ),
            Signs({"context": dict, "name": str, "context.trace_id": str}, ("attributes", "start_time", "parent_id")),
            Signs(
                {"traceId": str, "type": str, "startTime": str}, ("parentObservationId", "usageDetails", "usage", "id")
            ),
            Signs({"trace_id": str, "type": str, "start_time": str}, ("parent_observation_id", "usage_details", "id")),
            Signs({"observations.type": str, "observations.startTime": str}, ("sessionId", "id", "observations.usage")),
            Signs({"trace_id": str, "run_type": str}, ("parent_run_id", "start_time", "dotted_order", "extra")),
            Signs({"batches.scopeSpans.spans.traceId": str, "batches.scopeSpans.spans.spanId": str}),
            Signs({"batches.instrumentationLibrarySpans.spans.traceId": str, "batches.resource": dict}),
            Signs({"traceID": str, "spans.spanID": str}, ("processes", "spans.tags", "spans.operationName")),
            Signs(
                {"info": dict, "data.spans": list}, ("data.spans.trace_id", "data.spans.attributes", "info.trace_id")
            ),
            Signs({"trace_id": str, "spans": list, "spans.span_id": str}, ("spans.attributes", "trace_metadata")),
            Signs({"spans": list, "spans.span_id": str, "spans.trace_id": str}, ("trace_info", "spans.attributes")),
            Signs({"runs": list, "runs.trace_id": str, "runs.run_type": str}, ("cursors", "runs.dotted_order")),
            Signs({"op_name": str, "trace_id": str, "started_at": str}, ("summary", "ended_at", "parent_id")),
            Signs({"context.trace_id": str, "start_time": str}, ("attributes.openinference.span.kind", "span_kind")),
        ),
        join_spans,
    ),
)
