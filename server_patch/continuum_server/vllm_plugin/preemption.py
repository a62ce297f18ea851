"""Preempt running requests for a waiting request with a better rank, or of an API key that has less than its share.

vLLM's scan of the waiting queue cannot be interrupted. So if the first waiting request does not fit in a step, requests
are preempted before the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.request import Request

from continuum_server.policy.facts import TurnState
from continuum_server.vllm_plugin import kv_groups, touch_points

if TYPE_CHECKING:
    from continuum_server.vllm_plugin.scheduler import ProgramSchedulerMixin


class Preemption:
    """Carries out ``Order.preempted_for``."""

    def __init__(self, scheduler: ProgramSchedulerMixin) -> None:
        self._scheduler = scheduler
        self._refused: tuple[Request, dict[str, Any]] | None = None
        """The waiting request that did not fit in this step, and the arguments of ``allocate_slots``."""
        self._chosen: list[Request] = []
        self._wanted = 0
        """Number of free blocks that the waiting request needs."""

    def refused(self, request: Request, arguments: dict[str, Any]) -> None:
        """Note that ``allocate_slots`` found no room for the first waiting request."""
        if not touch_points.is_running(request):
            self._refused = request, arguments

    def plan(self, now_s: float) -> None:
        """Choose the requests to preempt after a step in which the first waiting request did not fit."""
        scheduler, refused = self._scheduler, self._refused
        self._refused = None
        full = touch_points.batch_is_full(scheduler)
        if not (refused or full) or not scheduler.waiting:
            return
        scheduler.table.tenants.came_first()
        asker = scheduler.table.turn(scheduler.waiting.peek_request().request_id)
        if asker is None or (refused is not None and refused[0].request_id != asker.request_id):
            return
        turns = (scheduler.table.turn(request.request_id) for request in scheduler.running)
        victims = scheduler.table.order.preempted_for(asker, (turn for turn in turns if turn is not None), now_s)
        if victims:
            self._wanted = kv_groups.blocks_wanted(scheduler, *refused) if refused is not None else 0
            self._chosen = self._enough(victims)
        if self._chosen:
            scheduler.table.act_soon(always=True)

    def _enough(self, victims: Sequence[TurnState]) -> list[Request]:
        """Return the first victims that together make enough room; none if all of them do not."""
        free, chosen = touch_points.free_block_count(self._scheduler), list[Request]()
        for turn in victims:
            request = self._scheduler.requests[turn.request_id]
            chosen.append(request)
            free += touch_points.exclusively_held(touch_points.blocks_of(self._scheduler, request))
            if free >= self._wanted:
                return chosen
        return []

    def carry_out(self, now_s: float) -> None:
        """Preempt the chosen requests before a step, unless other requests finished and left enough room."""
        chosen, self._chosen = self._chosen, []
        if not chosen:
            return
        scheduler = self._scheduler
        room = touch_points.free_block_count(scheduler) >= self._wanted
        if room and not touch_points.batch_is_full(scheduler):
            return
        for request in chosen:
            if touch_points.is_running(request):
                scheduler.preempted(request.request_id, now_s)  # first, because its new rank depends on this service
                touch_points.preempt(scheduler, request, now_s)
