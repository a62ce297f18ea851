"""Recorded events put in order: programs, their turns, their pins. Reads files only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from continuum_traces.run_dir import EVENTS, PREVIEW_EVENTS, TURNS, read_events, read_turns
from continuum_traces.scheduler_timestamps import read_preview
from continuum_traces.schema import SchedulerEvent, TurnRecord


class AnalysisError(Exception):
    """Files that cannot be analysed or compared; the message says which and why."""


@dataclass(slots=True)
class TurnTimes:
    """One turn as the scheduler saw it. Seconds on its clock; None: not recorded."""

    index: int
    arrive_s: float
    start_s: float | None = None
    finish_s: float | None = None
    prompt_tokens: int = 0
    hit_tokens: int = 0
    output_tokens: int = 0
    tool: str | None = None
    requeue_s: float = 0.0
    """Waiting again after being preempted."""
    preemptions: int = 0
    preempted_at_s: float | None = None
    first_token_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Arrival to first scheduled."""
        return 0.0 if self.start_s is None else self.start_s - self.arrive_s


@dataclass(slots=True)
class PinTimes:
    """One hold of a finished turn's KV."""

    turn: int
    since_s: float
    ttl_s: float | None
    tokens: int = 0
    until_s: float | None = None
    reason: str = "held at the end"
    delay_estimate_s: float | None = None
    eta: float | None = None


@dataclass(slots=True)
class ProgramTimes:
    program_id: str
    turns: list[TurnTimes] = field(default_factory=list)
    pins: list[PinTimes] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.turns) and all(turn.finish_s is not None for turn in self.turns)

    @property
    def arrive_s(self) -> float:
        return self.turns[0].arrive_s

    @property
    def finish_s(self) -> float:
        return max(turn.finish_s or turn.arrive_s for turn in self.turns)

    @property
    def jct_s(self) -> float:
        return self.finish_s - self.arrive_s

    @property
    def bubble_s(self) -> float:
        return sum(turn.wait_s + turn.requeue_s for turn in self.turns)


def read_run(path: Path) -> list[ProgramTimes]:
    """Programs of a run directory in order of arrival: native records, or the preview's own file.

    Raises:
        AnalysisError: no records there.
    """
    if (path / EVENTS).exists():
        programs = order_events(read_events(path))
        if (path / TURNS).exists():
            add_first_tokens(programs, read_turns(path))
        return programs
    for candidate in (path, path / PREVIEW_EVENTS):
        if candidate.is_file():
            return order_events(read_preview(candidate))
    raise AnalysisError(f"{path}: holds neither {EVENTS} nor {PREVIEW_EVENTS}")


def order_events(events: Iterable[SchedulerEvent]) -> list[ProgramTimes]:
    """Programs in order of arrival. Events of different programs may come in any order."""
    programs: dict[str, ProgramTimes] = {}
    for event in events:
        program = programs.setdefault(event.program_id, ProgramTimes(event.program_id))
        _apply(program, event)
    return sorted((p for p in programs.values() if p.turns), key=lambda p: p.arrive_s)


def _apply(program: ProgramTimes, event: SchedulerEvent) -> None:
    if event.event == "arrive":
        program.turns.append(TurnTimes(event.turn, event.t, prompt_tokens=event.prompt_tokens or 0))
    elif event.event == "pin":
        pin = PinTimes(event.turn, event.t, event.ttl_s, event.tokens or 0)
        pin.delay_estimate_s, pin.eta = event.delay_estimate_s, event.eta
        program.pins.append(pin)
    elif event.event == "unpin":
        held = [pin for pin in program.pins if pin.until_s is None]
        if held:
            held[0].until_s, held[0].reason = event.t, event.reason or "unknown"
    else:
        turn = next((t for t in reversed(program.turns) if t.index == event.turn), None)
        if turn is not None:
            _apply_to_turn(turn, event)


def _apply_to_turn(turn: TurnTimes, event: SchedulerEvent) -> None:
    if event.event == "start":
        turn.start_s, turn.hit_tokens = event.t, event.hit_tokens or 0
        turn.prompt_tokens = event.prompt_tokens or turn.prompt_tokens
    elif event.event == "finish":
        turn.finish_s, turn.tool = event.t, event.tool
        turn.output_tokens = event.output_tokens or 0
    elif event.event == "preempt":
        turn.preempted_at_s = event.t
        turn.preemptions += 1
    elif event.event == "resume" and turn.preempted_at_s is not None:
        turn.requeue_s += event.t - turn.preempted_at_s
        turn.preempted_at_s = None


def add_first_tokens(programs: list[ProgramTimes], records: Iterable[TurnRecord]) -> None:
    """First-token instants from the client's records, which share the scheduler's clock in virtual runs."""
    by_key = {(p.program_id, t.index): t for p in programs for t in p.turns}
    for record in records:
        turn = by_key.get((record.program_id, record.turn))
        if turn is not None:
            turn.first_token_s = record.first_token_s
