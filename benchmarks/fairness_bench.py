"""Runs the rows of ``fairness_rows`` in virtual time: vLLM's own scheduler, closed-loop clients, modelled step
times."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

from continuum_server.policy.program_table import Guards
from continuum_server.step_times.model import Batch
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, NAMESPACE_KEY, WEIGHT_KEY
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_traces.wire import tags_to_xargs
from fairness_rows import (
    BLOCK,
    CLIENTS,
    CLIENTS_APART_S,
    FIRST_PROGRAM_S,
    GPU,
    KV_BLOCKS,
    PROGRAMS,
    PROGRAMS_APART_S,
    TOOL_S,
    Ask,
    Row,
    honest,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

Answered = Callable[[list[int]], None]
"""Called with the answer to a request."""
WORD = 7
"""The only token that the model generates."""
PAUSE_S = 0.005
"""Time from an answer to the client's next requests, as over HTTP. Without it, tools would seem to take no time."""


class Engine:
    """A scheduler, a clock, the requests that are running, and the functions to call at later times."""

    def __init__(
        self,
        policy: str,
        options: Mapping[str, Any],
        guards: Guards,
        part: float = 1.0,
        least_blocks: int = 0,
        **limits: Any,
    ) -> None:
        """``part``: of the memory and of the speed of the GPU, but at least so many blocks of memory. ``limits``:
        further settings of the engine."""
        blocks = max(least_blocks, round(part * KV_BLOCKS))
        config = EngineConfig(gpu=GPU, kv_blocks=blocks, block_size=BLOCK, guards=guards, **limits)
        self._part = part
        shape, self._times = shape_of(config), times_of(config)
        settings = settings_of(config, policy, options)
        self.scheduler: Any = build_engine(shape, self._times, settings, scheduler_type=ProgramScheduler).scheduler
        self.scheduler.clock = lambda: self.now_s
        self.scheduler.output_tool = lambda request: self._asked[request.request_id][1].tool
        self.now_s = 0.0
        self._numbers = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked: dict[str, tuple[Request, Ask, Answered]] = {}
        init_none_hash(sha256)
        self._hasher: Any = get_request_block_hasher(BLOCK, sha256)

    def at(self, instant_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (instant_s, next(self._numbers), act))

    def send(self, ask: Ask, answered: Answered, key: str | None = None, weight: float = 1.0) -> None:
        caller = {} if key is None else {CLIENT_KEY: key, NAMESPACE_KEY: key, WEIGHT_KEY: weight}
        xargs, left = tags_to_xargs(ask.tags) | caller, ask.copies

        def one_answered(answer: list[int]) -> None:
            nonlocal left
            left -= 1
            if not left:
                answered(answer)

        for _ in range(ask.copies):
            self._send(ask, xargs, one_answered)

    def _send(self, ask: Ask, xargs: dict[str, Any], answered: Answered) -> None:
        request = Request(
            request_id=str(next(self._numbers)),
            prompt_token_ids=ask.prompt,
            sampling_params=SamplingParams(max_tokens=ask.output, ignore_eos=True, extra_args=xargs),
            pooling_params=None,
            arrival_time=self.now_s,
            block_hasher=self._hasher,
        )
        self._asked[request.request_id] = request, ask, answered
        self.scheduler.add_request(request)

    def run(self, over: Callable[[], bool], limit_s: float) -> None:
        """Run until ``over`` returns true, until the clock reaches the limit, or until nothing is left to do."""
        while not over() and self.now_s < limit_s:
            while self._due and self._due[0][0] <= self.now_s:
                heapq.heappop(self._due)[2]()
            if not self._step() and not self._wait():
                return

    def _wait(self) -> bool:
        """Advance the clock to the next event, because nothing can be scheduled. Return False if there is none."""
        deadline_s = self.scheduler.table.next_deadline_s()
        instants = [self._due[0][0]] if self._due else []
        if deadline_s is not None:
            instants.append(deadline_s + 1e-6)  # a pin is released once the clock is past its deadline
        self.now_s = max(self.now_s, min(instants, default=self.now_s))
        return bool(instants)

    def _step(self) -> bool:
        """Run one step of the engine. Return False if nothing could be scheduled."""
        output = self.scheduler.schedule()
        order, batch, sampled = list(output.num_scheduled_tokens), Batch(), []
        for request_id, tokens in output.num_scheduled_tokens.items():
            request: Any = self._asked[request_id][0]
            decoding = not request.is_prefill_chunk and request.num_output_tokens > 0 and tokens == 1
            batch.add(tokens, request.num_computed_tokens - tokens, decoding)
            sampled.append([] if request.is_prefill_chunk else [WORD])
        if order:
            self.now_s += batch.step_s(self._times) / self._part
        index = {request_id: number for number, request_id in enumerate(order)}
        self.scheduler.update_from_output(output, ModelRunnerOutput(order, index, sampled))
        for request_id in order:
            self._answer(request_id)
        return bool(order)

    def _answer(self, request_id: str) -> None:
        request, ask, answered = self._asked[request_id]
        if ask.abort_at is not None and request.num_output_tokens >= ask.abort_at:
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        if request.is_finished():
            del self._asked[request_id]
            answered(list(request.output_token_ids))


def _client(engine: Engine, row: Row, client: int, number: int = 0) -> None:
    """Send the requests of a round; send the next round soon after all are answered."""
    asks = row(client, number)
    left = len(asks)

    def answered(_: list[int]) -> None:
        nonlocal left
        left -= 1
        if not left:
            engine.at(engine.now_s + PAUSE_S, partial(_client, engine, row, client, number + 1))

    for ask in asks:
        engine.send(ask, answered)


def _program(engine: Engine, program: int, times_s: dict[int, float]) -> None:
    """Run an honest program and add its seconds to ``times_s``."""
    since_s, first = engine.now_s, honest(program, 0, ())

    def tool(reply: list[int]) -> None:
        engine.at(engine.now_s + TOOL_S, lambda: engine.send(honest(program, 1, [*first.prompt, *reply]), end))

    def end(_: list[int]) -> None:
        times_s[program] = engine.now_s - since_s

    engine.send(first, tool)


def honest_times_s(
    row: Row, policy: str, options: Mapping[str, Any] | None = None, *, limit_s: float, guards: Guards | None = None
) -> list[float]:
    """The seconds of the honest programs that ended within ``limit_s`` after the first of them arrived."""
    engine = Engine(policy, options or {}, guards or Guards())
    times_s: dict[int, float] = {}
    for client in range(CLIENTS):
        engine.at(client * CLIENTS_APART_S, partial(_client, engine, row, client))
    for program in range(PROGRAMS):
        engine.at(FIRST_PROGRAM_S + program * PROGRAMS_APART_S, partial(_program, engine, program, times_s))
    engine.run(lambda: len(times_s) == PROGRAMS, FIRST_PROGRAM_S + limit_s)
    assert engine.scheduler.wall.errors == 0
    return list(times_s.values())
