"""The times of programs, their turns and their pins, as recorded, and what follows from them directly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from continuum_traces.schema import Metadata, TurnRecord

State = Literal["finished", "failed", "unfinished"]

ROUNDING_S = 1e-3
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
    left_at: int | None = None
    """Where its prompt differs from that of the turn before, as the server saw it (``SchedulerEvent.left_at``)."""
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
    left_s: float | None = None
    """Of a turn without a first token when the run ended: the seconds since it was due, a lower bound of its TTFT."""
    left_in_queue_s: float | None = None
    """Of a turn that was not scheduled when the run ended: the seconds since its last try arrived."""

    @property
    def last_arrive_s(self) -> float:
        """Arrival of the last try."""
        return self.arrive_s if self.again_s is None else self.again_s

    @property
    def ended(self) -> bool:
        """Whether the client's record or the scheduler's has the end of the turn."""
        return self.finish_s is not None or (self.client is not None and self.client.finish_s is not None)

    @property
    def ended_well(self) -> bool:
        return self.finish_s is not None and self.status not in FAILED

    @property
    def wait_s(self) -> float | None:
        """Seconds from arrival until first scheduled, or until the run ended, summed over all tries, without the time
        between tries."""
        last_s = self.left_in_queue_s if self.start_s is None else self.start_s - self.last_arrive_s
        return None if last_s is None else last_s + sum(until_s - since_s for since_s, until_s in self.earlier_waits)

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
        """Seconds from the instant the turn was due to its first token, or to the end of the run (``left_s``), both on
        the client's clock."""
        if self.client is None or self.client.first_token_s is None:
            return self.left_s
        return self.client.first_token_s - self.client.due_s

    @property
    def took_s(self) -> float | None:
        """Seconds from the instant the turn was due to the end of its answer, or to the end of the run (``left_s``),
        both on the client's clock."""
        if self.client is None or self.client.finish_s is None:
            return self.left_s
        return self.client.finish_s - self.client.due_s

    @property
    def slowdown(self) -> float | None:
        """The same / the seconds that the turn takes alone, which only virtual runs record."""
        alone_s = self.client.alone_s if self.client is not None else None
        return self.took_s / alone_s if self.took_s is not None and alone_s else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds between output tokens after the first, on the client's clock; None if they came in one chunk."""
        record = self.client
        if record is None or record.first_token_s is None or record.finish_s is None or self.token_gaps_s == {}:
            return None
        gaps = self.gaps_between_tokens
        return (record.finish_s - record.first_token_s) / gaps if gaps > 0 else None

    @property
    def token_gaps_s(self) -> dict[float, int] | None:
        """Counts of the seconds between two output tokens; empty: they came in one chunk, None: unknown."""
        recorded = self.client.token_gaps_ms if self.client is not None else None
        return None if recorded is None else {float(gap) / 1e3: count for gap, count in recorded.items()}

    @property
    def itl_max_s(self) -> float | None:
        """The longest gap between two output tokens; None if no gap is known."""
        return max(self.token_gaps_s or (), default=None)

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
    started_by_arrival: str | None = None
    """The same of ``started_by``."""
    reference_s: float | None = None
    """Its completion time in a run in which programs had the machine for themselves, where such a run was given."""

    @property
    def metadata(self) -> Metadata:
        """What the user noted about the program, as the client recorded it."""
        return next((t.client.metadata for t in self.turns if t.client and t.client.metadata), {})

    @property
    def admit_wait_s(self) -> float | None:
        """Seconds that the first turn waited in the queue."""
        return self.turns[0].wait_s if self.turns else None

    @property
    def state(self) -> State:
        """Finished: every turn ended, and the client was to send no other. Failed: the last turn ended in an abort
        or an error."""
        if not self.turns or not all(turn.ended for turn in self.turns) or self._cut_short():
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
    def seen_until_s(self) -> float:
        """The program's last recorded event, or the end of the run if it was in the queue then."""
        return max(self.finish_s, *(turn.last_arrive_s + (turn.left_in_queue_s or 0.0) for turn in self.turns))

    @property
    def jct_s(self) -> float:
        """On the client's clock, from the instant the first turn was due to the last answer: retries and a late load
        generator count. Without the client's record, on the scheduler's clock, from the first arrival."""
        first, last = self.turns[0].client, self.turns[-1].client
        if first is None or last is None or last.finish_s is None:
            return self.finish_s - self.arrive_s
        return max(t.client.finish_s for t in self.turns if t.client and t.client.finish_s is not None) - first.due_s

    @property
    def bubble_s(self) -> float | None:
        """Seconds that the program's turns waited in the queue, also after preemptions; None if a start is unknown."""
        waits = [turn.wait_s for turn in self.turns]
        recorded = [wait for wait in waits if wait is not None]
        return sum(recorded) + self.requeue_s if len(recorded) == len(waits) else None

    @property
    def requeue_s(self) -> float:
        return sum(turn.requeue_s for turn in self.turns)

    def gaps(self) -> Iterator[tuple[TurnTimes, float]]:
        """Yield each turn with the seconds from its finish to the next arrival, unless the two requests overlap."""
        for turn, after in pairwise(self.turns):
            if turn.finish_s is not None and after.arrive_s >= turn.finish_s:
                yield turn, after.arrive_s - turn.finish_s

    @property
    def worst_ttft_s(self) -> float | None:
        """The longest TTFT of the program's turns; None if the TTFT of a turn is unknown."""
        recorded = [ttft_s for turn in self.turns if (ttft_s := turn.ttft_s) is not None]
        return max(recorded) if self.turns and len(recorded) == len(self.turns) else None

    @property
    def alone_s(self) -> float | None:
        """The program's JCT on an empty engine: from the reference run, else from the virtual engine's records."""
        if self.reference_s is not None:
            return self.reference_s
        records = [turn.client for turn in self.turns]
        turns = [record.alone_s for record in records if record is not None and record.alone_s is not None]
        if not turns or len(turns) < len(records):
            return None
        gaps = (_gap_s(*pair) for pair in zip(records, [*records[1:], None], strict=True))
        return sum(turns) + sum(gap_s for gap_s in gaps if gap_s is not None)

    @property
    def slowdown(self) -> float | None:
        """JCT / JCT alone; of a program whose turn had no first token when the run ended, the time since it was due /
        what its turns up to this one take alone."""
        took_s = self.jct_s if self.finished else self._left_s
        return took_s / self.alone_s if took_s is not None and self.alone_s else None

    @property
    def _left_s(self) -> float | None:
        last = self.turns[-1] if self.turns else None
        if last is None or last.left_s is None or last.client is None or self.due_s is None:
            return None
        return last.client.due_s + last.left_s - self.due_s

    @property
    def due_s(self) -> float | None:
        """The instant at which the first turn was due, on the client's clock."""
        record = self.turns[0].client if self.turns else None
        return record.due_s if record else self.due_from_arrival_s

    @property
    def started_by(self) -> str | None:
        """Id of the program whose turn's end started this program; None: it arrived by itself."""
        record = self.turns[0].client if self.turns else None
        return record.started_by if record else self.started_by_arrival


def _gap_s(record: TurnRecord | None, following: TurnRecord | None) -> float | None:
    """Return the seconds between two turns of a program: as planned, or fewer if idle time was skipped."""
    if record is None or record.gap_s is None or record.finish_s is None or following is None:
        return None if record is None else record.gap_s
    passed_s = following.due_s - record.finish_s
    return passed_s if passed_s < record.gap_s - ROUNDING_S else record.gap_s


def pinned_tokens(programs: Iterable[ProgramTimes]) -> tuple[list[float], list[int]]:
    """Return the instants at which pins begin or end, in order, and the tokens in pins: before the first instant, then
    after each (one number more than there are instants)."""
    pins = [pin for program in programs for pin in program.pins]
    changes = [(pin.since_s, pin.tokens) for pin in pins]
    changes += [(pin.until_s, -pin.tokens) for pin in pins if pin.until_s is not None]
    changes.sort()
    return [t for t, _ in changes], list(accumulate((tokens for _, tokens in changes), initial=0))
