"""Import Inspect AI's logs: ``*.eval`` archives, and logs in JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from continuum_traces.importers.described import Imported, inner, listed, usage_of
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timed_requests import AnsweredRequest, Thread, call_of, programs_on_timeline, seconds
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.jsonl import TraceError, json_object

try:
    from backports.zstd import zipfile  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # Python 3.14 needs no backport
    import zipfile  # type: ignore[no-redef,unused-ignore]

CONVERT = "install backports.zstd, or write it in JSON with inspect log convert --to json"
Event = Mapping[str, Any]


def is_eval(path: Path) -> bool:
    return path.suffix == ".eval" and zipfile.is_zipfile(path)


def read_inspect(source: Source) -> Iterator[Thread]:
    """Each epoch of a sample is a program, and so is each agent that another agent of it runs. A turn is a ``model``
    event that was not answered from Inspect's cache, and its tools are the ``tool`` events behind it. The requests of
    scorers are left out.
    """
    for where, sample in _samples(source):
        named = [sample.get("id"), *(each for each in [sample.get("epoch")] if each != 1)]
        name = "/".join(str(part) for part in named if part is not None)
        events = listed(where, sample, "events", dict)
        end = next((at for at, event in enumerate(events) if _begins_scoring(event)), len(events))
        threads: dict[tuple[str, ...], Thread] = {(): Thread(name or where)}
        agents = _agents(events)
        for index, event in enumerate(events[:end]):
            key = agents.get(str(event.get("span_id")), ())
            if key not in threads:
                parent = threads.get(key[:-1], threads[()])
                threads[key] = Thread("/".join((threads[()].name, key[-1].partition(" ")[2])), parent.name)
            _add(threads[key], f"{where}: events[{index}]", event)
        scorers = sum(event.get("event") == "model" for event in events[end:])
        source.assume("request", "by a scorer: left out", scorers)
        yield from (thread for thread in threads.values() if thread.answers or thread.parent is None)


def _agents(events: Sequence[Event]) -> dict[str, tuple[str, ...]]:
    """Return the agents of each span that runs within an agent of another: the inner ones, each as ``ID NAME``.

    An agent is of another if one around it sends requests itself, or a tool started it.
    """
    spans = {str(event.get("id")): event for event in events if event.get("event") == "span_begin"}
    asking = {str(event.get("span_id")) for event in events if event.get("event") == "model"}
    started = {str(event.get("agent_span_id")) for event in events if event.get("agent_span_id")}
    return {name: _agents_of(name, spans, asking, started) for name in spans}


def _agents_of(name: str, spans: Mapping[str, Event], asking: set[str], started: set[str]) -> tuple[str, ...]:
    path: list[str] = []
    while name in spans and name not in path:
        path.insert(0, name)
        name = str(spans[name].get("parent_id"))
    within, keys = False, list[str]()
    direct = {_nearest(each, spans) for each in asking}
    for each in path:
        if spans[each].get("type") == "agent":
            if within or each in started:
                keys.append(f"{each} {spans[each].get('name')}")
            within = within or each in direct
    return tuple(keys)


def _nearest(name: str, spans: Mapping[str, Event]) -> str:
    """Return the innermost agent around a span, which can be the span itself; empty: there is none."""
    seen: set[str] = set()
    while name in spans and name not in seen:
        if spans[name].get("type") == "agent":
            return name
        seen.add(name)
        name = str(spans[name].get("parent_id"))
    return ""


def _samples(source: Source) -> Iterator[tuple[str, Event]]:
    if not is_eval(source.path):
        for where, log in source.rows("samples"):
            yield from ((f"{where}: samples[{n}]", each) for n, each in enumerate(listed(where, log, "samples", dict)))
        return
    try:
        with zipfile.ZipFile(source.path) as archive:
            for name in archive.namelist():
                if name.startswith("samples/"):
                    yield f"{source}: {name}", json_object(f"{source}: {name}", archive.read(name).decode())
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise TraceError(f"{source}: cannot read: {error}; {CONVERT}") from error


def _begins_scoring(event: Event) -> bool:
    begins = event.get("event") == "span_begin" or (event.get("event") == "step" and event.get("action") == "begin")
    return begins and (event.get("type") in ("scorer", "scorers") or event.get("name") == "scorers")


def _add(thread: Thread, where: str, event: Event) -> None:
    at_s, end_s = seconds(event.get("timestamp")), seconds(event.get("completed"))
    if event.get("event") == "model" and event.get("cache") != "read" and event.get("role") != "grader":
        usage = inner(where, inner(where, event, "output"), "usage")
        model = event.get("model")
        thread.answers.append(
            AnsweredRequest(usage_of(f"{where}: usage", usage), at_s, end_s, model=str(model) if model else None)
        )
    elif event.get("event") == "tool" and thread.answers:
        thread.answers[-1].calls.append(call_of(event.get("function"), event.get("arguments"), at_s, end_s))


def join_inspect(threads: Iterable[Thread], assumptions: Assumptions) -> Iterator[Imported]:
    yield from programs_on_timeline(threads, "inspect-ai", assumptions)


IMPORTERS = (
    Importer(
        "inspect-ai",
        read_inspect,
        (
            Signs(
                {"eval": dict, "samples": list, "eval.task": str}, ("status", "plan", "samples.events", "samples.epoch")
            ),
        ),
        join_inspect,
        is_eval,
    ),
)
