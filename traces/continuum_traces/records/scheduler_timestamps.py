"""Read and write the ``scheduler_timestamps`` JSON of the papers' public preview.

``{program: [{"Request_arrival_time": t} | {"waiting_to_running": t, "prompt_length": n, "hit_length": h} | ...]}``.
The form has no turn numbers, tools or reasons. Facts that it cannot express are left out on writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from continuum_traces.grouped import grouped
from continuum_traces.json_io import RunDirError, read_json, write_json
from continuum_traces.schema import EventKind, SchedulerEvent
from continuum_traces.typed import FieldError, from_json

_KINDS: dict[str, EventKind] = {
    "Request_arrival_time": "arrive",
    "waiting_to_running": "start",
    "Request_departure_time": "finish",
    "pinned_time": "pin",
    "unpinned_time": "unpin",
    "Request_evicted_from_running_queue_time": "preempt",
    "evicted_to_running": "resume",
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def read_preview(*paths: Path) -> list[SchedulerEvent]:
    """Read the events of a preview file, program by program. Each arrival begins the program's next turn.

    Args:
        paths: one file, or the files of several servers that shared a run (``served_together``).

    Raises:
        RunDirError: a file cannot be read or is not of that form. The message names file, program and entry.
    """
    programs = grouped((program, entry) for path in paths for program, entry in _entries(path))
    return [
        event
        for program, entries in programs.items()
        for event in _events(program, sorted(entries, key=lambda entry: entry[:2]))
    ]


def served_together(paths: Sequence[Path]) -> bool:
    """Whether files are of servers behind one router: no program had requests at two of them at the same time, and the
    servers ran at the same time. Two runs of the same programs differ in the one or in the other.

    Raises:
        RunDirError: as ``read_preview``.
    """
    spans = [_spans(path) for path in paths]
    ran = [(min(start for each in own.values() for start, _ in each), _end(own)) for own in spans if own]
    if len(ran) < max(2, len(paths)) or max(start for start, _ in ran) > min(end for _, end in ran):
        return False
    every = grouped((program, span) for own in spans for program, turns in own.items() for span in turns)
    return all(end <= start for turns in every.values() for (_, end), (start, _) in pairwise(sorted(turns)))


def _spans(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of arrival and departure of each program's requests that departed."""
    spans: dict[str, list[tuple[float, float]]] = {}
    arrived: dict[str, float] = {}
    for program, entry in _entries(path):
        if entry.event == "arrive":
            arrived[program] = entry.t
        elif entry.event == "finish" and program in arrived:
            spans.setdefault(program, []).append((arrived.pop(program), entry.t))
    return spans


def _end(spans: Mapping[str, Sequence[tuple[float, float]]]) -> float:
    return max(end for turns in spans.values() for _, end in turns)


class _Entry(NamedTuple):
    """An entry of a file. Entries of one program are sorted by their times, and keep their order within a file."""

    t: float
    place: int
    event: EventKind
    prompt_tokens: int | None
    hit_tokens: int | None


def _entries(path: Path) -> Iterator[tuple[str, _Entry]]:
    for program, entries in read_json(path).items():
        if not isinstance(entries, list):
            raise RunDirError(f"{path}: {program}: expected a list of events")
        for place, entry in enumerate(entries):
            where = f"{path}: {program}[{place}]"
            name = next((key for key in entry if key in _KINDS), None) if isinstance(entry, dict) else None
            if name is None:
                raise RunDirError(f"{where}: expected an object with one of {', '.join(_KINDS)}")
            lengths = {"prompt_tokens": entry.get("prompt_length"), "hit_tokens": entry.get("hit_length")}
            values = {"t": entry[name], "event": _KINDS[name], "program_id": program, "turn": 0, **lengths}
            try:
                read = from_json(SchedulerEvent, values)
            except FieldError as error:
                raise RunDirError(f"{where}: {name}: {error}") from error
            yield program, _Entry(read.t, place, read.event, read.prompt_tokens, read.hit_tokens)


def _events(program: str, entries: Iterable[_Entry]) -> Iterator[SchedulerEvent]:
    turn = pinned = -1
    for entry in entries:
        turn += entry.event == "arrive"
        pinned = turn if entry.event == "pin" else pinned
        # a pin ends after the next arrival, but the event belongs to the turn that was pinned
        of = max(pinned if entry.event == "unpin" else turn, 0)
        yield SchedulerEvent(
            entry.t, entry.event, program, of, prompt_tokens=entry.prompt_tokens, hit_tokens=entry.hit_tokens
        )


def write_preview(path: Path, events: Iterable[SchedulerEvent]) -> None:
    """Write events in the preview's form. Kinds of events that the form does not have (reload) are left out."""
    paired = [event for event in events if event.event in _NAMES]
    write_json(path, grouped((event.program_id, _entry(event)) for event in paired))


def _entry(event: SchedulerEvent) -> dict[str, Any]:
    entry: dict[str, Any] = {_NAMES[event.event]: event.t}
    if event.event in ("start", "resume"):
        entry |= {"prompt_length": event.prompt_tokens or 0, "hit_length": event.hit_tokens or 0}
    return entry
