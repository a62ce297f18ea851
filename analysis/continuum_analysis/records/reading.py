"""Programs, turns and pins read from the recorded events of a run directory."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from continuum_traces.records import read_arrivals, read_turns, rows_written
from continuum_traces.records.replicas import read_record
from continuum_traces.records.run_dir import (
    ARRIVALS,
    ENGINE,
    EVENTS,
    PREVIEW_EVENTS,
    TURNS,
    engine_folders,
    preview_files,
)
from continuum_traces.records.scheduler_timestamps import read_preview
from continuum_traces.schema import ArrivalRecord, SchedulerEvent, TurnRecord

from continuum_analysis.records.timeline import AnalysisError, PinTimes, ProgramTimes, TurnTimes

_TURN_OF_REPLAY = re.compile("[0-9]+-[0-9]+-[0-9a-f]{8}")


def read_run(path: Path) -> list[ProgramTimes]:
    """Read the programs of a run directory in order of arrival.

    They are read from the scheduler's records, from the preview's files, or from the client's records alone (if another
    server ran them). Programs of which nothing but the arrival was recorded come last.

    Raises:
        AnalysisError: the directory contains no records.
        RunDirError: a file has a fault; the message names its line and field.
    """
    for name in rows_written(path) if path.is_dir() else ():
        if not (path / name).exists():
            raise AnalysisError(f"{path / name}: missing, but the run wrote it ({ENGINE} says so); take it from a copy")
    has_turns, has_events = (path / TURNS).exists(), bool(engine_folders(path))
    if has_turns or has_events:
        records = list(read_turns(path)) if has_turns else []
        events = read_record(path) if has_events else client_events(records)
        programs = add_client_records(order_events(named(events, records)), records)
        return add_arrivals(programs, read_arrivals(path)) if (path / ARRIVALS).exists() else programs
    for candidate in (path, path / PREVIEW_EVENTS):
        if candidate.is_file():
            return order_events(read_preview(candidate))
    if files := preview_files(path):
        return order_events(read_preview(*files))
    if not path.exists():
        raise AnalysisError(f"{path}: no such file or folder")
    raise AnalysisError(f"{path}: holds neither {EVENTS} nor {TURNS} nor {PREVIEW_EVENTS}")


def named(events: Iterable[SchedulerEvent], records: Iterable[TurnRecord]) -> Iterator[SchedulerEvent]:
    """Yield the events. Those of programs that the server named itself, because requests had no program id, get the
    program and turn of their client's record. It is found by turn id, or else by the client's name in the request id.
    """
    recorded, sent = set(), {}
    for record in records:
        recorded.add(record.program_id)
        if record.turn_id is not None:  # None: several programs have turns with this id
            sent[record.turn_id] = None if record.turn_id in sent else record
    pinned: dict[tuple[str, int], TurnRecord] = {}
    for event in events:
        if event.program_id not in recorded:
            place = event.program_id, event.turn
            record_of_turn = sent.get(event.turn_id or _client_name(event.request_id or "", sent))
            if event.event == "unpin":
                record_of_turn = pinned.pop(place, None)
            elif event.event == "pin" and record_of_turn is not None:
                pinned[place] = record_of_turn
            if record_of_turn is not None:
                event.program_id, event.turn = record_of_turn.program_id, record_of_turn.turn
        yield event


def _client_name(request_id: str, sent: Container[str]) -> str:
    """Return the client's name of a turn in a request id: all of it, or a part in the form of the load generator."""
    part = _TURN_OF_REPLAY.search(request_id)
    return request_id if request_id in sent or part is None else part[0]


def client_events(records: Iterable[TurnRecord]) -> Iterator[SchedulerEvent]:
    """Yield an arrival and a finish for each turn that a client recorded. Queue waits are unknown."""
    for record in sorted(records, key=lambda r: r.due_s):
        key, turn_id = (record.program_id, record.turn), record.turn_id
        yield SchedulerEvent(record.due_s, "arrive", *key, prompt_tokens=record.prompt_tokens, turn_id=turn_id)
        if record.finish_s is not None:
            status = "stop" if record.error is None else "error"
            tool = record.tools[0] if record.tools else None
            yield SchedulerEvent(
                record.finish_s, "finish", *key, output_tokens=record.output_tokens, tool=tool, status=status
            )


