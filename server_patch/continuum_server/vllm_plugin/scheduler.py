"""The plugin: vLLM's scheduler with a policy beside it. ``--scheduler-cls continuum_server.vllm_plugin.scheduler.make``

vLLM's scheduler does all the work. This subclass extends five of its methods. There it reports to the program table
(``policy.program_table``) when a request arrives, starts or ends, and carries out the table's decisions: to hold
blocks, or to release them. What a hold must keep so that a next turn finds it is decided in ``kv_groups``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from continuum_traces.schema import SchedulerEvent, UnpinReason
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from continuum_server.policy.facts import NOTES, Machine, Step, Stored, ToolEvent, TurnFinish, TurnState
from continuum_server.policy.order import Place
from continuum_server.policy.program_table import ProgramTable
from continuum_server.policy.registry import ONLY_IN_REPLAYS, make_policy
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_server.vllm_plugin.held_kv import HeldKv
from continuum_server.vllm_plugin.loads import Loads
from continuum_server.vllm_plugin.plugin_settings import read_settings
from continuum_server.vllm_plugin.preemption import Preemption
from continuum_server.vllm_plugin.queue import PlacedQueue
from continuum_server.vllm_plugin.statistics_files import load_statistics
from continuum_server.vllm_plugin.turns import TagReader, make_turn
from continuum_server.vllm_plugin.versions import PluginError, check_version
from continuum_server.vllm_plugin.wall import Wall

if TYPE_CHECKING:
    from continuum_server.vllm_plugin.online import Online

logger = logging.getLogger("continuum")

Clock = Callable[[], float]
OutputReader = Callable[[Request], str | None]


class BoundRefused(PluginError):
    """A server was configured with a policy that knows the future."""


class EventSink(Protocol):
    """Receives the scheduler's events."""

    def write(self, event: SchedulerEvent, /) -> None:
        """Take an event. Must not raise an exception."""
        ...


class Discard:
    """A sink that drops all events."""

    def write(self, event: SchedulerEvent, /) -> None:
        return


def _nothing(request: Request) -> str | None:
    return None


