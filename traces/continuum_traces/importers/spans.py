"""Import spans of requests, tools and agents: OpenTelemetry's GenAI conventions, and what tracing tools export."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.grouped import grouped
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timeline import AnsweredRequest, Thread, TimedCall, programs_on_timeline, seconds
from continuum_traces.importers.usage import (
    Imported,
    RequestUsage,
    count_of,
)

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
)
_START = ("startTime", "start_time", "start_timestamp", "startTimestamp")
_END = ("endTime", "end_time", "end_timestamp", "endTimestamp")
_CONVERSATION = (
    "gen_ai.conversation.id", "session.id", "langfuse.session.id", "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id", "langsmith.trace.session_id", "metadata.thread_id",
    "metadata.session_id", "metadata.conversation_id", "sessionId", "thread_id", "conversation_id",
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
_TOOL_NAME = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name", "traceloop.entity.name", "name", "span_name")
_KIND = (
    "gen_ai.operation.name", "openinference.span.kind", "span_kind", "traceloop.span.kind", "llm.request.type",
    "run_type", "type", "langfuse.observation.type", "ai.operationId",
)  # fmt: skip
_PROMPT = (
    "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "llm.usage.prompt_tokens",
    "usage_metadata.input_tokens", "token_usage.prompt_tokens", "usage.input", "usage.prompt_tokens",
    "usage.input_tokens", "usage.promptTokens", "promptTokens", "prompt_tokens", "ai.usage.promptTokens",
    "ai.usage.inputTokens",
)  # fmt: skip
_OUTPUT = (
    "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
    "llm.usage.completion_tokens", "usage_metadata.output_tokens", "token_usage.completion_tokens", "usage.output",
    "usage.completion_tokens", "usage.output_tokens", "usage.completionTokens", "completionTokens",
    "completion_tokens", "ai.usage.completionTokens", "ai.usage.outputTokens",
)  # fmt: skip
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens", "gen_ai.usage.cached_tokens",
    "gen_ai.usage.details.cache_read_tokens", "llm.token_count.prompt_details.cache_read",
    "usage_metadata.input_token_details.cache_read", "prompt_token_details.cache_read",
)  # fmt: skip
_WRITTEN = (
    "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write", "gen_ai.usage.details.cache_write_tokens",
)  # fmt: skip
_REASONING = (
    "gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens", "gen_ai.usage.details.reasoning_tokens",
    "llm.token_count.completion_details.reasoning", "usage_metadata.output_token_details.reasoning",
    "usageDetails.output_reasoning_tokens", "usage_details.output_reasoning_tokens",
)  # fmt: skip
_TOTAL = ("gen_ai.usage.total_tokens", "llm.usage.total_tokens", "llm.token_count.total", "total_tokens", "usage.total")
_CHATS = frozenset({
    "chat", "text_completion", "generate_content", "llm", "completion", "generation", "responses", "chat_model",
    "ai.generatetext.dogenerate", "ai.streamtext.dostream",
})  # fmt: skip
_TOOLS = frozenset({"execute_tool", "tool", "ai.toolcall"})
_AGENTS = frozenset({"invoke_agent", "agent"})
_WITHIN = ("attributes.", "extra.", "outputs.", "llm_output.")
"""Objects whose members stand for themselves."""
_LISTS = ("observations", "spans", "runs", "child_runs", "data")


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
    """The agents within which it ran, the outermost first."""
    within_chat: bool = False
    chats: bool = False
    """An agent: it sends requests itself."""

    def first(self, names: Iterable[str]) -> Any:
        return next((self.facts[name] for name in names if self.facts.get(name) not in (None, "")), None)

    def count(self, names: Iterable[str]) -> int:
        name = next((name for name in names if self.facts.get(name) not in (None, "")), "")
        value = self.facts.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        return count_of(self.where, {name: value}, name, 0)


def read_spans(source: Source) -> Iterator[_Span]:
    """A conversation (``gen_ai.conversation.id`` or a session's id) is a program, or else a trace.

    A turn is a span of a request with token counts, and its tools are the spans of tools that begin after it and before
    the next request. A request within another request's span is the same one. An agent that another agent runs is a
    program of its own, if the other one sends requests too. Spans are those of OTLP JSON, or rows with one span each,
    as Langfuse, Phoenix, LangSmith and Logfire export them. ``spans.py`` lists the names that are read.
    """
    chats = 0
    for where, row in source.rows():
        for place, facts in _facts(where, row, {}):
            span = _Span(place, facts, "", "", "", "", None, None)
            span.span_id, span.parent_id = str(span.first(_SPAN) or place), str(span.first(_PARENT) or "")
            span.trace, span.kind = str(span.first(_TRACE) or facts.get("id") or place), _kind(facts)
            span.start_s, span.end_s = _instant(span, "start", _START), _instant(span, "end", _END)
            chats += span.kind == "chat"
            yield span
    source.assume("file", "without a span of a request", int(not chats))


def _facts(where: str, row: Facts, inherited: Facts) -> Iterator[tuple[str, Facts]]:
    """Yield the facts of each span in a row: of OTLP's batch, of a trace with its spans, or of one span."""
    batches = row.get("resourceSpans") or row.get("resource_spans")
    if isinstance(batches, list):
        for batch in batches:
            scopes = batch.get("scopeSpans") or batch.get("scope_spans") or batch.get("instrumentationLibrarySpans")
            for scope in scopes or ():
                for number_, span in enumerate(scope.get("spans") or ()):
                    yield f"{where}: spans[{number_}]", dict(_flat(span))
        return
    inner = [(name, each) for name in _LISTS if isinstance(row.get(name), list) for each in row[name]]
    own = dict(_flat({name: value for name, value in row.items() if name not in _LISTS}))
    if "trace_id" in own or "traceId" in own or "context.trace_id" in own or not inner:
        yield where, {**inherited, **own}
    session = {name: own[name] for name in _CONVERSATION if name in own}
    for number_, (name, each) in enumerate(inner):
        if isinstance(each, dict):
            yield from _facts(f"{where}: {name}[{number_}]", each, session)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the members of an object by their names with dots; OTLP's lists of attributes as objects."""
    if isinstance(value, str) and name == "attributes" and value.startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, list) and all(isinstance(each, dict) and "key" in each for each in value):
        value = {str(each["key"]): _any_value(each.get("value")) for each in value}
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
    if kinds & _CHATS or (not kinds and any(facts.get(name) for name in _PROMPT)):
        return "chat"
    return "tool" if kinds & _TOOLS else "agent" if kinds & _AGENTS else ""