def order_events(events: Iterable[SchedulerEvent]) -> list[ProgramTimes]:
    """Build programs, in order of arrival, from their events. Events of different programs may come in any order.

    If a program has ended and another one has its id, that one is named ``ID#2`` (``ID#3`` ...), as in a client's
    record.
    """
    programs: dict[str, list[_Program]] = {}
    for event in events:
        same = programs.setdefault(event.program_id, [])
        if not same or same[-1].ended_before(event):
            number = f"#{len(same) + 1}" if same else ""
            same.append(_Program(ProgramTimes(f"{event.program_id}{number}")))
        same[-1].take(event)
    made = [program.times for same in programs.values() for program in same]
    for times in made:
        _name_endings(times)
    return sorted((times for times in made if times.turns), key=lambda p: (p.arrive_s, p.program_id))


class _Program:
    """Collects the events of one program."""

    def __init__(self, times: ProgramTimes) -> None:
        self.times = times
        self._by_id: dict[str, int] = {}
        """Indexes into the program's turns."""
        self._by_request: dict[tuple[str, int | None], TurnTimes] = {}

    def take(self, event: SchedulerEvent) -> None:
        if event.event == "arrive":
            self._arrive(event)
        elif event.event in ("pin", "unpin"):
            _apply_to_pins(self.times.pins, event)
        elif (turn := self._try_of(event)) is not None:
            _apply_to_turn(turn, event)

    def ended_before(self, event: SchedulerEvent) -> bool:
        """Whether the event is the arrival of another program: its number is not above those of earlier turns, because
        the server counts from 0 again once a program has ended."""
        turns = self.times.turns
        if event.event != "arrive" or not turns or event.turn > turns[-1].index or self._place_of(event) is not None:
            return False
        return all(turn.finish_s is not None and turn.finish_s <= event.t for turn in turns)

    def _arrive(self, event: SchedulerEvent) -> None:
        """Add a turn, or another try of a known turn."""
        turns = self.times.turns
        turn = TurnTimes(event.turn, event.t, prompt_tokens=event.prompt_tokens or 0, replica=event.replica)
        turn.request_id, turn.turn_id, turn.left_at = event.request_id, event.turn_id, event.left_at
        place = self._place_of(event)
        if place is None:
            place = len(turns)
            turns.append(turn)
        else:
            turns[place] = _tried_again(turns[place], turn)
        if event.turn_id is not None:
            self._by_id[event.turn_id] = place
        if event.request_id is not None:
            self._by_request[event.request_id, event.replica] = turn

    def _place_of(self, event: SchedulerEvent) -> int | None:
        """Return the index of the turn of which this arrival is another try; None for a new turn.

        The client's turn id decides. Without a turn id, the turn number decides, unless that turn has ended well.
        """
        if event.turn_id is not None and event.turn_id in self._by_id:
            return self._by_id[event.turn_id]
        turns = self.times.turns
        if event.turn_id is not None or not turns or turns[-1].index < event.turn:
            return None
        place = next((n for n in reversed(range(len(turns))) if turns[n].index == event.turn), None)
        return None if place is None or turns[place].ended_well else place

    def _try_of(self, event: SchedulerEvent) -> TurnTimes | None:
        """Return the try to which an event belongs: by request id, or without one the last try of its turn number."""
        if event.request_id is not None and (event.request_id, event.replica) in self._by_request:
            return self._by_request[event.request_id, event.replica]
        key = event.turn, event.replica
        return next((t for t in reversed(self.times.turns) if (t.index, t.replica) == key), None)


def _tried_again(before: TurnTimes, turn: TurnTimes) -> TurnTimes:
    """Return ``turn`` with ``before`` among its earlier tries."""
    turn.index, turn.arrive_s, turn.again_s = before.index, before.arrive_s, turn.arrive_s
    turn.turn_id = turn.turn_id or before.turn_id
    turn.earlier = [*before.earlier, before]
    before.arrive_s, before.again_s, before.earlier = before.last_arrive_s, None, []
    return turn


def _apply_to_pins(pins: list[PinTimes], event: SchedulerEvent) -> None:
    if event.event == "pin":
        pin = PinTimes(event.turn, event.t, event.ttl_s, event.tokens or 0)
        pin.delay_estimate_s, pin.eta = event.delay_estimate_s, event.eta
        pins.append(pin)
        return
    held = [pin for pin in pins if pin.until_s is None]
    of_turn = [pin for pin in held if pin.turn == event.turn] or held  # replicas may hold one each
    if of_turn:
        of_turn[0].until_s, of_turn[0].reason = event.t, event.reason or "not recorded"


