"""Read and write the ``scheduler_timestamps`` JSON of the papers' public preview.

``{program: [{"Request_arrival_time": t} | {"waiting_to_running": t, "prompt_length": n, "hit_length": h} | ...]}``.
The form has no turn numbers, tools or reasons. Facts that it cannot express are left out on writing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


def read_preview(path: Path) -> list[SchedulerEvent]:
    """Read the events of a preview file, program by program. Each arrival begins the program's next turn.

    Raises:
        RunDirError: the file cannot be read or is not of that form. The message names file, program and entry.
    """
    return [event for program, entries in read_json(path).items() for event in _program(path, program, entries)]


def _program(path: Path, program: str, entries: Any) -> list[SchedulerEvent]:
    if not isinstance(entries, list):
        raise RunDirError(f"{path}: {program}: expected a list of events")
    events: list[SchedulerEvent] = []
    turn = pinned = -1
    for number, entry in enumerate(entries):
        where = f"{path}: {program}[{number}]"
        name = next((key for key in entry if key in _KINDS), None) if isinstance(entry, dict) else None
        if name is None:
            raise RunDirError(f"{where}: expected an object with one of {', '.join(_KINDS)}")
        kind, lengths = (
            _KINDS[name],
            {"prompt_tokens": entry.get("prompt_length"), "hit_tokens": entry.get("hit_length")},
        )
        turn += kind == "arrive"
        pinned = turn if kind == "pin" else pinned
        # a pin ends after the next arrival, but the event belongs to the turn that was pinned
        place = {"program_id": program, "turn": max(pinned if kind == "unpin" else turn, 0)}
        try:
            events.append(from_json(SchedulerEvent, {"t": entry[name], "event": kind, **place, **lengths}))
        except FieldError as error:
            raise RunDirError(f"{where}: {name}: {error}") from error
    return events


def write_preview(path: Path, events: Iterable[SchedulerEvent]) -> None:
    """Write events in the preview's form. Kinds of events that the form does not have (reload) are left out."""
    paired = [event for event in events if event.event in _NAMES]
    write_json(path, grouped((event.program_id, _entry(event)) for event in paired))


def _entry(event: SchedulerEvent) -> dict[str, Any]:
    entry: dict[str, Any] = {_NAMES[event.event]: event.t}
    if event.event in ("start", "resume"):
        entry |= {"prompt_length": event.prompt_tokens or 0, "hit_length": event.hit_tokens or 0}
    return entry