def _instant(span: _Span, which: str, names: tuple[str, ...]) -> float | None:
    nanos = span.first((f"{which}TimeUnixNano", f"{which}_time_unix_nano"))
    with suppress(TypeError, ValueError):
        return seconds(span.first(names)) if nanos is None else float(nanos) / 1e9
    return None


def join_spans(spans: Iterable[_Span], assumptions: Assumptions) -> Iterator[Imported]:
    by_id = {(span.trace, span.span_id): span for span in spans}
    for span in by_id.values():
        _find_agents(span, by_id)
    chats = [span for span in by_id.values() if span.kind == "chat"]
    inside = sum(span.within_chat for span in chats)
    assumptions.assume("span", "of a request within another request's span: counted once", inside)
    for span in chats:
        if span.agents:
            span.agents[-1].chats = True
    keys = _Keys(by_id.values(), chats)
    threads = _threads([span for span in chats if not span.within_chat], keys, assumptions)
    _add_tools([span for span in by_id.values() if span.kind == "tool"], keys, threads, assumptions)
    _check_agents(by_id.values(), chats, assumptions)
    yield from programs_on_timeline(threads.values(), "spans", assumptions)


def _find_agents(span: _Span, by_id: Mapping[tuple[str, str], _Span]) -> None:
    above, seen = by_id.get((span.trace, span.parent_id)), {id(span)}
    while above is not None and id(above) not in seen:
        seen.add(id(above))
        span.within_chat = span.within_chat or (above.kind == "chat" == span.kind)
        if above.kind == "agent":
            span.agents.insert(0, above)
        above = by_id.get((above.trace, above.parent_id))


Key = tuple[str, ...]
"""Of a program: the conversation, the agent's name, and the span of an agent that another agent runs."""


