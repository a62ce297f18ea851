"""Turns played against the program table, one line each."""

from __future__ import annotations

from typing import Any

from continuum_server.policy.facts import Hold, Machine, PrefillCurve, TurnState
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.registry import make_policy

ENDLESS = Guards(max_ttl_s=1e9)
MACHINE = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=100_000)


class Driver:
    """A program table and a clock: ``gap`` plays one turn and lets a tool run after it."""

    def __init__(self, policy: str, machine: Machine = MACHINE, guards: Guards = ENDLESS, **options: object) -> None:
        self.table = ProgramTable(make_policy(policy, options, machine), guards, machine.kv_tokens)
        self.now_s = 0.0

    def arrive(
        self,
        program_id: str,
        last: bool = False,
        prompt: int = 100,
        parent: str | None = None,
        turn_id: str | None = None,
        **hints: Any,
    ) -> TurnState:
        program = self.table.program_for(program_id, self.now_s, parent)
        sequence = self.table.next_sequence()
        request_id = f"{program_id}/{sequence}"
        turn = TurnState(program, 0, request_id, self.now_s, prompt, sequence, is_last=last, turn_id=turn_id, **hints)
        self.table.arrive(turn, self.now_s)
        return turn

    def start(self, turn: TurnState, hit_tokens: int = 0) -> TurnState:
        self.table.start(turn, self.now_s, hit_tokens, 16)
        return turn

    def finish(self, turn: TurnState, tool: str | None = "ls", context: int = 1000) -> Hold | None:
        return self.table.finish(turn, self.now_s, context, 10, tool)

    def turn(self, program_id: str, tool: str | None = "ls", gap_s: float = 0.0, last: bool = False) -> float:
        """One turn of no length, then ``gap_s`` seconds; its TTL."""
        hold = self.finish(self.start(self.arrive(program_id, last)), tool)
        self.now_s += gap_s
        return hold.ttl_s if hold is not None else 0.0

    def gaps(self, tool: str | None, *seconds: float) -> None:
        """Samples of a tool's time, from a program of their own."""
        name = f"sampler-{self.table.next_sequence()}"
        for gap_s in seconds:
            self.turn(name, tool, gap_s)
        self.turn(name, last=True)
