"""KV held between turns: add and remove references to the blocks of finished requests.

``policy.program_table`` decides which KV is held, for how long, and for which requests it is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from continuum_traces.schema import SchedulerEvent, UnpinReason
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.pins import Pin
from continuum_server.policy.program_table import ProgramTable
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_server.vllm_plugin.kv_groups import CheckpointGuard
from continuum_server.vllm_plugin.wall import Wall


class HeldKv:
    """The held blocks of one engine.

    Args:
        engine: owns the blocks.
        table: returns the program table that is in use. After a failure it is a new one.
        tell: records an event.
        place_again: moves waiting turns whose place changed.
        guard: what is kept of running requests.
    """

    def __init__(
        self,
        engine: Scheduler,
        table: Callable[[], ProgramTable],
        tell: Callable[[SchedulerEvent], None],
        place_again: Callable[[Iterable[TurnState]], None],
        guard: CheckpointGuard,
    ) -> None:
        self._engine, self._table, self._tell, self._place_again = engine, table, tell, place_again
        self._guard = guard
        self.blocks: dict[str, touch_points.Blocks] = {}
        """Blocks to which the plugin has a reference, by ``ProgramState.program_id``."""

    def hold(self, program: ProgramState, blocks: touch_points.Blocks) -> None:
        """Hold the blocks of a request that is about to be freed."""
        touch_points.hold_blocks(self._engine, blocks)
        self.blocks[program.program_id] = blocks

    def forget(self, program: ProgramState) -> None:
        """Release the program's blocks without the program table, which may have failed."""
        touch_points.release_blocks(self._engine, self.blocks.pop(program.program_id, []))

    def forget_all(self) -> None:
        for blocks in self.blocks.values():
            touch_points.release_blocks(self._engine, blocks)
        self.blocks.clear()

    @property
    def soft_blocks(self) -> int:
        """Blocks that one soft pin keeps and nobody else."""
        return sum(
            touch_points.exclusively_held(self.blocks.get(pin.program.program_id, ()))
            for pin in self._table().pins.soft
        )

    def release(self, pin: Pin, now_s: float, reason: UnpinReason) -> None:
        """End a pin: release its blocks, and remove it from the program table."""
        self.forget(pin.program)
        pins, was_firm = self._table().pins, not pin.soft
        try:
            pins.end(pin.program.program_id)
        finally:  # the record says what the table says, even after a failure
            if was_firm and pins.get(pin.program.program_id) is not pin:
                self._note_end(pin, now_s, reason)

    def _note_end(self, pin: Pin, now_s: float, reason: UnpinReason) -> None:
        """Record that a firm pin ended. Without it, its program's next turn has another place."""
        program = pin.program
        event = SchedulerEvent(now_s, "unpin", program.name, pin.turn_index, reason=reason, tokens=pin.kept_tokens)
        self._tell(event)
        if reason not in ("hit", "gone") and program.turn is not None:
            self._place_again([program.turn])

    def release_program(self, program: ProgramState, now_s: float, reason: UnpinReason) -> None:
        """End the program's pin, if it has one."""
        pin = self._table().pins.get(program.program_id)
        if pin is not None:
            self.release(pin, now_s, reason)

    def release_expired(self, now_s: float) -> None:
        """End soft pins that keep more blocks than are free, then pins that are past their deadline.

        In this order, because at the end of a stretch of the virtual engine the last step is before the deadline.
        """
        table = self._table()
        while table.pins.soft_tokens > touch_points.free_block_count(self._engine) * table.block_tokens:
            self.release(table.pins.soft[0], now_s, "pressure")
        for pin in table.pins.expired(now_s) if self.blocks else ():
            self.expire(pin, now_s)

    def expire(self, pin: Pin, now_s: float) -> None:
        """End a pin, because its time is over. A firm one may continue as a soft one."""
        if pin.soft or pin.soft_until_s <= now_s:
            self.release(pin, now_s, "expired")
            return
        self._table().pins.soften(pin)
        self._note_end(pin, now_s, "expired")

    # ------------------------------------------------------------------------------- room for requests

    def making_room(
        self,
        allocate: touch_points.AllocateSlots,
        wall: Wall,
        clock: Callable[[], float],
        refused: Callable[[Request, dict[str, Any]], None],
    ) -> touch_points.AllocateSlots:
        """Wrap ``allocate_slots``: if there is no room, held KV is released and it is called again.

        Args:
            refused: called with the request and the arguments if there is still no room.
        """
        run = wall.run

        def allocate_or_release(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is not None:
                return blocks
            found = run("choice of KV to release", None, self._yielding, request, kwargs) if self.blocks else ()
            for pins in found or ():
                for pin in pins:
                    run("release of KV", None, self.release, pin, clock(), "pressure")
                blocks = allocate(request, *args, **kwargs)
                if blocks is not None:
                    return blocks
            while blocks is None and touch_points.is_running(request) and self._guard.give_up():
                blocks = allocate(request, *args, **kwargs)
            if blocks is None:
                run("choice of a preemption", None, refused, request, kwargs)
            return blocks

        return allocate_or_release

    def _yielding(self, request: Request, arguments: dict[str, Any]) -> Iterable[Sequence[Pin]]:
        """Return the pins to release, group by group, until the request fits.

        If pins must be released, because vLLM would otherwise preempt this running request or because no request runs,
        they are released one by one. Otherwise just enough are released together, or none if all are too few.
        """
        engine, table = self._engine, self._table()
        turn = table.turn(request.request_id)
        must = touch_points.is_running(request) or not (engine.running or touch_points.loads_in_flight(engine))
        if turn is None:  # the policy does not know this request: firm pins are released only if they must be
            return [[pin] for pin in (table.pins.values() if must else table.pins.soft)]
        victims = table.order.yielding(turn, must)
        if must or not victims:
            return [[pin] for pin in victims]
        wanted = kv_groups.blocks_wanted(engine, request, arguments)
        missing = wanted - touch_points.free_block_count(engine)
        enough = touch_points.holds_that_free([self.blocks[pin.program.program_id] for pin in victims], missing)
        return [victims[:enough], *([pin] for pin in victims[enough:])] if enough else ()
