"""An engine of a page around the program table: blocks, a queue and a clock, in the order of v4, sections 4.3 and 5.2.

It keeps the account of blocks by itself, so that what the program table says can be held against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import Any

from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, Step, Stored, TurnFinish, TurnState
from continuum_server.policy.order import Class, Place
from continuum_server.policy.pins import Pin
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.recognise import Prompt
from continuum_server.policy.registry import make_policy
from continuum_server.policy.rules.bounds import Foreseeing, Future
from continuum_traces.schema import Tags

BLOCKS = 64
BLOCK_SIZE = 16
MACHINE = Machine(
    PrefillCurve(0.0, 1e-3, 0.01), BLOCKS * BLOCK_SIZE, block_size=BLOCK_SIZE, decode=DecodeLine(0.01, 1e-6)
)


class Foreseen(dict[str, Future]):
    """Some future, for bounds."""

    def __missing__(self, request_id: str) -> Future:
        seconds = float(len(request_id))
        return Future(seconds, seconds, seconds)


@dataclass(eq=False)
class Request:
    turn: TurnState
    chain: tuple[str, ...]
    """Its blocks, named: equal prefixes have equal names."""


@dataclass
class Engine:
    """One engine under one policy."""

    policy: str
    options: dict[str, object]
    guards: Guards
    machine: Machine = field(default_factory=lambda: MACHINE)
    now_s: float = 0.0
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    held: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By program: what its pin keeps."""
    started: list[tuple[float, TurnState]] = field(default_factory=list)
    """Turns that the last step started."""

    def __post_init__(self) -> None:
        made = make_policy(self.policy, self.options, self.machine)
        if isinstance(made, Foreseeing):
            made.oracle = Foreseen()
        self.table = ProgramTable(made, self.guards, self.machine.kv_tokens, BLOCK_SIZE)

    # --------------------------------------------------------------------------------- requests

    def arrive(
        self, name: str, chain: tuple[str, ...], parent: str | None = None, tagged: bool = True, **tags: Any
    ) -> Request:
        tokens = len(chain) * BLOCK_SIZE
        program = self.table.identity.program_for(name, self.now_s, parent, Prompt(tokens, chain))
        sequence = self.table.identity.next_sequence()
        facts = (program, 0, str(sequence), self.now_s, tokens, sequence, Tags(**tags))
        turn = TurnState(*facts, tagged=tagged, blocks=chain)
        self.table.arrive(turn, self.now_s)
        self.waiting.append(Request(turn, chain))
        return self.waiting[-1]

    def finish(self, request: Request, output: tuple[str, ...], tool: str | None) -> None:
        turn, chain = request.turn, request.chain + output
        self.running.remove(request)
        siblings = self.table.identity.programs.with_key(turn.program.id_key) if turn.tags.is_last_step else []
        self.unpin_program(turn.program.program_id)
        turn.blocks = chain
        tokens = len(chain) * BLOCK_SIZE
        stored = None if self.machine.swap_token_s is None else Stored(tokens, tokens // 2)
        hold = self.table.finish(TurnFinish(turn, self.now_s, tokens, 1, tool, stored), lambda: chain)
        if hold is not None:
            self.held[turn.program.program_id] = chain
            self.table.pins.add(turn, self.now_s, hold, chain)
        for program in siblings:
            self.unpin_program(program.program_id)
            self.table.end_program(program)

    def abort(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        self.table.abort(request.turn)
        self.unpin_program(request.turn.program.program_id)

    def preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting.append(request)
        self.table.preempt(request.turn, self.now_s)

    def release(self, name: str) -> None:
        for program in self.table.identity.programs.of(name):
            self.unpin_program(program.program_id)
            self.table.end_program(program)

    # ------------------------------------------------------------------------------------- steps

    def step(self, seconds: float) -> None:
        """Let time pass, then schedule: pins that end, what the policy orders, then the queue."""
        self.now_s += seconds
        self.started = []
        for pin in self.table.pins.expired(self.now_s):
            if not pin.soft and pin.soft_until_s > self.now_s:
                self.table.pins.soften(pin)
            else:
                self.unpin(pin)
        if self.table.policy.steps:
            batch = sum(len(request.chain) for request in self.running) * BLOCK_SIZE
            for program in self.table.step(Step(self.now_s, lambda: batch)).release:
                self.unpin_program(program.program_id)
        self.look()
        held_back = all(self._place(request) is None for request in self.waiting)
        self.table.overdue(self.now_s, idle=not self.running and held_back)
        while self.waiting:
            ready = {place: request for request in self.waiting if (place := self._place(request)) is not None}
            if not ready or not self._admit(ready[self.table.order.first(ready)]):
                return

    def look(self) -> None:
        """What else an engine asks."""
        policy, running = self.table.policy, [request.turn for request in self.running]
        for request in self.waiting:
            self.table.order.preempted_for(request.turn, running, self.now_s)
        next_event_s = self.table.next_deadline_s()
        assert next_event_s is None or not isnan(next_event_s)
        policy.state(), policy.tool_counts()
        policy.export_statistics()

    def _place(self, request: Request) -> Place | None:
        """Where it stands; None: held back."""
        place = self.table.order.place(request.turn)
        return None if place.kind is Class.HELD_BACK else place

    def _admit(self, request: Request) -> bool:
        """Into the batch, with room from pins where that is allowed."""
        if not self._fits(request):
            for pin in self.table.order.yielding(request.turn, must_free=not self.running):
                self.unpin(pin)
                if self._fits(request):
                    break
            else:
                return False
        in_memory = self.blocks()
        hit = next((index for index, block in enumerate(request.chain) if block not in in_memory), len(request.chain))
        self.waiting.remove(request)
        self.running.append(request)
        self.table.start(request.turn, self.now_s, hit * BLOCK_SIZE, BLOCK_SIZE)
        self.unpin_program(request.turn.program.program_id)
        self.started.append((self.now_s, request.turn))
        return True

    def _fits(self, request: Request) -> bool:
        return len(self.blocks() | set(request.chain)) <= BLOCKS

    # -------------------------------------------------------------------------------------- pins

    def blocks(self) -> set[str]:
        """Blocks that a request or a pin refers to."""
        chains = [*(request.chain for request in self.running), *self.held.values()]
        return {block for chain in chains for block in chain}

    def unpin(self, pin: Pin) -> None:
        self.table.pins.end(pin.program.program_id)
        del self.held[pin.program.program_id]

    def unpin_program(self, program_id: str) -> None:
        pin = self.table.pins.get(program_id)
        if pin is not None:
            self.unpin(pin)
