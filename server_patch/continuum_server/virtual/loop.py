"""One engine in virtual time: call vLLM's scheduler, advance the clock by the step's modelled time, update.

``replicas`` delivers turns to the engine, and gets back the plays whose turn has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from continuum_traces.playing.conversation import Action, Conversation, Ended, Job, Send, Wait, converse, go_on
from continuum_traces.schema import ArrivalRecord, TurnRecord
from continuum_traces.wire import tags_to_xargs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from continuum_server.step_times.model import Batch, StepTimes
from continuum_server.step_times.speculation import Speculation
from continuum_server.virtual.alone import alone_turns_s
from continuum_server.virtual.config import EngineError
from continuum_server.virtual.scheduler_time import SchedulerStopwatch
from continuum_server.virtual.stretch import Stretches, draft_tokens, hash_computed_blocks, plan_steps
from continuum_server.virtual.token_times import TokenTimes
from continuum_server.virtual.tokens import TokenContext, shared_token
from continuum_server.vllm_plugin.scheduler import Discard, ProgramSchedulerMixin
from continuum_server.vllm_plugin.touch_points import hash_block_size

if TYPE_CHECKING:
    from continuum_server.virtual.vllm_offload import Transfers


@dataclass(slots=True)
class Counters:
    """Counters of the loop, which are written to engine.json."""

    scheduler_calls: int = 0
    engine_steps: int = 0
    """Modelled GPU steps. There are more of them than scheduler calls if one call took several steps."""
    decode_tokens: int = 0
    prefill_tokens: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class Play:
    """A job that is being played."""

    job: Job
    number: int
    """The job's number among all jobs of the run."""
    context: TokenContext
    conversation: Conversation[list[bytes]]
    prompts: Sequence[int]
    """The length of each turn's prompt."""
    in_closed_loop: bool
    """Whether another program may start when this program ends, as with ``--concurrency``."""
    child_gaps_s: Mapping[int, float]
    """Seconds from the end of a turn to the first program that it starts, by the turn's index."""
    due_s: float
    """When the next turn is due."""
    action: Action | None = None
    """The conversation's current action."""
    index: int = 0
    """Index of the current turn."""
    request: Request | None = None
    decode_steps: int = 0
    """Number of decode steps of the current turn."""
    sent_s: float = 0.0
    first_token_s: float | None = None
    alone_s: Sequence[float] = ()
    """Seconds of each turn on an empty engine, computed when the first turn ends."""

    @property
    def arrival(self) -> ArrivalRecord:
        job = self.job
        return ArrivalRecord(job.program_id, self.number, job.arrival_s, job.counted, job.program.started_by)

    @property
    def over(self) -> bool:
        return self.index == len(self.job.program.turns)

    def come_earlier(self, seconds: float) -> None:
        """Let the next turn be due so many seconds earlier; if it is the first, the program arrives earlier."""
        self.due_s -= seconds
        if self.index == 0:
            self.job = replace(self.job, arrival_s=self.due_s)

    def due_s_at_best(self, now_s: float, least_step_s: float) -> float:
        """Return the earliest time at which the next turn can be due, if every step takes at least ``least_step_s``.

        It may be the first of another program: in a closed loop, or if this turn starts one.
        """
        turns = self.job.program.turns
        turn, is_last = turns[self.index], self.index == len(turns) - 1
        own_s = (0.0 if self.in_closed_loop else inf) if is_last else turn.gap_s
        done = self.request.num_output_tokens if self.request is not None else 0
        return now_s + (turn.output_tokens - done) * least_step_s + min(own_s, self.child_gaps_s.get(self.index, inf))


