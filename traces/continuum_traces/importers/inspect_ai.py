"""Import Inspect AI's logs: ``*.eval`` archives, and logs in JSON."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timeline import AnsweredRequest, Thread, call_of, programs_on_timeline, seconds
from continuum_traces.importers.usage import (
    Imported,
    RequestUsage,
    count_of,
    inner,
    listed,
)
from continuum_traces.jsonl import TraceError, json_object

Event = Mapping[str, Any]


def is_eval(path: Path) -> bool:
    return path.suffix == ".eval" and zipfile.is_zipfile(path)


def read_inspect(source: Source) -> Iterator[Thread]:
    """Each epoch of a sample is a program. A turn is a ``model`` event that was not answered from Inspect's cache, and
    its tools are the ``tool`` events behind it. The requests of scorers are left out.

    The prompt is all tokens (``total_tokens``) without the output, as providers count cached tokens apart or not.
    """
    for where, sample in _samples(source):
        name = "/".join(str(sample[part]) for part in ("id", "epoch") if sample.get(part) not in (None, 1))
        thread = Thread(name or where)
        events = listed(where, sample, "events", dict)
        end = next((at for at, event in enumerate(events) if _begins_scoring(event)), len(events))
        for index, event in enumerate(events[:end]):
            _add(thread, f"{where}: events[{index}]", event)
        scorers = sum(event.get("event") == "model" for event in events[end:])
        source.assume("request", "by a scorer: left out", scorers)
        yield thread


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
        raise TraceError(f"{source}: cannot read: {error}; inspect log convert --to json writes it in JSON") from error


def _begins_scoring(event: Event) -> bool:
    begins = event.get("event") == "span_begin" or (event.get("event") == "step" and event.get("action") == "begin")
    return begins and (event.get("type") in ("scorer", "scorers") or event.get("name") == "scorers")


def _add(thread: Thread, where: str, event: Event) -> None:
    at_s, end_s = seconds(event.get("timestamp")), seconds(event.get("completed"))
    if event.get("event") == "model" and event.get("cache") != "read" and event.get("role") != "grader":
        usage = inner(where, inner(where, event, "output"), "usage")
        model = event.get("model")
        thread.answers.append(
            AnsweredRequest(_usage(f"{where}: usage", usage), at_s, end_s, model=str(model) if model else None)
        )
    elif event.get("event") == "tool" and thread.answers:
        thread.answers[-1].calls.append(call_of(event.get("function"), event.get("arguments"), at_s, end_s))


def _usage(where: str, usage: Event) -> RequestUsage:
    names = ("input_tokens", "output_tokens", "total_tokens", "reasoning_tokens", "input_tokens_cache_read")
    prompt, output, total, reasoning, cached = (count_of(where, usage, name, 0) for name in names)
    return RequestUsage(max(prompt, total - output), output, min(reasoning, output), cached_tokens=cached or None)


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
