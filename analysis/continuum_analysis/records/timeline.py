"""Programs with their turns and pins, built from the recorded events of a run directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Literal

from continuum_traces.replica_records import read_record
from continuum_traces.run_dir import (
    ARRIVALS,
    ENGINE,
    EVENTS,
    PREVIEW_EVENTS,
    TURNS,
    read_arrivals,
    read_turns,
    replica_folders,
    rows_written,
)
from continuum_traces.scheduler_timestamps import read_preview
from continuum_traces.schema import ArrivalRecord, SchedulerEvent, TurnRecord

State = Literal["finished", "failed", "unfinished"]

FAILED = ("abort", "error")
"""Statuses of a turn whose client got no complete answer."""


class AnalysisError(Exception):
    """Raised for files that cannot be analysed or compared; the message names the file and the reason."""


@dataclass(slots=True)
class TurnTimes:
    """The times of one turn in seconds on the scheduler's clock; None means not recorded.

    A request that fails may be sent again, so a turn has one or more tries. Unless a field says otherwise, it describes
    the last try.
    """

    index: int
    arrive_s: float
    """Arrival of the first try."""
    start_s: float | None = None
    finish_s: float | None = None
    prompt_tokens: int = 0
    hit_tokens: int | None = None
    output_tokens: int = 0
    tool: str | None = None
    status: str | None = None
    """``stop``, ``length``, ``abort`` or ``error``."""
    preempted_s: list[float] = field(default_factory=list)
    """The instants at which the running turn was preempted."""
    resumed_s: list[float] = field(default_factory=list)
    """The instants at which the turn was scheduled again after a preemption."""
    reload_bytes: int = 0
    """Bytes of KV that were loaded from a lower tier for this turn."""
    reload_since_s: float | None = None
    """The instant at which the first load was requested; the turn starts, or resumes, when the KV is loaded."""
    client: TurnRecord | None = None
    """The client's record of the turn, on the client's clock."""
    replica: int | None = None
    """The number of the replica that ended the turn; None with one replica."""
    request_id: str | None = None
    turn_id: str | None = None
    """The client's id of the turn, the same for every try."""
    again_s: float | None = None
    """Arrival of the last try; None if there is only one try."""
    earlier: list[TurnTimes] = field(default_factory=list)
    """Tries before the last. Each was aborted, failed, was lost with its replica, or its answer did not arrive."""

    @property
    def attempts(self) -> int:
        return 1 + len(self.earlier)

    @property
    def last_arrive_s(self) -> float:
        """Arrival of the last try."""
        return self.arrive_s if self.again_s is None else self.again_s

    @property
    def ended_well(self) -> bool:
        return self.finish_s is not None and self.status not in FAILED

    @property
    def wait_s(self) -> float | None:
        """Seconds from arrival until first scheduled, summed over all tries, without the time between tries."""
        if self.start_s is None:
            return None
        return self.start_s - self.last_arrive_s + sum(until_s - since_s for since_s, until_s in self.earlier_waits)

    @property
    def earlier_waits(self) -> list[tuple[float, float]]:
        """The queue wait of each try before the last, as (from, until). The wait ends when the try is scheduled or
        ends, or when the client sends the next try."""
        if not self.earlier:
            return []
        following = [*(try_.arrive_s for try_ in self.earlier[1:]), self.last_arrive_s]
        return [
            (try_.arrive_s, min(t for t in (try_.start_s, try_.finish_s, next_s) if t is not None))
            for try_, next_s in zip(self.earlier, following, strict=True)
        ]

    @property
    def requeues(self) -> list[tuple[float, float]]:
        """The waits of the last try after preemptions, as (from, until). A wait ends when the try is scheduled again or
        ends."""
        ends = self.resumed_s if self.finish_s is None else [*self.resumed_s, self.finish_s]
        return list(zip(self.preempted_s, ends, strict=False))

    @property
    def requeue_s(self) -> float:
        """Seconds of waiting after preemptions, over all tries."""
        own_s = sum(until_s - since_s for since_s, until_s in self.requeues) if self.preempted_s else 0.0
        return own_s + sum(try_.requeue_s for try_ in self.earlier)

    @property
    def preemptions(self) -> int:
        """Number of preemptions over all tries."""
        return len(self.preempted_s) + sum(try_.preemptions for try_ in self.earlier)

    @property
    def first_token_s(self) -> float | None:
        """The instant of the first token on the scheduler's clock: arrival + (first token - sent, on the client's
        clock)."""
        record = self.client
        if record is None or record.first_token_s is None or self.start_s is None:
            return None
        instant_s = self.arrive_s + record.first_token_s - record.sent_s
        return min(max(instant_s, self.start_s), instant_s if self.finish_s is None else self.finish_s)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from the instant the turn was due to its first token, both on the client's clock."""
        if self.client is None or self.client.first_token_s is None:
            return None
        return self.client.first_token_s - self.client.due_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between output tokens after the first, on the client's clock."""
        record = self.client
        if record is None or record.first_token_s is None or record.finish_s is None:
            return None
        gaps = self.gaps_between_tokens
        return (record.finish_s - record.first_token_s) / gaps if gaps > 0 else None

    @property
    def token_gaps_s(self) -> dict[float, int] | None:
        """Counts of the seconds between two chunks of output tokens; None without ``--token-times``."""
        recorded = self.client.token_gaps_ms if self.client is not None else None
        return None if recorded is None else {float(gap) / 1e3: count for gap, count in recorded.items()}

    @property
    def itl_max_s(self) -> float | None:
        """The longest gap between two chunks; 0.0 if the whole answer came in one chunk."""
        gaps = self.token_gaps_s
        return None if gaps is None else max(gaps, default=0.0)

    @property
    def gaps_between_tokens(self) -> int:
        """Output tokens - 1, by the client's count of tokens if it has one, else by the server's."""
        return ((self.client.output_tokens if self.client else None) or self.output_tokens) - 1


