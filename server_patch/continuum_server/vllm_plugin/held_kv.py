"""KV held between turns: add and remove references to the blocks of finished requests.

``policy.program_table`` decides which KV is held, for how long, and for which requests it is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
        table: decides what is held. After a failure the plugin sets another one.
        tell: records an event.
        rank_again: reorders waiting turns whose class changed.
        guard: what is kept of running requests.
    """

    def __init__(
        self,
        engine: Scheduler,
        table: ProgramTable,
        tell: Callable[[SchedulerEvent], None],
        rank_again: Callable[[Iterable[TurnState]], None],
        guard: CheckpointGuard,
    ) -> None:
        self.table = table
        self._engine, self._tell, self._rank_again = engine, tell, rank_again
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

    def release(self, pin: Pin, now_s: float, reason: UnpinReason) -> None:
        """End a pin or a soft hold: release its blocks, and remove it from the program table."""
        self.forget(pin.program)
        self._unpin(pin, now_s, reason)

    def _unpin(self, pin: Pin, now_s: float, reason: UnpinReason) -> bool:
        """End a pin or a soft hold in the program table. If it was a pin, record it and return True."""
        program, pins = pin.program, self.table.pins
        was_pinned = program.program_id in pins
        try:
            pins.end(program.program_id)
        finally:  # the record says what the table says, even after a failure
            ended = was_pinned and program.program_id not in pins
            if ended:
                event = SchedulerEvent(now_s, "unpin", program.name, pin.turn_index, reason=reason)
                self._tell(replace(event, tokens=pin.kept_tokens))
        if ended and reason not in ("hit", "gone") and program.turn is not None:
            self._rank_again([program.turn])
        return ended

    def release_program(self, program: ProgramState, now_s: float, reason: UnpinReason) -> None:
        """End the program's pin or soft hold, if it has one."""
        pins, program_id = self.table.pins, program.program_id
        pin = pins.get(program_id) or pins.soft.get(program_id)
        if pin is not None:
            self.release(pin, now_s, reason)

    def release_expired(self, now_s: float) -> None:
        """End soft holds that keep more blocks than are free, then pins and soft holds that are past their deadline.

        In this order, because at the end of a stretch of the virtual engine the last step is before the deadline.
        """
        table = self.table
        while table.pins.soft_tokens > touch_points.free_block_count(self._engine) * table.block_size:
            self.release(next(iter(table.pins.soft.values())), now_s, "pressure")
        for pin in table.pins.expired(now_s) if self.blocks else ():
            self.expire(pin, now_s)

    def expire(self, pin: Pin, now_s: float) -> None:
        """End a pin or a soft hold, because its time is over. A pin may continue as a soft hold."""
        if pin.soft_until_s > now_s and self._unpin(pin, now_s, "expired"):
            self.table.pins.soften(pin)
        else:
            self.release(pin, now_s, "expired")

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
            for choose in (self._soft, self._victims):
                if blocks is not None or not self.blocks:
                    break
                for pins in run("choice of KV to release", None, choose, request, kwargs) or ():
                    for pin in pins:
                        run("release of KV", None, self.release, pin, clock(), "pressure")
                    blocks = allocate(request, *args, **kwargs)
                    if blocks is not None:
                        break
            while blocks is None and touch_points.is_running(request) and self._guard.give_up():
                blocks = allocate(request, *args, **kwargs)
            if blocks is None:
                run("choice of a preemption", None, refused, request, kwargs)
            return blocks

        return allocate_or_release

    def _soft(self, request: Request, arguments: dict[str, Any]) -> Iterable[Sequence[Pin]]:
        """Return the soft holds, to be released one by one until the request fits."""
        return ([pin] for pin in [*self.table.pins.soft.values()])

    def _victims(self, request: Request, arguments: dict[str, Any]) -> Iterable[Sequence[Pin]]:
        """Return the pins to release, group by group, until the request fits.

        If pins must be released, because vLLM would otherwise preempt this running request or because no request runs,
        they are released one by one. Otherwise just enough are released together, or none if all are too few.
        """
        engine, table = self._engine, self.table
        turn = table.turn(request.request_id)
        must = touch_points.is_running(request) or not (engine.running or touch_points.loads_in_flight(engine))
        if turn is None:  # the policy does not know this request: pins are released only if they must be
            return [[pin] for pin in table.pins.values()] if must else ()
        victims = table.victims(turn, must)
        if must or not victims:
            return [[pin] for pin in victims]
        wanted = kv_groups.blocks_wanted(engine, request, arguments)
        missing = wanted - touch_points.free_block_count(engine)
        enough = touch_points.holds_that_free([self.blocks[pin.program.program_id] for pin in victims], missing)
        return [victims[:enough], *([pin] for pin in victims[enough:])] if enough else ()