def _apply_to_turn(turn: TurnTimes, event: SchedulerEvent) -> None:
    if event.event == "start":
        turn.start_s, turn.hit_tokens = event.t, event.hit_tokens
        turn.prompt_tokens = event.prompt_tokens or turn.prompt_tokens
    elif event.event == "finish":
        turn.finish_s, turn.tool, turn.status = event.t, event.tool, event.status
        turn.output_tokens = event.output_tokens or 0
    elif event.event == "preempt":
        turn.preempted_s.append(event.t)
    elif event.event == "resume" and len(turn.resumed_s) < len(turn.preempted_s):
        turn.resumed_s.append(event.t)
    elif event.event == "reload":
        turn.reload_bytes += event.bytes or 0
        turn.reload_since_s = event.t if turn.reload_since_s is None else turn.reload_since_s


def _name_endings(program: ProgramTimes) -> None:
    """Set the reason ``hit`` of pins without a recorded reason if a later turn arrived during the pin."""
    for pin in program.pins:
        if pin.reason == "not recorded" and pin.until_s is not None:
            later = (turn.arrive_s for turn in program.turns if turn.index > pin.turn)
            if any(pin.since_s <= arrive_s <= pin.until_s for arrive_s in later):
                pin.reason = "hit"


def add_client_records(programs: list[ProgramTimes], records: Iterable[TurnRecord]) -> list[ProgramTimes]:
    """Add the client's records to the turns of the programs. A failure that only the client recorded counts too.

    A record belongs to the turn with the same turn id if both have one, else to the turn with the same number. A failed
    turn that never reached the scheduler is added.
    """
    unseen = []
    turns = [(p.program_id, t) for p in programs for t in p.turns]
    by_id: dict[tuple[str, str | None], TurnTimes] = {(p, t.turn_id): t for p, t in turns if t.turn_id is not None}
    by_number = {(p, t.index): t for p, t in turns}
    for record in records:
        numbered = by_number.get((record.program_id, record.turn))
        if numbered is not None and None not in (numbered.turn_id, record.turn_id):
            numbered = None  # it may be another turn
        turn = by_id.get((record.program_id, record.turn_id)) or numbered
        if turn is not None:
            turn.client = record
            if record.error is not None and record.finish_s is not None:
                turn.status = "error"  # without a finish the run ended during the turn
            if turn.start_s is None:
                turn.hit_tokens = record.cached_tokens
        elif record.error is not None:
            unseen.append(record)
    return _with_unseen(programs, unseen) if unseen else programs


def _with_unseen(programs: list[ProgramTimes], unseen: Sequence[TurnRecord]) -> list[ProgramTimes]:
    """Add turns that failed, or that the run left, before they reached the scheduler, on its clock as far as other
    turns tell the offset."""
    by_id = {program.program_id: program for program in programs}
    offsets = [t.arrive_s - t.client.sent_s for p in programs for t in p.turns if t.client is not None]
    offset_s = median(offsets) if offsets else 0.0
    for record in unseen:
        turn = TurnTimes(record.turn, record.sent_s + offset_s, client=record, turn_id=record.turn_id)
        turn.status = None if record.finish_s is None else "error"
        turn.finish_s = None if record.finish_s is None else record.finish_s + offset_s
        by_id.setdefault(record.program_id, ProgramTimes(record.program_id)).turns.append(turn)
    return sorted(by_id.values(), key=lambda p: (p.arrive_s, p.program_id))


def add_arrivals(programs: list[ProgramTimes], arrivals: Iterable[ArrivalRecord]) -> list[ProgramTimes]:
    """Mark the programs outside the measured window, and append the programs that have no recorded turn."""
    by_id = {program.program_id: program for program in programs}
    lost = []
    for arrival in arrivals:
        program = by_id.get(arrival.program_id)
        if program is None:
            program = ProgramTimes(arrival.program_id)
            lost.append(program)
        program.counted, program.due_from_arrival_s = arrival.counted, arrival.due_s
        program.started_by_arrival = arrival.started_by
    return [*programs, *lost]
