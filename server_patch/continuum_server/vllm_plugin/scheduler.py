"""The plugin: vLLM's scheduler with a policy beside it. ``--scheduler-cls continuum_server.vllm_plugin.scheduler.make``

The stock scheduler does all the work. Around four of its methods this one reports what happened to the program table
(``policy.program_table``) and carries out what comes back: hold these blocks, give those back. Decisions are not made
here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from continuum_traces.schema import SchedulerEvent, Tags, UnpinReason
from continuum_traces.wire import tags_from_xargs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from continuum_server.policy.base import Rank
from continuum_server.policy.catalog import make_policy
from continuum_server.policy.facts import Machine, ProgramState, Step, Stored, TurnState
from continuum_server.policy.program_table import Pin, ProgramTable
from continuum_server.policy.programs import Prompt
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.preemption import Preemption
from continuum_server.vllm_plugin.queue import HELD_BACK, OVERDUE, PINNED, PREEMPTED, REST, RankedQueue
from continuum_server.vllm_plugin.request_tags import Caller, hints_to_xargs, read_caller
from continuum_server.vllm_plugin.settings import read_settings
from continuum_server.vllm_plugin.statistics_files import load_statistics
from continuum_server.vllm_plugin.versions import PluginError
from continuum_server.vllm_plugin.wall import Wall

Clock = Callable[[], float]

logger = logging.getLogger("continuum")


class BoundRefused(PluginError):
    """A policy that knows the future, asked of a server."""


class EventSink(Protocol):
    """Where events go; ``write`` must not raise."""

    def write(self, event: SchedulerEvent, /) -> None: ...


class Discard:
    """A sink for nobody."""

    def write(self, event: SchedulerEvent, /) -> None:
        return


class ProgramSchedulerMixin(Scheduler):
    """Put in front of ``Scheduler`` or ``AsyncScheduler``."""

    knows_future: ClassVar[bool] = False
    """True under the virtual engine alone, which has the trace."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        touch_points.refuse_what_cannot_work(self)
        self._settings = read_settings(self.vllm_config.additional_config)
        self.table = self._new_table()
        policy = self.table.policy
        load_statistics(policy)
        if policy.label == "bound" and not self.knows_future:
            raise BoundRefused(f"policy {policy.name!r} is a bound: it knows the future, which no server does")
        self.wall = Wall(self._give_up, self._start_over)
        self.clock: Clock = time.monotonic  # noqa: TID251 - the default of an injected clock
        self.sink: EventSink = Discard()
        self.output_tool: Callable[[Request], str | None] = _names_no_tool
        """Key of the tool that a finished request's output calls; a live server reads the text."""
        self.stop_string: Callable[[Request], str | None] = _names_no_tool
        """The stop string that ended a request's output; a live server reads the text."""
        self.online: Any = None
        """What a live server adds; None under an injected clock."""
        self.tags_rejected = 0
        self._rejected_before: set[str] = set()
        self._held: dict[str, touch_points.Blocks] = {}
        """Blocks on which the plugin holds a reference, by ``ProgramState.program_id``: the truth about pins."""
        self._turn_of: dict[str, TurnState] = {}
        """By request in the engine: what a failure in the core cannot lose."""
        self._loads: dict[str, tuple[int, float]] = {}
        """Requests whose KV was asked back from a lower tier: how many tokens, and when."""
        self._order_is_void = False
        """Ranks in the queue are those of a policy that started over since."""
        self._ranked = None if policy.stock_order else RankedQueue(self._queue_key)
        if self._ranked is not None:
            self.waiting = self._ranked
        self._preemption = Preemption(self) if policy.preempts else None
        touch_points.wrap_allocate_slots(self, self._with_room_from_pins)

    def _new_table(self) -> ProgramTable:
        settings = self._settings
        kv_tokens = self.block_size * int(self.cache_config.num_gpu_blocks or 0)
        machine = Machine(
            settings.prefill,
            kv_tokens,
            self.max_num_scheduled_tokens,
            settings.swap_token_s,
            settings.deep_token_s,
            settings.tier_tokens,
            settings.decode,
            block_size=self.block_size,
        )
        policy = make_policy(settings.policy, settings.policy_options, machine)
        return ProgramTable(policy, settings.guards, kv_tokens, self.block_size)

    def attach(self, clock: Clock, sink: EventSink) -> None:
        """Use this clock and this sink from now on."""
        self.clock, self.sink = clock, sink

    # ------------------------------------------------------------------------- around vLLM's methods

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self.wall.run("arrival of a request", request.request_id, self._arrived, request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        now_s = self.clock()
        self.wall.run("what comes before a step", None, self._before_step, now_s)
        if self._order_is_void and self._ranked is not None:
            self._ranked.in_order_of_arrival()
        self._order_is_void = False
        output = super().schedule(*args, **kwargs)
        self.wall.run("what comes after a step", None, self._after_step, output, now_s)
        return output

    def _after_step(self, output: SchedulerOutput, now_s: float) -> None:
        run = self.wall.run
        for request_id in touch_points.preempted_ids(output):
            run("preemption of a request", request_id, self.preempted, request_id, now_s)
        for request_id, blocks in touch_points.loads_begun(output):  # first: since 0.33 some end in the same step
            run("load of a request", request_id, self._reloads, request_id, blocks, now_s)
        for request_id, hit_tokens in touch_points.first_scheduled(output):
            run("start of a request", request_id, self._started, request_id, hit_tokens, now_s)
        if self._preemption is not None:
            self._preemption.plan(now_s)

    def _before_step(self, now_s: float) -> None:
        self.release_expired()
        if self.table.policy.steps:
            self._obey(now_s)
        idle = self._ranked is not None and not (self.running or self._ranked or touch_points.loads_in_flight(self))
        for turn in self.table.overdue(now_s, idle):
            if self._ranked is not None:
                self._ranked.rank_again(turn.request_id)
        if self._preemption is not None:
            self._preemption.carry_out(now_s)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self.wall.run("end of a request", request.request_id, self._finished, request)
        self._turn_of.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        if self.online is not None:
            self.wall.attempt("shutdown", self.online.close)
        super().shutdown()

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        self.wall.run("reset of the prefix cache", None, self.release_all, "shutdown")
        return super().reset_prefix_cache(*args, **kwargs)

    # -------------------------------------------------------------------------------- after a failure

    def _give_up(self, request_id: str | None) -> None:
        """Nothing is held for the request's program any more, and vLLM alone schedules the request.

        A failure that concerns no single request leaves the policy in a state that nobody knows: all starts over.
        """
        if request_id is None:
            self._start_over()
            return
        self._loads.pop(request_id, None)
        turn = self._turn_of.get(request_id)
        if turn is None:
            return
        touch_points.release_blocks(self, self._held.pop(turn.program.program_id, []))
        self.table.drop(turn)
        if self._ranked is not None:
            self._ranked.rank_again(request_id)

    def _start_over(self) -> None:
        """Nothing is held and no program is known. Requests in the engine are vLLM's alone."""
        for blocks in self._held.values():
            touch_points.release_blocks(self, blocks)
        self._held.clear()
        self._loads.clear()
        self._turn_of.clear()
        self.table = self._new_table()
        self.table.act_soon(always=True)
        self._order_is_void = True  # not now: vLLM may be between looking at the queue's head and taking it

    # ------------------------------------------------------------------------------- what happened

    def _arrived(self, request: Request) -> None:
        now_s = self.clock()
        xargs = {**hints_to_xargs(touch_points.kv_hints(request)), **touch_points.extra_args(request)}
        read = tags_from_xargs(xargs, touch_points.session_id(request))
        caller = read_caller(xargs)
        rejected = (*read.rejected, *caller.rejected)
        if rejected:
            self.note_rejected(rejected)
        turn = self._new_turn(request, read.tags, caller, now_s)
        self.table.arrive(turn, now_s)
        self._emit(now_s, "arrive", turn, prompt_tokens=turn.prompt_tokens)

    def _new_turn(self, request: Request, tags: Tags, caller: Caller, now_s: float) -> TurnState:
        tagged = tags.program_id is not None
        blocks = touch_points.block_hashes(request)
        program = self.table.program_for(
            tags.program_id or request.request_id,
            now_s,
            tags.parent_id,
            Prompt(request.num_prompt_tokens, blocks),
            caller.namespace,
        )
        turn = self._turn_of[request.request_id] = TurnState(
            program=program,
            index=0,
            request_id=request.request_id,
            arrival_s=now_s,
            prompt_tokens=request.num_prompt_tokens,
            sequence=self.table.next_sequence(),
            is_last=bool(tags.is_last_step),
            tool_hint=tags.pred_tool,
            tool_hint_s=tags.pred_tool_s,
            tool_hint_p90_s=tags.pred_tool_p90_s,
            ttl_wish_s=tags.kv_ttl_s,
            this_func_call=tags.this_func_call,
            tagged=tagged,
            blocks=blocks,
            client=caller.client,
            turn_id=tags.turn_id,
            prompt=touch_points.prompt_mark(request),
        )
        return turn

    def _started(self, request_id: str, hit_tokens: int, now_s: float) -> None:
        turn = self.table.turn(request_id)
        if turn is None:
            return
        reloaded, since_s = self._loads.pop(request_id, (0, now_s))
        first = self.table.start(turn, now_s, hit_tokens, self.block_size, reloaded, now_s - since_s)
        kind: Any = "start" if first else "resume"
        self._emit(now_s, kind, turn, prompt_tokens=turn.prompt_tokens, hit_tokens=hit_tokens)
        pin = self.table.pins.get(turn.program.program_id)
        if pin is not None:  # the turn holds the blocks itself by now: never a moment unheld
            self._unpin(pin, now_s, "hit")

    def _reloads(self, request_id: str, blocks: int, now_s: float) -> None:
        """Its KV is on its way from a lower tier; it starts when that is there."""
        turn = self.table.turn(request_id)
        if turn is not None:
            tokens = blocks * self.block_size
            self._loads[request_id] = tokens, now_s
            self._emit(now_s, "reload", turn, tokens=tokens, bytes=blocks * touch_points.block_bytes(self))

    def preempted(self, request_id: str, now_s: float) -> None:
        """It lost its place; told once, before or after the step that says so."""
        turn = self.table.turn(request_id)
        if turn is not None and turn.running:
            self.table.preempt(turn, now_s)
            self._emit(now_s, "preempt", turn)
            if self._ranked is not None and not self.table.policy.classes_first:
                self._ranked.rank_again(request_id)

    def _finished(self, request: Request) -> None:
        turn = self.table.turn(request.request_id)
        if turn is None:
            return
        now_s = self.clock()
        stopped = touch_points.is_aborted(request) and self.stop_string(request) is not None
        well = stopped or touch_points.ended_well(request)
        tool = (self.output_tool(request) or turn.this_func_call or turn.tool_hint) if well else None
        self._emit(
            now_s,
            "finish",
            turn,
            output_tokens=request.num_output_tokens,
            tool=tool,
            status="stop" if stopped else touch_points.status_word(request),
        )
        self._loads.pop(request.request_id, None)
        if well:
            self._finished_well(request, turn, tool, now_s)
        else:
            self.table.abort(turn)
            self._unpin_program(turn.program, now_s, "abort")

    def _finished_well(self, request: Request, turn: TurnState, tool: str | None, now_s: float) -> None:
        siblings = self.table.siblings(turn.program) if turn.is_last else []
        full = touch_points.full_blocks(self, request)
        ids = touch_points.block_ids(full)
        stored = self._stored(request)
        # the request holds its blocks until it is freed: never a moment unheld
        self._unpin_program(turn.program, now_s, "last" if turn.is_last else "hit")
        hold = self.table.finish(turn, now_s, request.num_tokens, request.num_output_tokens, tool, stored, ids)
        if hold is not None and full:
            touch_points.hold_blocks(self, full)
            self._held[turn.program.program_id] = full
            pin = self.table.pin(turn, now_s, hold.ttl_s, ids)
            estimates = {"delay_estimate_s": hold.delay_estimate_s, "eta": hold.eta}
            self._emit(now_s, "pin", turn, ttl_s=hold.ttl_s, tokens=pin.tokens, **estimates)
        for program in siblings:
            self._unpin_program(program, now_s, "last")
            self.table.end_program(program)

    def _stored(self, request: Request) -> Stored | None:
        """What lower tiers hold of it; where they cannot be asked but their speed is known: all."""
        if self.table.policy.machine.swap_token_s is None:
            return None
        found = touch_points.stored_chunks(self, request)
        if found is None:
            return Stored(request.num_tokens)
        anywhere, in_dram, tokens = found
        return Stored(anywhere * tokens, (anywhere - in_dram) * tokens)

    def note_rejected(self, names: Sequence[str], count: int | None = None) -> None:
        """Tags that could not be read: counted (``names`` may be only some of them), each name logged once."""
        self.tags_rejected += len(names) if count is None else count
        for name in names:
            if name not in self._rejected_before and len(self._rejected_before) < 100:
                self._rejected_before.add(name)
                logger.warning("continuum: tag %r could not be read and is ignored (logged once)", name)

    def _obey(self, now_s: float) -> None:
        """Ask the policy before a step, and do what it says."""
        tokens = touch_points.batch_tokens(self) if self.table.policy.wants_batch else 0
        orders = self.table.step(Step(now_s, tokens))
        for program in orders.release:
            pin = self.table.pins.get(program.program_id)
            if pin is not None and pin.program is program:
                self._unpin(pin, now_s, "expired")
        if self._ranked is not None:
            for turn in orders.rank_again:
                self._ranked.rank_again(turn.request_id)

    # -------------------------------------------------------------------------------------- pins

    def release_expired(self) -> float:
        """Let go of pins past their deadline; the time it is."""
        now_s = self.clock()
        if self._held:
            for pin in self.table.expired(now_s):
                self._unpin(pin, now_s, "expired")
        return now_s

    def release_program(self, program_id: str, namespace: str | None = None) -> bool:
        """The client says the program is over; True if it held anything.

        Args:
            namespace: of the API key that says so; another key's program of that name is another program.
        """
        programs = self.table.programs_of(program_id, namespace)
        held = [program for program in programs if self.table.has_pin(program.program_id)]
        for program in programs:
            self._unpin_program(program, self.clock(), "last")
            self.table.end_program(program)
        return bool(held)

    def release_all(self, reason: UnpinReason) -> None:
        for pin in list(self.table.pins.values()):
            self._unpin(pin, self.clock(), reason)

    def _unpin_program(self, program: ProgramState, now_s: float, reason: UnpinReason) -> None:
        pin = self.table.pins.get(program.program_id)
        if pin is not None:
            self._unpin(pin, now_s, reason)

    def _unpin(self, pin: Pin, now_s: float, reason: UnpinReason) -> None:
        program = pin.program
        touch_points.release_blocks(self, self._held.pop(program.program_id, []))
        self.table.unpin(program.program_id)
        self._tell(SchedulerEvent(now_s, "unpin", program.name, pin.turn_index, reason=reason, tokens=pin.tokens))
        if self._ranked is not None and reason != "hit":
            for turn in program.in_engine:
                self._ranked.rank_again(turn.request_id)

    def _with_room_from_pins(self, allocate: touch_points.AllocateSlots) -> touch_points.AllocateSlots:
        """``allocate_slots`` that, where it fails, may take room from pins and try again."""

        def allocate_or_release(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is None and self._held:
                victims = self.wall.run("choice of pins to release", None, self._victims, request, kwargs)
                for pin in victims or ():
                    self.wall.run("release of a pin", None, self._unpin, pin, self.clock(), "pressure")
                    blocks = allocate(request, *args, **kwargs)
                    if blocks is not None:
                        break
            if blocks is None and self._preemption is not None:
                self.wall.run("choice of a preemption", None, self._preemption.refused, request, kwargs)
            return blocks

        return allocate_or_release

    def _victims(self, request: Request, arguments: dict[str, Any]) -> list[Pin]:
        """Pins to release one by one until the request fits; none where all of them together do not make room."""
        turn = self.table.turn(request.request_id)
        must = touch_points.is_running(request) or not (self.running or touch_points.loads_in_flight(self))
        if turn is None:  # vLLM's alone: pins are in nobody's way where the engine would stand still
            return list(self.table.pins.values()) if must else []
        victims = list(self.table.victims(turn, must))
        return victims if must or self._enough(request, arguments, victims) else []

    def _enough(self, request: Request, arguments: dict[str, Any], victims: Sequence[Pin]) -> bool:
        """Would all of them together make room? Otherwise none is disturbed."""
        gain = touch_points.held_by_these_alone([self._held[pin.program.program_id] for pin in victims])
        wanted = touch_points.blocks_wanted(self, request, arguments)
        return gain > 0 and touch_points.free_block_count(self) + gain >= wanted

    # ------------------------------------------------------------------------------------- small

    def _queue_key(self, request: Request) -> tuple[int, Rank] | None:
        """Class and rank of a waiting request; None: the policy knows nothing of it."""
        return self.wall.run("rank of a request", request.request_id, self._key_of, request)

    def _key_of(self, request: Request) -> tuple[int, Rank] | None:
        turn = self.table.turn(request.request_id)
        if turn is None:
            return None
        if turn.overdue:
            return OVERDUE, (float(turn.sequence),)
        rank = self.table.policy.rank(turn)
        if rank is None:
            return HELD_BACK, ()
        rank = tuple(map(float, rank))
        if not self.table.policy.classes_first:
            return REST, rank
        if touch_points.is_preempted(request):
            return PREEMPTED, rank
        return (PINNED if self.table.has_pin(turn.program.program_id) else REST), rank

    def _emit(self, now_s: float, kind: Any, turn: TurnState, **facts: Any) -> None:
        ids = turn.program.name, turn.index, turn.request_id
        self._tell(SchedulerEvent(now_s, kind, *ids, turn_id=turn.turn_id, **facts))

    def _tell(self, event: SchedulerEvent) -> None:
        self.wall.attempt("record of an event", self.sink.write, event)


def _names_no_tool(request: Request) -> str | None:
    return None


class ProgramScheduler(ProgramSchedulerMixin, Scheduler):
    """For synchronous scheduling."""


class AsyncProgramScheduler(ProgramSchedulerMixin, AsyncScheduler):
    """For asynchronous scheduling."""


def make(*args: Any, **kwargs: Any) -> Scheduler:
    """What ``--scheduler-cls`` names: the class that fits the engine's scheduling mode.

    Raises:
        UnsupportedVllm: this vLLM is not one the plugin knows.
    """
    from continuum_server.vllm_plugin.online import Online  # noqa: PLC0415 - a virtual engine needs none of it

    touch_points.check_supported()
    vllm_config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    is_async = vllm_config.scheduler_config.async_scheduling
    scheduler = (AsyncProgramScheduler if is_async else ProgramScheduler)(*args, **kwargs)
    scheduler.online = Online(scheduler, read_settings(vllm_config.additional_config))
    return scheduler
