"""One record from those of several servers behind a router: events in order of time, turns counted over all of them.

A scheduler numbers the turns that it saw; a program whose turns went to several servers has a turn 0 at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from continuum_traces.run_dir import read_events, replica_folders
from continuum_traces.schema import SchedulerEvent

_FAILED = ("abort", "error")


@dataclass(slots=True)
class _Attempt:
    """A program's latest turn, as sent to one server."""

    turn: int
    replica: int
    prompt_tokens: int | None
    ended_well: bool = False


def read_record(folder: Path, keep: Callable[[SchedulerEvent], bool] = lambda event: True) -> list[SchedulerEvent]:
    """Events of a server's ``--record`` folder, or of all replicas' folders below it.

    Args:
        folder: the server's.
        keep: says which events count; the others are as if never recorded.

    Raises:
        RunDirError: no record there, or a fault in a file.
    """
    replicas = replica_folders(folder)
    records = [[event for event in read_events(path) if keep(event)] for path in replicas or [folder]]
    return merge(records) if replicas else records[0]


def merge(records: Sequence[Sequence[SchedulerEvent]]) -> list[SchedulerEvent]:
    """The servers' records, by replica, as one. Their clocks must agree, as on one machine.

    A turn that arrives at another server with the same prompt while its last attempt has not ended well is that turn
    again: its server died, and it was sent once more. A server that counts a program from 0 again sees it anew.
    """
    events = [replace(event, replica=index) for index, record in enumerate(records) for event in record]
    events.sort(key=lambda event: event.t)
    latest: dict[str, _Attempt] = {}
    turns: dict[tuple[int | None, str, int], _Attempt] = {}
    return [_renumbered(event, latest, turns) for event in events]


def _renumbered(
    event: SchedulerEvent, latest: dict[str, _Attempt], turns: dict[tuple[int | None, str, int], _Attempt]
) -> SchedulerEvent:
    key = event.replica, event.program_id, event.turn
    if event.event == "arrive":
        anew = event.turn == 0 and key in turns
        turns[key] = latest[event.program_id] = _attempt(event, None if anew else latest.get(event.program_id))
    attempt = turns.get(key)
    if attempt is None:  # the record begins after its arrival
        return event
    if event.event == "finish":
        attempt.ended_well = event.status not in _FAILED
    return replace(event, turn=attempt.turn)


def _attempt(event: SchedulerEvent, before: _Attempt | None) -> _Attempt:
    assert event.replica is not None
    if before is None:
        return _Attempt(0, event.replica, event.prompt_tokens)
    elsewhere = before.replica != event.replica and before.prompt_tokens == event.prompt_tokens
    again = elsewhere and not before.ended_well
    return _Attempt(before.turn if again else before.turn + 1, event.replica, event.prompt_tokens)
