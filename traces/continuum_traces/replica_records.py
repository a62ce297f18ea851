"""Merge the records of several servers behind a router: events in order of time, turns counted over all servers.

A scheduler numbers the turns that it receives: a program whose turns went to several servers has a turn 0 at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from continuum_traces.run_dir import read_events, replica_folders
from continuum_traces.schema import SchedulerEvent

_FAILED = ("abort", "error")


@dataclass(slots=True)
class _Attempt:
    """One try of a turn at one server."""

    turn: int
    replica: int | None
    prompt_tokens: int | None
    request_id: str | None
    ended_well: bool = False


@dataclass(slots=True)
class _Program:
    """A program, with its turns counted over all servers."""

    following: int = 0
    """The number of the program's next new turn."""
    by_id: dict[str, int] = field(default_factory=dict)
    latest: _Attempt | None = None
    at_server: dict[tuple[int | None, int], _Attempt] = field(default_factory=dict)
    """By server and by the turn's number at that server."""


def read_record(folder: Path, keep: Callable[[SchedulerEvent], bool] = lambda event: True) -> list[SchedulerEvent]:
    """The events of a server's ``--record`` folder, or of the folders of all replicas below it.

    Args:
        folder: the value of ``--record``.
        keep: says which events are read; the others are ignored.

    Raises:
        RunDirError: no record there, or a fault in a file.
    """
    replicas = replica_folders(folder)
    records = [[event for event in read_events(path) if keep(event)] for path in replicas or [folder]]
    return merge(records) if replicas else records[0]


def merge(records: Sequence[Sequence[SchedulerEvent]]) -> list[SchedulerEvent]:
    """Merge the records of the replicas. Their clocks must agree, as on one machine.

    An arrival with a turn id that the program used before is another try of that turn. Without turn ids, an arrival is
    another try if it has the prompt of a try that did not end well (its server died, and the turn was sent to another
    server), or if the same server gave it the same number. A server that counts a program from 0 again has forgotten
    it.
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
        attempt = _Attempt(turn, event.replica, event.prompt_tokens, event.request_id)
        program.latest = program.at_server[key] = attempt
        program.following = max(program.following, turn + 1)
        if event.turn_id is not None:
            program.by_id[event.turn_id] = turn
        return replace(event, turn=turn)
    known = programs.get(event.program_id)
    found = None if known is None else known.at_server.get(key)
    if found is None:  # the record begins after its arrival
        return event
    if event.event == "finish" and event.request_id == found.request_id:
        found.ended_well = event.status not in _FAILED
    return replace(event, turn=found.turn)


def _turn_of(event: SchedulerEvent, programs: dict[str, _Program]) -> int:
    """The number of an arriving turn, counted over all servers."""
    program = programs.setdefault(event.program_id, _Program())
    if event.turn_id is not None and event.turn_id in program.by_id:
        return program.by_id[event.turn_id]
    here = program.at_server.get((event.replica, event.turn))
    if event.turn_id is None:
        for before in (here, program.latest):
            if before is not None and _is_again(event, before, before is here):
                return before.turn
    if event.turn == 0 and here is not None:
        programs[event.program_id] = _Program()
        return 0
    return program.following


def _is_again(event: SchedulerEvent, before: _Attempt, same_number: bool) -> bool:
    elsewhere = before.replica != event.replica
    return (same_number or elsewhere) and before.prompt_tokens == event.prompt_tokens and not before.ended_well
