"""Preempts running requests for a waiting one that outranks them.

vLLM's scan of the waiting queue cannot be interrupted. So where the first waiting request does not fit in one step,
room is made for it before the next step.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.request import Request

from continuum_server.policy.facts import TurnState
from continuum_server.vllm_plugin import touch_points


class Preemption:
    """Carries out a policy's ``preemption_victims`` for a ``ProgramSchedulerMixin``."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._refused: tuple[str, int] | None = None
        """The waiting request that did not fit in this step, and the number of free blocks it needs."""
        self._chosen: list[Request] = []
        self._wanted = 0

    def refused(self, request: Request, arguments: dict[str, Any]) -> None:
        """``allocate_slots`` found no room for the first waiting request."""
        if not touch_points.is_running(request):
            self._refused = request.request_id, touch_points.blocks_wanted(self._scheduler, request, arguments)

    def plan(self, now_s: float) -> None:
        """After a step: choose which requests to preempt, if the first waiting request did not fit."""
        scheduler, refused = self._scheduler, self._refused
        self._refused = None
        full = touch_points.batch_is_full(scheduler)
        if not (refused or full) or not scheduler.waiting:
            return
        asker = scheduler.table.turn(scheduler.waiting.peek_request().request_id)
        if asker is None or (refused is not None and refused[0] != asker.request_id):
            return
        turns = [scheduler.table.turn(request.request_id) for request in scheduler.running]
        victims = scheduler.table.policy.preemption_victims(asker, [turn for turn in turns if turn is not None], now_s)
        self._wanted = refused[1] if refused is not None else 0
        self._chosen = self._enough(victims, full)
        if self._chosen:
            scheduler.table.act_soon()

    def _enough(self, victims: Any, full: bool) -> list[Request]:
        """As many of the victims, from the first on, as make room; none if all together do not."""
        turns: list[TurnState] = list(victims)
        free, chosen = touch_points.free_block_count(self._scheduler), list[Request]()
        for turn in turns:
            request = self._scheduler.requests[turn.request_id]
            chosen.append(request)
            free += touch_points.exclusively_held(touch_points.blocks_of(self._scheduler, request))
            if free >= self._wanted:
                return chosen
        return []

    def carry_out(self, now_s: float) -> None:
        """Before the next step: preempt the chosen requests, unless others finished and left enough room."""
        chosen, self._chosen = self._chosen, []
        if not chosen:
            return
        scheduler = self._scheduler
        room = touch_points.free_block_count(scheduler) >= self._wanted
        if room and not touch_points.batch_is_full(scheduler):
            return
        for request in chosen:
            if touch_points.is_running(request):
                scheduler.preempted(request.request_id, now_s)  # first: its new rank counts the service it got
                touch_points.preempt(scheduler, request, now_s)
