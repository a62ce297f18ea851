"""Turns played against the program table, one line each. A block of the pool holds one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continuum_server.policy.facts import (
    Hold,
    Machine,
    Orders,
    PrefillCurve,
    Step,
    Stored,
    ToolEvent,
    TurnFinish,
    TurnState,
)
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.programs import Prompt
from continuum_server.policy.registry import make_policy
from continuum_traces.schema import Tags
from continuum_traces.wire import TAG_NAMES

ENDLESS = Guards(max_ttl_s=1e9)
MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=100_000)
POOL = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=1000)
"""A small pool."""


class Driver:
    """A program table and a clock. What the scheduler does with blocks is done: holds are pinned, starts unpin."""

    def __init__(self, policy: str, machine: Machine = MACHINE, guards: Guards = ENDLESS, **options: object) -> None:
        self.policy: Any = make_policy(policy, options, machine)
        self.table = ProgramTable(self.policy, guards, machine.kv_tokens, block_tokens=1)
        self.now_s = 0.0

    def arrive(
        self,
        program_id: str,
        prompt: int | Sequence[str] = 100,
        last: bool = False,
        parent: str | None = None,
        key: str | None = None,
        **facts: Any,
    ) -> TurnState:
        """A request with so many prompt tokens, or with these blocks of 16 tokens; ``facts`` are of ``TurnState``, or
        tags."""
        tokens, blocks = (prompt, ()) if isinstance(prompt, int) else (16 * len(prompt), prompt)
        shown = Prompt(tokens, blocks) if blocks else Prompt()
        program = self.table.identity.program_for(program_id, self.now_s, parent, shown, key)
        sequence = self.table.identity.next_sequence()
        request_id = f"{key}/{program_id}/{sequence}"
        tags = Tags(is_last_step=last, **{name: facts.pop(name) for name in TAG_NAMES if name in facts})
        turn = TurnState(program, 0, request_id, self.now_s, tokens, sequence, tags, blocks=blocks or None, **facts)
        self.table.arrive(turn, self.now_s)
        return turn

    def start(self, turn: TurnState, hit_tokens: int = 0, **reloaded: Any) -> TurnState:
        self.table.start(turn, self.now_s, hit_tokens, 16, **reloaded)
        self.table.pins.end(turn.program.program_id)
        return turn

    def finish(
        self, turn: TurnState, tool: str | None = "ls", context: int = 1000, stored: Stored | None = None
    ) -> Hold | None:
        """The end of a turn; it starts now if it has not. What is held has blocks of its own."""
        if not turn.running:
            self.start(turn)
        blocks = range(turn.sequence * 10**6, turn.sequence * 10**6 + context)
        hold = self.table.finish(TurnFinish(turn, self.now_s, context, 10, tool, stored), lambda: blocks)
        if hold is not None:
            self.table.pins.add(turn, self.now_s, hold, blocks)
        return hold

    def turn(
        self, program_id: str, tool: str | None = "ls", gap_s: float = 0.0, context: int = 1000, **facts: Any
    ) -> float:
        """One turn of no length, then ``gap_s`` seconds; its TTL."""
        hold = self.finish(self.arrive(program_id, **facts), tool, context)
        self.now_s += gap_s
        return hold.ttl_s if hold is not None else 0.0

    def tell(self, program_id: str, seconds: float | None = None, p90_s: float | None = None) -> float | None:
        """A tool event. Return the seconds from the turn's end until when the program's KV is pinned then; None: it is
        not, or no longer."""
        (program,) = self.table.identity.programs.of(program_id)
        self.table.tool_event(program, ToolEvent(seconds, p90_s), self.now_s)
        pin = self.table.pins.firm(program)
        return None if pin is None or pin.deadline_s <= self.now_s else pin.deadline_s - pin.since_s

    def gaps(self, tool: str | None, *seconds: float) -> None:
        """Samples of a tool's time, from a program of their own."""
        name = f"sampler-{self.table.identity.next_sequence()}"
        for gap_s in seconds:
            self.turn(name, tool, gap_s)
        self.turn(name, last=True)

    def step(self, seconds: float = 0.0, batch_tokens: int = 0) -> Orders:
        """Time passes, holds that are over end, and the policy gives its orders."""
        self.now_s += seconds
        for pin in self.table.pins.expired(self.now_s):
            self.table.pins.end(pin.program.program_id)
        return self.table.step(Step(self.now_s, lambda: batch_tokens))

    def invited(self, seconds: float = 0.0) -> list[str]:
        """Programs whose requests the next step moves."""
        return [turn.program.program_id for turn in self.step(seconds).rank_again]

    def admitted(self, seconds: float = 0.0) -> list[str]:
        """Programs whose requests the next step lets in."""
        turns = self.step(seconds).rank_again
        assert not any(self.waits(*turns))
        return [turn.program.program_id for turn in turns]

    def waits(self, *turns: TurnState) -> list[bool]:
        """Whether the policy holds them back."""
        return [self.policy.rank(turn) is None for turn in turns]