@dataclass(slots=True)
class PinTimes:
    """One pin of a finished turn's KV."""

    turn: int
    since_s: float
    ttl_s: float | None
    tokens: int = 0
    until_s: float | None = None
    reason: str = "held at the end"
    """Why the pin ended: hit, expired, last, pressure, abort or shutdown. The preview's files give no reasons; there it
    is "hit" if a turn of the program arrived during the pin, else "not recorded"."""
    delay_estimate_s: float | None = None
    eta: float | None = None


@dataclass(slots=True)
class ProgramTimes:
    program_id: str
    turns: list[TurnTimes] = field(default_factory=list)
    pins: list[PinTimes] = field(default_factory=list)
    counted: bool = True
    """False for programs of a warm-up or a cool-down: they load the machine and are in no metric."""
    due_from_arrival_s: float | None = None
    """When the client meant to start the program, from its arrival record, where no turn was recorded."""
    reference_s: float | None = None
    """Its completion time in a run in which programs had the machine for themselves, where such a run was given."""

    @property
    def state(self) -> State:
        """Finished: every turn ended, and the client was to send no other. Failed: the last turn ended in an abort
        or an error."""
        if not self.turns or any(turn.finish_s is None for turn in self.turns) or self._cut_short():
            return "unfinished"
        return "failed" if self.turns[-1].status in FAILED else "finished"

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def _cut_short(self) -> bool:
        """Return whether the run stopped during a tool call, so that the client's next turn never arrived."""
        record = self.turns[-1].client
        return record is not None and not record.is_last and record.gap_s is not None

    @property
    def arrive_s(self) -> float:
        return self.turns[0].arrive_s

    @property
    def finish_s(self) -> float:
        """The program's last recorded event."""
        return max(turn.arrive_s if turn.finish_s is None else turn.finish_s for turn in self.turns)

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.arrive_s

    @property
    def bubble_s(self) -> float | None:
        """Seconds that the program's turns waited in the queue, also after preemptions; None if a start is unknown."""
        waits = [turn.wait_s for turn in self.turns]
        known = [wait for wait in waits if wait is not None]
        return sum(known) + self.requeue_s if len(known) == len(waits) else None

    @property
    def requeue_s(self) -> float:
        return sum(turn.requeue_s for turn in self.turns)

    @property
    def worst_ttft_s(self) -> float | None:
        """The longest TTFT of the program's turns; None if the TTFT of a turn is unknown."""
        known = [ttft_s for turn in self.turns if (ttft_s := turn.ttft_s) is not None]
        return max(known) if self.turns and len(known) == len(self.turns) else None

    @property
    def alone_s(self) -> float | None:
        """The program's JCT on an empty engine: from the reference run, else from the virtual engine's records."""
        if self.reference_s is not None:
            return self.reference_s
        records = [turn.client for turn in self.turns]
        turns = [record.alone_s for record in records if record is not None and record.alone_s is not None]
        if not turns or len(turns) < len(records):
            return None
        return sum(turns) + sum(record.gap_s for record in records if record is not None and record.gap_s is not None)

    @property
    def slowdown(self) -> float | None:
        """JCT / JCT alone."""
        return self.jct_s / self.alone_s if self.finished and self.alone_s else None

    @property
    def due_s(self) -> float | None:
        """The instant at which the first turn was due, on the client's clock."""
        record = self.turns[0].client if self.turns else None
        return record.due_s if record else self.due_from_arrival_s