class ProgramSchedulerMixin(Scheduler):
    """The plugin's extension of ``Scheduler`` and ``AsyncScheduler``."""

    knows_future: ClassVar[bool] = False
    """True only in the virtual engine, which has the trace. There an exception in a policy ends the run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settings = read_settings(self.vllm_config.additional_config)
        touch_points.refuse_what_cannot_work(self, self._settings.policy)
        self.loads = Loads(self, self._settings.swap_token_s)
        self.table = self._new_table()
        policy = self.table.policy
        load_statistics(policy)
        if policy.label == "bound" and not self.knows_future:
            raise BoundRefused(f"policy {policy.name!r} {ONLY_IN_REPLAYS}")
        self.wall = Wall(self._give_up, self._start_over, catches=not self.knows_future)
        self.attach(time.monotonic, Discard())  # noqa: TID251 - the default of an injected clock
        self.online: Online | None = None
        """``Online`` on a live server; None in the virtual engine."""
        self.tags = TagReader()
        self.guard = kv_groups.CheckpointGuard(self, policy.guards_checkpoints)
        self.held = HeldKv(self, lambda: self.table, self.tell, self.place_again, self.guard)
        self.turns_not_findable = 0
        """Turns that the policy would have held, but of which a next turn would have found nothing."""
        self._turn_of: dict[str, TurnState] = {}
        """The turn of each request, by request id. Kept outside the program table, which may fail."""
        self._open: set[str] = set()
        """The requests with an ``arrive`` event and no ``finish`` event."""
        self._order_is_void = False
        """The places in the queue come from a policy that was replaced after a failure."""
        self._placed: PlacedQueue | None = None
        """The waiting queue in the order of places; None: vLLM's own queue."""
        self._least_priority = touch_points.least_priority(self)
        """The most urgent priority that a client may have."""
        if not policy.stock_order:
            self._place_queue()
        self.preemption = Preemption(self) if policy.preempts else None
        """None: no running request is preempted, because all have the same API key and the policy preempts none."""
        touch_points.wrap_allocate_slots(
            self, lambda allocate: self.held.making_room(allocate, self.wall, lambda: self.clock(), self._refused)
        )
        touch_points.watch_connector(
            self, self.loads.allocated, lambda output: self.wall.attempt("report of loads", self._loaded, output)
        )

    def _new_table(self) -> ProgramTable:
        settings, kv_tokens = self._settings, kv_groups.kv_tokens(self)
        machine = Machine(
            settings.prefill,
            kv_tokens,
            self.max_num_scheduled_tokens,
            self.loads.token_s,
            settings.deep_token_s,
            settings.decode,
            block_size=touch_points.hash_block_size(self),
            footprint=kv_groups.footprint(self),
        )
        if machine.prefill is not settings.prefill:
            logger.warning(
                "continuum: no profile (continuum-bench profile): prefill times of %s are assumed",
                machine.prefill.source,
            )
        policy = make_policy(settings.policy, settings.policy_options, machine)
        return ProgramTable(
            policy,
            settings.guards,
            kv_tokens,
            kv_groups.block_tokens(self),
            context_tokens=lambda turn: self.requests[turn.request_id].num_tokens,
            seats=self.max_num_running_reqs,
        )

    def _share(self) -> None:
        """Let two or more API keys share the engine."""
        if self._placed is None:
            self._place_queue()
        if self.preemption is None:
            self.preemption = Preemption(self)

    def _place_queue(self) -> None:
        """Replace vLLM's own queue. Under policies that keep its order, this happens once two API keys compete."""
        self._placed = PlacedQueue(
            self._place_of, lambda places: self.table.order.first(places), lambda: self.table.order.changes
        )
        for request in self.waiting:
            self._placed.add_request(request)
        self.waiting = self._placed
        touch_points.preempt_the_last(self)

    def attach(
        self, clock: Clock, sink: EventSink, output_tool: OutputReader = _nothing, stop_string: OutputReader = _nothing
    ) -> None:
        """Use these from now on.

        Args:
            output_tool: returns the key of the tool that a finished request calls.
            stop_string: returns the stop string that ended a request.
        """
        self.clock, self.sink, self.output_tool, self.stop_string = clock, sink, output_tool, stop_string

    # ------------------------------------------------------------------------- around vLLM's methods

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self.wall.run("arrival of a request", request.request_id, self._arrived, request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        now_s = self.clock()
        self.wall.run("what comes before a step", None, self._before_step, now_s)
        if self._order_is_void and self._placed is not None:
            self._placed.in_order_of_arrival()
        self._order_is_void = False
        limit = self.wall.run("size of a step", None, self._step_tokens) or self.max_num_scheduled_tokens
        with touch_points.tokens_of_step(self, limit):
            output = super().schedule(*args, **kwargs)
        self.wall.run("what comes after a step", None, self._after_step, output, now_s)
        return output

    def _step_tokens(self) -> int:
        """Return the largest number of tokens of the next step."""
        limit, tenants = self.max_num_scheduled_tokens, self.table.tenants
        if not (tenants.several and touch_points.cuts_prompts(self)):
            return limit
        return tenants.step_tokens(
            limit,
            lambda: touch_points.decode_tokens(self),
            lambda turn: touch_points.decodes(self.requests[turn.request_id]),
        )

    def _after_step(self, output: SchedulerOutput, now_s: float) -> None:
        run = self.wall.run
        for request_id in touch_points.preempted_ids(output):
            run("preemption of a request", request_id, self.preempted, request_id, now_s)
        # loads before starts, because since vLLM 0.33 a load may end in the step in which it began
        for request_id, tokens in self.loads.begun():
            run("load of a request", request_id, self._reloads, request_id, tokens, now_s)
        for request_id, hit_tokens in touch_points.first_scheduled(output):
            run("start of a request", request_id, self._started, request_id, hit_tokens, now_s)
        self.wall.attempt("guard of checkpoints", self.guard.after_step, output)
        if self.preemption is not None:
            self.preemption.plan(now_s)

    def _refused(self, request: Request, arguments: dict[str, Any]) -> None:
        """Note that no room was found for a request."""
        if self.preemption is not None:
            self.preemption.refused(request, arguments)

    def _before_step(self, now_s: float) -> None:
        self.held.release_expired(now_s)
        if self.table.policy.steps:
            self._obey(now_s)
        idle = self._placed is not None and not (self.running or self._placed or touch_points.loads_in_flight(self))
        self.place_again(self.table.overdue(now_s, idle))
        if self.preemption is not None:
            self.preemption.carry_out(now_s)
        if self._placed is not None and self._may_preempt():
            self.running.sort(
                key=lambda request: self.table.order.place_of_running(self._turn_of.get(request.request_id))
            )

    def _may_preempt(self) -> bool:
        """Whether memory is so short that vLLM may preempt running requests in the next step, the last in its list."""
        wanted = len(self.running) + self.max_num_scheduled_tokens / self.table.block_tokens
        return touch_points.free_block_count(self) + self.table.pins.block_count < wanted

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.wall.run("end of a request", request.request_id, self._finished, request)
        self._turn_of.pop(request.request_id, None)
        self.wall.attempt("guard of checkpoints", self.guard.release, request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        if self.online is not None:
            self.wall.attempt("shutdown", self.online.close)
        super().shutdown()

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self.wall.run("reset of the prefix cache", None, self.release_all, "shutdown")
        self.wall.attempt("guard of checkpoints", self.guard.release_all)
        return super().reset_prefix_cache(*args, **kwargs)

    # -------------------------------------------------------------------------------- after a failure

    def _give_up(self, request_id: str | None) -> None:
        """Recover from a failure: release the program's KV, and let vLLM schedule the request without the policy.

        If the failure concerns no single request (None), the policy's state is unknown, and everything starts over.
        """
        if request_id is None:
            self._start_over()
            return
        self.loads.end(request_id, self.clock())
        turn = self._turn_of.get(request_id)
        if turn is None:
            return
        self._end_in_record(turn)
        self.held.release_program(turn.program, self.clock(), "abort")
        self.held.forget(turn.program)  # if the failure came before its pin was noted
        self.table.drop(turn)
        self.place_again([turn])

    def _start_over(self) -> None:
        """Release all KV and forget all programs but their turn numbers. vLLM schedules the requests in the engine
        without the policy, and the record says that their turns and pins ended."""
        self.held.forget_all()
        for pin in filter(lambda pin: not pin.soft, self.table.pins.values()):
            event = SchedulerEvent(self.clock(), "unpin", pin.program.name, pin.turn_index)
            self.tell(replace(event, reason="abort", tokens=pin.kept_tokens))
        for turn in self._turn_of.values():
            self._end_in_record(turn)
        self.loads.clear()
        self._turn_of.clear()
        programs, self.table = self.table.identity.programs, self._new_table()
        self.wall.attempt("turn numbers", lambda: self.table.identity.programs.resume_turns(programs.turn_numbers()))
        self.wall.attempt("statistics", load_statistics, self.table.policy)
        if self.online is not None:
            self.wall.attempt("statistics", self.online.learns, self.table.policy)
        self.table.act_soon(always=True)
        # the queue is reordered only before the next step, because vLLM may be between peek_request and pop_request
        self._order_is_void = True

    def _end_in_record(self, turn: TurnState) -> None:
        if turn.request_id in self._open:
            self._emit(self.clock(), "finish", turn, output_tokens=0, status="error")

    # ------------------------------------------------------------------------------- what happened

    def _arrived(self, request: Request) -> None:
        now_s = self.clock()
        tags, caller = self.tags.read(request)
        turn = self._turn_of[request.request_id] = make_turn(
            self.table, request, tags, caller, now_s, self._settings.recognise, self._least_priority
        )
        self.table.arrive(turn, now_s)
        if self.table.tenants.several:
            self._share()
        if turn.compacted:
            self.held.release_program(turn.program, now_s, "pressure")
        program = turn.program
        by, root = program.recognised_by or None, None if program.family is None else program.family.name
        seen = {"recognised_by": by, "root_id": root, "left_at": program.last_prompt.left_at}
        self._emit(now_s, "arrive", turn, prompt_tokens=turn.prompt_tokens, **seen)
        self._open.add(turn.request_id)

    def _started(self, request_id: str, hit_tokens: int, now_s: float) -> None:
        turn = self.table.turn(request_id)
        if turn is None:
            return
        reloaded, reload_s = self.loads.end(request_id, now_s)
        first = self.table.start(turn, now_s, hit_tokens, self.block_size, reloaded, reload_s)
        kind: Any = "start" if first else "resume"
        self._emit(now_s, kind, turn, prompt_tokens=turn.prompt_tokens, hit_tokens=hit_tokens)
        # the running turn now references the blocks itself
        self.held.release_program(turn.program, now_s, self._how_it_ended(turn, hit_tokens))

    def _how_it_ended(self, turn: TurnState, hit_tokens: int) -> UnpinReason:
        """Return why the pin of a program ends whose turn starts."""
        pin = self.table.pins.get(turn.program.program_id)
        if pin is None or kv_groups.is_plain(self):
            return "hit"
        findable = min(pin.kept_tokens, turn.repeated_tokens) - 2 * self.block_size  # the last blocks may have changed
        return "hit" if hit_tokens >= findable else "gone"

    def _reloads(self, request_id: str, tokens: int, now_s: float) -> None:
        """Note that vLLM began to load the request's KV from a tier. The request starts when the KV is loaded."""
        turn = self.table.turn(request_id)
        if turn is not None:
            self.loads.start(request_id, tokens, now_s)
            self._tell_policy()
            size = round(tokens * kv_groups.token_bytes(self) * touch_points.workers(self))
            self._emit(now_s, "reload", turn, tokens=tokens, bytes=size)

    def _loaded(self, output: KVConnectorOutput) -> None:
        self.loads.reported(output, self.clock())
        self._tell_policy()

    def _tell_policy(self) -> None:
        """Tell the policy how long a load takes."""
        self.table.policy.machine.swap_token_s = self.loads.token_s

    def preempted(self, request_id: str, now_s: float) -> None:
        """Note that a request was preempted. If the policy preempted it, vLLM's output lists it once more."""
        self.guard.release(request_id)
        turn = self.table.turn(request_id)
        if turn is not None and turn.running:
            self.table.preempt(turn, now_s)
            self._emit(now_s, "preempt", turn)
            if not self.table.policy.classes_first:
                self.place_again([turn])

    def _finished(self, request: Request) -> None:
        turn = self.table.turn(request.request_id)
        if turn is None:
            return
        now_s = self.clock()
        stopped = touch_points.is_aborted(request) and self.stop_string(request) is not None
        well = stopped or touch_points.ended_well(request)
        tool = (self.output_tool(request) or turn.tags.this_func_call) if well else None
        self._emit(
            now_s,
            "finish",
            turn,
            output_tokens=request.num_output_tokens,
            tool=tool,
            status="stop" if stopped else touch_points.status_word(request),
        )
        self.loads.end(request.request_id, now_s)
        if well:
            self._finished_well(request, turn, tool, now_s)
        else:
            self.table.abort(turn, request.num_tokens, request.num_output_tokens, now_s)
            self.held.release_program(turn.program, now_s, "abort")

    def _finished_well(self, request: Request, turn: TurnState, tool: str | None, now_s: float) -> None:
        siblings = self.table.identity.programs.with_key(turn.program.id_key) if turn.tags.is_last_step else []

        @cache
        def kept() -> kv_groups.Kept:  # there are many blocks, so they are only read if the policy wants a hold
            return kv_groups.kept(self, request)

        @cache
        def ids() -> list[int]:
            return touch_points.block_ids(kept().blocks)

        stored = self._stored(request)
        # the old pin can be released now, because the request still references its blocks
        self.held.release_program(turn.program, now_s, "last" if turn.tags.is_last_step else "hit")
        # a look-up, which a last turn does not need; a turn of which nothing would be found is counted below
        findable = None if turn.tags.is_last_step or kv_groups.is_plain(self) else kept().tokens or None
        finish = TurnFinish(
            turn, now_s, request.num_tokens, request.num_output_tokens, tool, stored, findable_tokens=findable
        )
        hold = self.table.finish(finish, ids, request.output_token_ids)
        self.turns_not_findable += hold is not None and not kept().blocks
        if hold is not None and kept().blocks:
            self.held.hold(turn.program, kept().blocks)
            pin = self.table.pins.add(turn, now_s, hold, ids(), kept().tokens)
            if hold.ttl_s > 0.0:
                notes = {name: hold.notes[name] for name in NOTES if name in hold.notes} if hold.notes else {}
                self._emit(now_s, "pin", turn, ttl_s=hold.ttl_s, tokens=pin.kept_tokens, **notes)
        for program in siblings:
            self.held.release_program(program, now_s, "last")
            self.table.end_program(program)

    def _stored(self, request: Request) -> Stored | None:
        """Return how much of the request's KV tiers hold. Tiers that cannot be asked are assumed to hold all of it."""
        if self.table.policy.machine.swap_token_s is None:
            return None
        stored = touch_points.stored_tokens(self, request)
        if stored is None:
            return Stored(request.num_tokens)
        anywhere, in_dram = stored
        return Stored(anywhere, anywhere - in_dram)

    def _obey(self, now_s: float) -> None:
        """Get the policy's orders for the next step, and carry them out."""
        orders = self.table.step(Step(now_s, lambda: touch_points.batch_tokens(self)))
        for program in orders.release:
            pin = self.table.pins.firm(program)
            if pin is not None:
                self.held.expire(pin, now_s)
        self.place_again(orders.rank_again)

    # -------------------------------------------------------------------------------------- pins

    def release_program(self, program_id: str, namespace: str | None = None) -> bool:
        """End a program, because its client said so. Return whether KV was held for it.

        Args:
            namespace: digest of the client's API key. Another key's program with the same id is another program.
        """
        programs = self.table.identity.programs.of(program_id, namespace)
        held = [program for program in programs if program.program_id in self.table.pins]
        for program in programs:
            self.held.release_program(program, self.clock(), "last")
            self.table.end_program(program)
        return bool(held)

    def tool_event(self, program_id: str, namespace: str | None, event: ToolEvent) -> bool | None:
        """Note what a client says of a program's tool. Return whether KV is held for the program now; None: the client
        has no such program.

        Of several conversations with this id, it is the one whose KV is held, else the one with a request in the
        engine, else the one that ended its turn last.

        Args:
            namespace: as in ``release_program``.
        """
        programs, pins, now_s = self.table.identity.programs.of(program_id, namespace), self.table.pins, self.clock()
        if not programs:
            return None
        program = max(
            programs,
            key=lambda program: (
                program.turn is None and program.program_id in pins,
                program.turn is not None,
                program.last_finish_s or 0.0,
            ),
        )
        self.table.tool_event(program, event, now_s)
        pin = pins.firm(program)
        if pin is not None and pin.deadline_s <= now_s and program.turn is None:
            self.held.expire(pin, now_s)
        return program.program_id in pins

    def release_all(self, reason: UnpinReason) -> None:
        for pin in [*self.table.pins.values()]:
            self.held.release(pin, self.clock(), reason)

    # ------------------------------------------------------------------------------------- queue

    def place_again(self, turns: Iterable[TurnState]) -> None:
        """Move waiting turns whose place changed."""
        if self._placed is not None:
            for turn in turns:
                self._placed.place_again(turn.request_id)

    def _place_of(self, request: Request) -> Place | None:
        """Return the place of a waiting request; None: the program table does not know the request."""
        return self.wall.run("place of a request", request.request_id, self._find_place, request)

    def _find_place(self, request: Request) -> Place | None:
        turn = self.table.turn(request.request_id)
        return None if turn is None else self.table.order.place(turn)

    # ------------------------------------------------------------------------------------- events

    def _emit(self, now_s: float, kind: Any, turn: TurnState, **facts: Any) -> None:
        name, index = turn.program.name, turn.index
        if kind == "finish":
            self._open.discard(turn.request_id)
        self.tell(SchedulerEvent(now_s, kind, name, index, turn.request_id, turn_id=turn.tags.turn_id, **facts))

    def tell(self, event: SchedulerEvent) -> None:
        self.wall.attempt("record of an event", self.sink.write, event)


class ProgramScheduler(ProgramSchedulerMixin, Scheduler):
    """The plugin with synchronous scheduling."""


class AsyncProgramScheduler(ProgramSchedulerMixin, AsyncScheduler):
    """The plugin with asynchronous scheduling."""


def make(*args: Any, **kwargs: Any) -> Scheduler:
    """Create the scheduler for ``--scheduler-cls``. Its class depends on the engine's scheduling mode.

    Raises:
        UnsupportedVllm: the plugin does not work with this version of vLLM.
    """
    from continuum_server.vllm_plugin.online import Online  # noqa: PLC0415 - a virtual engine needs none of it

    check_version()
    vllm_config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    is_async = vllm_config.scheduler_config.async_scheduling
    scheduler = (AsyncProgramScheduler if is_async else ProgramScheduler)(*args, **kwargs)
    scheduler.online = Online(scheduler, read_settings(vllm_config.additional_config))
    return scheduler