class _Keys:
    """The programs of spans. A conversation is one program, or one for each of several agents."""

    def __init__(self, spans: Iterable[_Span], chats: Iterable[_Span]) -> None:
        self._conversations = {span.trace: str(name) for span in spans if (name := span.first(_CONVERSATION))}
        self._agents: dict[str, set[str]] = {}
        for span in chats:
            self._agents.setdefault(self.conversation(span), set()).update(self._name(span.agents))

    def conversation(self, span: _Span) -> str:
        return self._conversations.get(span.trace, span.trace)

    def _name(self, agents: list[_Span]) -> list[str]:
        """Return the agent's name, unless there is none or another agent runs it."""
        alone = bool(agents) and not any(agent.chats for agent in agents[:-1])
        return [str(agents[-1].first(_AGENT_NAME) or "")] if alone else []

    def of(self, conversation: str, agents: list[_Span]) -> Key:
        if agents and not self._name(agents):
            return conversation, str(agents[-1].first(_AGENT_NAME) or ""), agents[-1].span_id
        several = len(self._agents.get(conversation, ())) > 1
        return (conversation, *(self._name(agents) if several else ()))

    def caller(self, conversation: str, agents: list[_Span]) -> Key | None:
        """Return the program that runs this agent; None: nobody does."""
        above = [agent for agent in agents[:-1] if agent.chats]
        return self.of(conversation, [*above[-1].agents, above[-1]]) if above else None


def _threads(chats: list[_Span], keys: _Keys, assumptions: Assumptions) -> dict[Key, Thread]:
    threads: dict[Key, Thread] = {}
    for key, group in grouped((keys.of(keys.conversation(span), span.agents), span) for span in chats).items():
        group.sort(key=lambda span: (span.start_s or 0.0, span.end_s or 0.0))
        caller = keys.caller(key[0], group[0].agents)
        parent = "/".join(filter(None, caller)) if caller is not None else None
        threads[key] = Thread("/".join(filter(None, key)), parent, [_answer(span, assumptions) for span in group])
    return threads


def _answer(span: _Span, assumptions: Assumptions) -> AnsweredRequest:
    details = {
        name: value for name, value in span.facts.items() if name.startswith(("usageDetails.", "usage_details."))
    }
    inputs = [name for name in details if ".input" in name or ".cache" in name]
    outputs = [name for name in details if ".output" in name]
    prompt = sum(span.count([name]) for name in inputs) or span.count(_PROMPT)
    output = sum(span.count([name]) for name in outputs) or span.count(_OUTPUT)
    cached = sum(span.count([name]) for name in inputs if "cache" in name and "creation" not in name)
    cached = cached or span.count(_CACHED)
    apart = 0 if inputs else cached + span.count(_WRITTEN)
    if prompt and apart > prompt:
        prompt += apart
        assumptions.assume("request", "cached tokens counted beside the prompt's: added to it", example=span.where)
    total = span.count(_TOTAL)
    if total and prompt and total != prompt + output:
        text = "a total that is not the sum of prompt and output: the latter are read"
        assumptions.assume("request", text, example=span.where)
    usage = RequestUsage(prompt, output, min(output, span.count(_REASONING)), cached_tokens=cached or None)
    model = span.first(_MODEL)
    return AnsweredRequest(usage, span.start_s, span.end_s, model=str(model) if model else None)


def _add_tools(tools: list[_Span], keys: _Keys, threads: Mapping[Key, Thread], assumptions: Assumptions) -> None:
    """Give each tool to the last request that was sent before it."""
    for span in tools:
        agents = span.agents
        while agents and keys.of(keys.conversation(span), agents) not in threads:
            agents = agents[:-1]
        thread = threads.get(keys.of(keys.conversation(span), agents))
        sent = [] if thread is None else [a for a in thread.answers if (a.sent_s or 0.0) <= (span.start_s or 0.0)]
        if sent:
            name = str(span.first(_TOOL_NAME) or "").removeprefix("execute_tool ").removesuffix(".tool")
            sent[-1].calls.append(TimedCall(name, span.start_s, span.end_s))
        text = "of a tool before its program's first request: left out"
        assumptions.assume("span", text, int(not sent), example=span.where)


def _check_agents(spans: Iterable[_Span], chats: list[_Span], assumptions: Assumptions) -> None:
    """Note the agents whose own token counts are not the sums of their requests'."""
    below = grouped((id(agent), chat) for chat in chats if not chat.within_chat for agent in chat.agents)
    for span in spans:
        prompts = span.count(_PROMPT) if span.kind == "agent" else 0
        if prompts and prompts != sum(chat.count(_PROMPT) for chat in below.get(id(span), ())):
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
            Signs({"context.trace_id": str, "start_time": str}, ("attributes.openinference.span.kind", "span_kind")),
        ),
        join_spans,
    ),
)