def play_of(
    number: int,
    job: Job,
    block_size: int,
    in_closed_loop: bool = False,
    child_gaps_s: Mapping[int, float] = MappingProxyType({}),
    skipped_s: Callable[[], float] = lambda: 0.0,
) -> Play:
    """Begin to play a job. ``in_closed_loop`` and ``child_gaps_s`` are as in ``Play``, ``skipped_s`` as in
    ``converse``."""
    program, context = job.program, TokenContext(number, block_size)
    if program.shared_prefix_id is not None:
        shared = shared_token(program.shared_prefix_id)
        context = TokenContext(number, block_size, shared, program.shared_prefix_tokens)
    # program ids may repeat, but turn ids must not, because they are also request ids
    said: dict[str, Any] = {"hints": job.hints, "sends": job.sends, "skipped_s": skipped_s}
    conversation = converse(program, job.program_id, job.arrival_s, context, f"{number}/{{}}".format, **said)
    prompts = program.prompt_tokens()
    return Play(job, number, context, conversation, prompts, in_closed_loop, child_gaps_s, due_s=job.arrival_s)


class VirtualClock:
    """The time of one engine."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class VirtualLoop:
    """Runs the turns of plays on one scheduler.

    Args:
        scheduler: built for synchronous scheduling, with this loop's ``clock``.
        step_times: the modelled times of steps.
        clock: only this loop changes its time.
        on_turn: called with each finished turn's record.
        on_arrival: called with each play whose first turn enters the engine.
        transfers: transfers of KV between tiers; None: there are no tiers.
        token_times: records the times of tokens; None: the gaps between tokens are not recorded.
        speculation: speculative decoding, with which event skipping is disabled; None: a step yields one token.
        admits_late: a running engine admits an arrival one step later, as a server with asynchronous scheduling does.
        max_stretch: largest number of engine steps in one scheduler call; 1 disables event skipping.
        max_calls: number of scheduler calls after which the run fails.
    """

    def __init__(
        self,
        scheduler: ProgramSchedulerMixin,
        step_times: StepTimes,
        clock: VirtualClock,
        on_turn: Callable[[TurnRecord], None],
        *,
        on_arrival: Callable[[Play], None] = lambda play: None,
        transfers: Transfers | None = None,
        token_times: TokenTimes | None = None,
        speculation: Speculation | None = None,
        admits_late: bool = False,
        max_stretch: int = 512,
        max_calls: int = 200_000_000,
    ) -> None:
        self.transfers = transfers
        self.step_start_s = -inf
        """When the latest step was scheduled. A turn that arrived later is not in it."""
        self.counters = Counters()
        self.scheduler_time = SchedulerStopwatch()
        self.programs_done = 0
        self.turns_done = 0
        self._scheduler = scheduler
        self._times = step_times
        self._clock = clock
        self._on_turn, self._on_arrival = on_turn, on_arrival
        self._token_times = token_times
        self._admits_late = admits_late
        self._stretches = Stretches(scheduler, step_times, max_stretch if speculation is None else 1)
        self._speculation = speculation
        self._max_calls = max_calls
        self.block_size = hash_block_size(scheduler)
        """Tokens for which there is one block hash."""
        self._block_size = scheduler.block_size
        self._plays: dict[str, Play] = {}
        self._settled = False
        """Nothing changed that could let a waiting request start: the last call only made running requests longer."""
        self._idle_until_s = -inf
        """No waiting request can run before this time. An arrival may be earlier."""
        self._events: list[tuple[float, int, Play]] = []

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def idle(self) -> bool:
        """Whether no turn is in the engine and no arrival is known."""
        return not (self._plays or self._events)

    def stop(self) -> None:
        """Record the turns in the engine as unfinished, and abort them. The scheduler's record has no end of them."""
        if not self._plays:
            return
        for play in self._plays.values():
            stopped: Ended[list[bytes]] = Ended(
                play.sent_s,
                None,
                error="stopped: the run ended",
                first_token_s=play.first_token_s,
                alone_s=self._alone_s(play),
            )
            go_on(play.conversation, stopped, self._on_turn)
        sink, self._scheduler.sink = self._scheduler.sink, Discard()
        self._scheduler.finish_requests(list(self._plays), RequestStatus.FINISHED_ABORTED)
        self._scheduler.sink = sink
        self._plays.clear()

    def next_s(self) -> float:
        """Return the time of the next call of ``advance``; infinite if only an arrival can change anything."""
        moving = self.transfers is not None and self.transfers.pending  # a server's engine then steps without requests
        instant_s = self._idle_until_s if self._plays or moving else inf
        if self._events:
            instant_s = min(instant_s, self._events[0][0])
        return max(self.now_s, instant_s)

    def advance(self, horizon_s: Callable[[], float]) -> list[Play]:
        """Advance the clock to the next event, admit arrivals that are due, and call the scheduler once.

        Args:
            horizon_s: returns the time until which no turn arrives that was not yet delivered.

        Returns:
            the plays whose turn ended.
        """
        if self.counters.scheduler_calls >= self._max_calls:
            raise EngineError(f"gave up after {self._max_calls} scheduler calls at {self.now_s:.1f} s")
        next_s = self.next_s()
        if next_s == inf:
            waiting = ", ".join(list(self._plays)[:3])
            raise EngineError(f"at {self.now_s:.3f} s no request can run and no event is due; waiting: {waiting}")
        self._clock.now_s, self._idle_until_s = next_s, -inf
        self._admit_due()
        stretch_s = self._skip_steps(self._stretch(horizon_s))
        plan_steps(self._scheduler, len(stretch_s))
        if self._speculation is not None:
            draft_tokens(self._scheduler, self._speculation.drafts)
        output = self.scheduler_time.schedule(self._scheduler)
        self.counters.scheduler_calls += 1
        if output.total_num_scheduled_tokens == 0:
            self._wait_for_something(output)
            return []
        return self._run_step(output, stretch_s)

    # -------------------------------------------------------------------------------- arrivals

    def deliver(self, play: Play, arrival_s: float, order: int) -> None:
        """Schedule the arrival of the play's next turn. What the request takes besides its steps passes before.
        Of arrivals at the same time, the lowest order is first."""
        heapq.heappush(self._events, (arrival_s + self._times.request_s(play.prompts[play.index]), order, play))

    def earliest_return_s(self, least_step_s: float) -> float:
        """Return the earliest time at which a program can send its next turn, if no step is shorter than given."""
        returns_s = [play.due_s_at_best(self.now_s, least_step_s) for play in self._plays.values()]
        returns_s += [play.due_s_at_best(max(self.now_s, due_s), least_step_s) for due_s, _, play in self._events]
        return min(returns_s, default=inf)

    def _admit_due(self) -> None:
        known_s = self.step_start_s if self._admits_late and self._plays else self.now_s
        while self._events and self._events[0][0] <= known_s:
            _, _, play = heapq.heappop(self._events)
            self._send(play)

    def _send(self, play: Play) -> None:
        if play.index == 0:
            self._on_arrival(play)
        while not isinstance(play.action, Send):
            self._go_on(play, None)
        tags = play.action.tags
        play.request = Request(
            request_id=play.action.turn_id,
            prompt_token_ids=play.context.prompt,
            sampling_params=SamplingParams(
                max_tokens=play.action.turn.output_tokens,
                ignore_eos=True,
                extra_args=tags_to_xargs(tags),
            ),
            pooling_params=None,
            arrival_time=self.now_s,
            block_hasher=play.context.hasher(),  # type: ignore[arg-type]
        )
        play.request.prefill_stats = None  # vLLM's count of cached tokens for its log, which loops over every block
        play.sent_s = max(play.due_s, self.now_s - self._times.request_s(play.prompts[play.index]))
        play.first_token_s, play.decode_steps = None, 0
        self._plays[play.action.turn_id] = play
        self._settled = False
        self._scheduler.add_request(play.request)

    def output_tool(self, request: Request) -> str | None:
        """Return the tool that a running request's answer calls, as a server reads it in the answer's text."""
        play = self._plays[request.request_id]
        tool = play.job.program.turns[play.index].slowest_tool
        return None if tool is None else tool.name

    def _go_on(self, play: Play, result: Ended[list[bytes]] | None) -> None:
        """Advance the play to its conversation's next action."""
        play.action = go_on(play.conversation, result, self._on_turn)
        play.index = play.action.index if play.action is not None else len(play.job.program.turns)
        if isinstance(play.action, Wait):
            play.due_s = play.action.until_s

    def _wait_for_something(self, output: SchedulerOutput) -> None:
        """Wait for a deadline, an arrival or the end of a transfer, because nothing could be scheduled."""
        moved = self._move_kv(output)
        result = ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=moved)
        self.scheduler_time.update(self._scheduler, output, result)
        moves = self.transfers is not None and not self.transfers.quiet
        if moves or output.preempted_req_ids:  # after a preemption vLLM starts no request in the same call
            return  # the next call may already schedule a request
        deadline_s = self._scheduler.table.next_deadline_s()
        self._idle_until_s = inf if deadline_s is None else _just_after(max(deadline_s, self.now_s))
        if self.transfers is not None:
            self._idle_until_s = min(self._idle_until_s, self.transfers.next_s())

    def _move_kv(self, output: SchedulerOutput) -> KVConnectorOutput | None:
        """Start this call's transfers, and report those that ended. Advance the clock if the GPU must wait."""
        if self.transfers is None:
            return None
        moved, self._clock.now_s = self.transfers.run_step(output)
        return moved

    # ------------------------------------------------------------------------------------ steps

    def _run_step(self, output: SchedulerOutput, stretch_s: Sequence[float]) -> list[Play]:
        """Model the GPU's work for the call's output: one step, or the steps of the stretch."""
        steps = max(1, len(stretch_s))
        plays, scheduled = self._plays, output.num_scheduled_tokens
        sampled: list[list[int]] = []
        index: dict[str, int] = {}
        finished: list[Play] = []
        batch, drafted = Batch(), output.scheduled_spec_decode_tokens
        pure = not output.scheduled_new_reqs and not output.scheduled_cached_reqs.resumed_req_ids
        for number, (request_id, tokens) in enumerate(scheduled.items()):
            play = plays[request_id]
            request: Any = play.request
            index[request_id] = number
            done = request.num_output_tokens
            prefill = request.is_prefill_chunk
            decoding = not prefill and done > 0 and (tokens == steps or request_id in drafted)
            batch.add(tokens, request.num_computed_tokens - tokens, decoding)
            if prefill:
                sampled.append([])
                continue
            new = play.context.output[done : done + (self._tokens_of(play, tokens, steps) if decoding else 1)]
            sampled.append(new)
            if done + len(new) >= request.max_tokens:
                finished.append(play)
        self.step_start_s = self.now_s
        moved = self._move_kv(output)
        start_s, steps_s = self.now_s, stretch_s or [batch.step_s(self._times)]
        self._take_time(batch, steps_s)
        if self._token_times is not None:
            self._token_times.step(start_s, steps_s, index, sampled)
        if batch.chunks:
            self._note_first_tokens(index)
        runner_output = ModelRunnerOutput(list(scheduled), index, sampled, kv_connector_output=moved)
        self.scheduler_time.update(self._scheduler, output, runner_output)
        if steps > 1:
            hash_computed_blocks(self._scheduler)  # so that blocks of requests that are preempted next can be hit
        self._settled = pure and not batch.chunks and not finished and not output.preempted_req_ids
        for play in finished:
            self._finish(play)
        return finished

    def _tokens_of(self, play: Play, scheduled: int, steps: int) -> int:
        """Return the new tokens of a decoding request: one for each step, or those of its next speculative step."""
        if self._speculation is None:
            return steps
        play.decode_steps += 1
        new = min(self._speculation.tokens(play.decode_steps - 1), scheduled)
        self.counters.decode_tokens += new - 1
        return new

    def _take_time(self, batch: Batch, steps_s: Sequence[float]) -> None:
        counters = self.counters
        counters.engine_steps += len(steps_s)
        counters.decode_tokens += batch.decodes * len(steps_s)
        counters.prefill_tokens += sum(chunk.tokens for chunk in batch.chunks)
        start_s = self.now_s
        for number, seconds in enumerate(steps_s):
            if number > 0:
                self.step_start_s = self.now_s
            self._clock.now_s += seconds
        counters.busy_s += self.now_s - start_s

    def _note_first_tokens(self, scheduled: dict[str, int]) -> None:
        for request_id in scheduled:
            play = self._plays[request_id]
            request: Any = play.request
            if play.first_token_s is None and not request.is_prefill_chunk:
                play.first_token_s = self.now_s

    def _finish(self, play: Play) -> None:
        request: Any = play.request
        del self._plays[request.request_id]
        play.request = None
        answered = Ended(
            sent_s=play.sent_s,
            finish_s=self.now_s,
            answer=request.block_hashes,
            first_token_s=play.first_token_s,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=request.max_tokens,
            alone_s=self._alone_s(play),
            token_gaps_ms=None if self._token_times is None else self._token_times.gaps_ms(request.request_id),
        )
        self.turns_done += 1
        self._go_on(play, answered)
        self.programs_done += play.over

    def _alone_s(self, play: Play) -> float:
        """Return the seconds of the current turn on an empty engine."""
        if not play.alone_s:
            budget = self._scheduler.max_num_scheduled_tokens
            one_group = len(self._scheduler.kv_cache_config.kv_cache_groups) == 1
            play.alone_s = alone_turns_s(play.job.program, self._times, budget, self._block_size, one_group)
        return play.alone_s[play.index]

    # ---------------------------------------------------------------------------- event skipping

    def _stretch(self, horizon_s: Callable[[], float]) -> list[float]:
        """Return the seconds of each of the next steps, if several can be taken in one scheduler call; else empty."""
        transfers = self.transfers
        if transfers is not None and (self._stretches.by_groups or transfers.fenced or not transfers.quiet):
            return []  # with several groups, the tiers must hear of blocks in each step
        return self._stretches.next(self.now_s, lambda: self._news_s(horizon_s()), self._settled)

    def _skip_steps(self, stretch_s: list[float]) -> list[float]:
        """Take the steps of the stretch but the last without the scheduler, if the model has several KV cache groups.

        Returns:
            the seconds of the steps that are left for the scheduler's next call; empty: a single step.
        """
        if not stretch_s or not self._stretches.by_groups:
            return stretch_s
        plays = [self._plays[request.request_id] for request in self._scheduler.running]
        done = [request.num_output_tokens for request in self._scheduler.running]
        outputs = [play.context.output for play in plays]
        steps = self._stretches.skip(len(stretch_s) - 1, outputs)
        if steps:
            start_s, passed_s = self.now_s, stretch_s[:steps]
            self.step_start_s = start_s
            self._take_time(Batch(decodes=len(plays)), passed_s)
            if self._token_times is not None:
                ids = [request.request_id for request in self._scheduler.running]
                new = [output[at : at + steps] for output, at in zip(outputs, done, strict=True)]
                self._token_times.step(start_s, passed_s, ids, new)
        return []

    def _news_s(self, horizon_s: float) -> float:
        """Return the time at which the next turn may arrive or the next transfer ends."""
        news_s = min(self._events[0][0] if self._events else inf, horizon_s)
        return news_s if self.transfers is None else min(news_s, self.transfers.next_s())


def _just_after(instant_s: float) -> float:
    """Return a slightly later time, because a pin is released only when the clock is past its deadline."""
    return instant_s + 1e-9 * max(1.0, abs(instant_s))
