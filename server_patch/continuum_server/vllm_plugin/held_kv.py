"""KV held between turns: add and remove references to the blocks of finished requests.

``policy.program_table`` decides which KV is held, for how long, and for which requests it is released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continuum_traces.schema import SchedulerEvent, UnpinReason
from vllm.v1.request import Request

from continuum_server.policy.facts import ProgramState
from continuum_server.policy.program_table import Pin
from continuum_server.vllm_plugin import touch_points


class HeldKv:
    """The held blocks of a ``ProgramSchedulerMixin``."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.blocks: dict[str, touch_points.Blocks] = {}
        """Blocks to which the plugin has a reference, by ``ProgramState.program_id``."""

    def hold(self, program: ProgramState, blocks: touch_points.Blocks) -> None:
        """Hold the blocks of a request that is about to be freed."""
        touch_points.hold_blocks(self._scheduler, blocks)
        self.blocks[program.program_id] = blocks

    def forget(self, program: ProgramState) -> None:
        """Release the program's blocks without the program table, which may have failed."""
        touch_points.release_blocks(self._scheduler, self.blocks.pop(program.program_id, []))

    def forget_all(self) -> None:
        for blocks in self.blocks.values():
            touch_points.release_blocks(self._scheduler, blocks)
        self.blocks.clear()

    def release(self, pin: Pin, now_s: float, reason: UnpinReason) -> None:
        """End a pin: release its blocks, remove it from the program table, and record an event."""
        scheduler, program = self._scheduler, pin.program
        self.forget(program)
        scheduler.table.unpin(program.program_id)
        scheduler.tell(SchedulerEvent(now_s, "unpin", program.name, pin.turn_index, reason=reason, tokens=pin.tokens))
        if reason != "hit":
            scheduler.rank_again(program.in_engine)

    def release_program(self, program: ProgramState, now_s: float, reason: UnpinReason) -> None:
        """End the program's pin, if it has one."""
        pin = self._scheduler.table.pins.get(program.program_id)
        if pin is not None:
            self.release(pin, now_s, reason)

    def release_expired(self, now_s: float) -> None:
        """End the pins that are past their deadline."""
        if self.blocks:
            for pin in self._scheduler.table.expired(now_s):
                self.release(pin, now_s, "expired")

    # ------------------------------------------------------------------------------- room for requests

    def making_room(self, allocate: touch_points.AllocateSlots) -> touch_points.AllocateSlots:
        """Wrap ``allocate_slots``: if there is no room, pins are released and it is called again."""
        scheduler, run = self._scheduler, self._scheduler.wall.run

        def allocate_or_release(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is None and self.blocks:
                victims = run("choice of pins to release", None, self._victims, request, kwargs)
                for pin in victims or ():
                    run("release of a pin", None, self.release, pin, scheduler.clock(), "pressure")
                    blocks = allocate(request, *args, **kwargs)
                    if blocks is not None:
                        break
            if blocks is None and scheduler.preemption is not None:
                run("choice of a preemption", None, scheduler.preemption.refused, request, kwargs)
            return blocks

        return allocate_or_release

    def _victims(self, request: Request, arguments: dict[str, Any]) -> Sequence[Pin]:
        """Return the pins to release one by one until the request fits; none if it would not fit without any pin.

        Pins must be released if vLLM would otherwise preempt this running request, or if no request runs.
        """
        scheduler, table = self._scheduler, self._scheduler.table
        turn = table.turn(request.request_id)
        must = touch_points.is_running(request) or not (scheduler.running or touch_points.loads_in_flight(scheduler))
        if turn is None:  # the policy does not know this request: pins are released only if they must be
            return list(table.pins.values()) if must else ()
        victims = list(table.victims(turn, must))
        return victims if must or self._would_fit(request, arguments, victims) else ()

    def _would_fit(self, request: Request, arguments: dict[str, Any], victims: Sequence[Pin]) -> bool:
        gain = touch_points.held_by_these_alone([self.blocks[pin.program.program_id] for pin in victims])
        wanted = touch_points.blocks_wanted(self._scheduler, request, arguments)
        return gain > 0 and touch_points.free_block_count(self._scheduler) + gain >= wanted