def pinned_tokens(programs: Iterable[ProgramTimes]) -> tuple[list[float], list[int]]:
    """Return the instants at which pins begin or end, in order, and the tokens in pins: before the first instant, then
    after each (one number more than there are instants)."""
    pins = [pin for program in programs for pin in program.pins]
    changes = [(pin.since_s, pin.tokens) for pin in pins]
    changes += [(pin.until_s, -pin.tokens) for pin in pins if pin.until_s is not None]
    changes.sort()
    return [t for t, _ in changes], list(accumulate((tokens for _, tokens in changes), initial=0))


def read_run(path: Path) -> list[ProgramTimes]:
    """Read the programs of a run directory in order of arrival.

    They are read from the scheduler's records, from the preview's file, or from the client's records alone (if another
    server ran them). Programs of which nothing but the arrival was recorded come last.

    Raises:
        AnalysisError: the directory contains no records.
        RunDirError: a file has a fault; the message names its line and field.
    """
    for name in rows_written(path) if path.is_dir() else ():
        if not (path / name).exists():
            raise AnalysisError(f"{path / name}: missing, but the run wrote it ({ENGINE} says so); take it from a copy")
    has_turns, has_events = (path / TURNS).exists(), (path / EVENTS).exists() or replica_folders(path)
    if has_turns or has_events:
        records = list(read_turns(path)) if has_turns else []
        events = read_record(path) if has_events else client_events(records)
        programs = add_client_records(order_events(events), records)
        return add_arrivals(programs, read_arrivals(path)) if (path / ARRIVALS).exists() else programs
    for candidate in (path, path / PREVIEW_EVENTS):
        if candidate.is_file():
            return order_events(read_preview(candidate))
    raise AnalysisError(f"{path}: holds neither {EVENTS} nor {TURNS} nor {PREVIEW_EVENTS}")


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
    """Build programs, in order of arrival, from their events. Events of different programs may come in any order."""
    programs: dict[str, _Program] = {}
    for event in events:
        program = programs.setdefault(event.program_id, _Program(ProgramTimes(event.program_id)))
        program.take(event)
    for program in programs.values():
        _name_endings(program.times)
    seen = (program.times for program in programs.values() if program.times.turns)
    return sorted(seen, key=lambda p: (p.arrive_s, p.program_id))


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

    def _arrive(self, event: SchedulerEvent) -> None:
        """Add a turn, or another try of a known turn."""
        turns = self.times.turns
        turn = TurnTimes(event.turn, event.t, prompt_tokens=event.prompt_tokens or 0, replica=event.replica)
        turn.request_id, turn.turn_id = event.request_id, event.turn_id
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

        The client's turn id decides. Without a turn id, the turn number decides, unless that turn has ended well: then
        the program ended, and another program with the same id began.
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

    A record belongs to the turn with the same turn id if both have one, else to the turn with the same number.
    """
    by_number = {(p.program_id, t.index): t for p in programs for t in p.turns}
    by_id = {(p.program_id, t.turn_id): t for p in programs for t in p.turns}
    for record in records:
        turn = by_id.get((record.program_id, record.turn_id)) if record.turn_id is not None else None
        if turn is None:
            turn = by_number.get((record.program_id, record.turn))
            if turn is not None and None not in (turn.turn_id, record.turn_id):
                continue  # the record belongs to another turn
        if turn is not None:
            turn.client = record
            if record.error is not None:
                turn.status = "error"
            if turn.start_s is None:
                turn.hit_tokens = record.cached_tokens
    return programs


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
    return [*programs, *lost]
