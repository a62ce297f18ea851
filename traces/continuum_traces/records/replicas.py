"""Merge the records of several engines that served together: order events by time, count turns over all engines.

A scheduler numbers the turns that it receives. If the turns of a program went to several servers, the program has a
turn 0 at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from continuum_traces.records import read_events
from continuum_traces.records.run_dir import engine_folders
from continuum_traces.schema import SchedulerEvent

_FAILED = ("abort", "error")


@dataclass(slots=True)
class _Attempt:
    """One try of a turn at one server."""

    arrival: SchedulerEvent
    """With the turn's number over all servers."""
    ended_well: bool = False


@dataclass(slots=True)
class _Program:
    """A program, with its turns counted over all servers."""

    next_turn: int = 0
    """The number of the program's next new turn."""
    by_id: dict[str, int] = field(default_factory=dict)
    latest: _Attempt | None = None
    at_server: dict[tuple[int | None, int], _Attempt] = field(default_factory=dict)
    """The latest attempt by server and by the turn's number at that server."""


def read_record(folder: Path, keep: Callable[[SchedulerEvent], bool] = lambda event: True) -> list[SchedulerEvent]:
    """Read the events of a server's ``--record`` folder, or of the folders of all engines in it.

    Args:
        folder: the value of ``--record``.
        keep: returns False for events that are to be ignored.

    Raises:
        RunDirError: the folder has no record, or a file has a fault.
    """
    folders = engine_folders(folder) or [folder]
    records = [[event for event in read_events(path) if keep(event)] for path in folders]
    return records[0] if folders == [folder] else merge(records)


def merge(records: Sequence[Sequence[SchedulerEvent]]) -> list[SchedulerEvent]:
    """Merge the records of the replicas. The replicas' clocks must agree, as they do on one machine.

    An arrival with a turn id that the program used before is another try of that turn. Without turn ids, an arrival is
    another try if the prompt is as long as that of an earlier try that did not end well, and if that try was at another
    server (its server died) or had the same number at the same server. If a server counts a program from 0 again, the
    server has forgotten the program, and the program starts anew.
    """
    events = [replace(event, replica=index) for index, record in enumerate(records) for event in record]
    events.sort(key=lambda event: event.t)
    programs: dict[str, _Program] = {}
    return [_renumbered(event, programs) for event in events]


def _renumbered(event: SchedulerEvent, programs: dict[str, _Program]) -> SchedulerEvent:
    key = event.replica, event.turn
    if event.event == "arrive":
        turn = _turn_of(event, programs)
        program = programs[event.program_id]
        event = replace(event, turn=turn)
        program.latest = program.at_server[key] = _Attempt(event)
        program.next_turn = max(program.next_turn, turn + 1)
        if event.turn_id is not None:
            program.by_id[event.turn_id] = turn
        return event
    earlier = programs.get(event.program_id)
    arrived = None if earlier is None else earlier.at_server.get(key)
    if arrived is None:  # the record begins after this turn's arrival
        return event
    if event.event == "finish" and event.request_id == arrived.arrival.request_id:
        arrived.ended_well = event.status not in _FAILED
    return replace(event, turn=arrived.arrival.turn)


def _turn_of(event: SchedulerEvent, programs: dict[str, _Program]) -> int:
    """Return the number of an arriving turn, counted over all servers."""
    program = programs.setdefault(event.program_id, _Program())
    if event.turn_id is not None and event.turn_id in program.by_id:
        return program.by_id[event.turn_id]
    here = program.at_server.get((event.replica, event.turn))
    if event.turn_id is None:
        for before in (here, program.latest):
            if before is not None and _is_another_try(event, before, before is here):
                return before.arrival.turn
    if event.turn == 0 and here is not None:
        programs[event.program_id] = _Program()
        return 0
    return program.next_turn


def _is_another_try(event: SchedulerEvent, before: _Attempt, same_number: bool) -> bool:
    arrival, elsewhere = before.arrival, before.arrival.replica != event.replica
    return (same_number or elsewhere) and arrival.prompt_tokens == event.prompt_tokens and not before.ended_well
