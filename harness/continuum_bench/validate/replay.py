"""Plays a logged run on the virtual engine: the recorded arrivals and lengths, modelled step times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from continuum_server.step_times.model import PrefillChunk, StepTimes
from continuum_server.virtual.config import EngineConfig, EngineError, shape_of
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, Turn, TurnRecord

from continuum_bench.errors import BenchError
from continuum_bench.validate.served import LoggedRun, Served


@dataclass(frozen=True, slots=True)
class Calibration:
    """The changes to modelled step times that ``--fit`` finds."""

    overhead_ms: float = 0.0
    """Added to every step."""
    attention: float = 1.0
    """Factor on attention to earlier tokens."""


class CalibratedStepTimes(StepTimes):
    """Step times with a calibration. Attention is the time of a step beyond that of a step without earlier tokens."""

    def __init__(self, times: StepTimes, calibration: Calibration) -> None:
        self._times, self.provenance = times, times.provenance
        self._attention, self._overhead_s = calibration.attention, calibration.overhead_ms / 1e3

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        whole_s = self._times.step_s(chunks, decodes, decode_context_tokens)
        bare_s = self._times.step_s([PrefillChunk(chunk.tokens, 0) for chunk in chunks], decodes, decodes)
        return max(bare_s + (whole_s - bare_s) * self._attention + self._overhead_s, 1e-6)


def play(run: LoggedRun, config: EngineConfig, times: StepTimes, asynchronous: bool) -> list[Served]:
    """Play the run's requests and its other load on the virtual engine. Returns the requests in the log's order.

    Args:
        asynchronous: the server schedules each step while the previous step runs, so that an arrival misses both.

    Raises:
        BenchError: a request does not fit the model's context or the KV blocks.
    """
    # vLLM's import takes seconds
    from continuum_server.virtual.engine import build_engine, settings_of  # noqa: PLC0415

    logging.getLogger("vllm").setLevel(logging.ERROR)  # no advice about this machine's CPU
    shape = shape_of(config)
    limit = min(shape.max_model_len, (shape.num_blocks - 1) * shape.block_size)
    everything = (*run.served, *run.load)
    jobs, places = _jobs(everything)
    _check_lengths(run.name, everything, limit, shape.num_blocks)
    records: list[TurnRecord] = []
    settings = settings_of(config, "vllm", {})
    for number in range(config.replicas):
        own = jobs[number :: config.replicas]
        engine = build_engine(shape, times, settings, own, records.append, admits_late=asynchronous)
        engine.play(own)
        engine.close()
    return _answers(everything, records, places)[: len(run.served)]


def _jobs(served: Sequence[Served]) -> tuple[list[Job], dict[tuple[str, int], int]]:
    """Return a job for each program (or request without one) in order of arrival, and each turn's index in the log."""
    programs: dict[str, list[int]] = {}
    for index, each in enumerate(served):
        programs.setdefault(f"request-{index}" if each.program_id is None else each.program_id, []).append(index)
    jobs = [
        Job(Program(name, tuple(_turns([served[index] for index in indices]))), served[indices[0]].arrival_s)
        for name, indices in programs.items()
    ]
    jobs.sort(key=lambda job: job.arrival_s)
    places = {(name, turn): index for name, indices in programs.items() for turn, index in enumerate(indices)}
    return jobs, places


def _turns(requests: Sequence[Served]) -> list[Turn]:
    """Return a program's requests as turns. A prompt begins with the context so far, or with a part of it."""
    turns = [Turn(requests[0].prompt_tokens, requests[0].output_tokens, gap_overhead_s=requests[0].gap_s)]
    for before, now in pairwise(requests):
        context = before.prompt_tokens + before.output_tokens
        kept = min(context, now.prompt_tokens - 1)
        turns.append(
            Turn(now.prompt_tokens - kept, now.output_tokens, kept_tokens=kept, gap_overhead_s=max(now.gap_s, 0.0))
        )
    return turns


def _check_lengths(name: str, served: Sequence[Served], limit: int, blocks: int) -> None:
    for number, each in enumerate(served):
        tokens = each.prompt_tokens + each.output_tokens
        if tokens > limit:
            raise BenchError(
                f"{name}: request {number} (by arrival): {tokens} tokens do not fit the model's context and "
                f"{blocks} KV blocks, which hold {limit}"
            )


def _answers(
    served: Sequence[Served], records: Sequence[TurnRecord], places: dict[tuple[str, int], int]
) -> list[Served]:
    found: dict[int, Served] = {}
    for record in records:
        index = places[record.program_id, record.turn]
        if record.first_token_s is None or record.finish_s is None:
            raise EngineError(f"request {index} was not answered: {record.error}")
        first_token_s, finish_s = record.first_token_s, record.finish_s
        found[index] = replace(served[index], arrival_s=record.due_s, first_token_s=first_token_s, finish_s=finish_s)
    return [found[index] for index in range(len(served))]


def fit(score: Callable[[Calibration], float]) -> Calibration:
    """Search for the calibration with the lowest score, in at most 40 plays."""
    from scipy.optimize import minimize  # noqa: PLC0415 - takes a while to import

    found = cast(Any, minimize)(
        lambda x: score(Calibration(float(x[0]), float(x[1]))) if x[1] > 0.0 else 1e3,
        (0.0, 1.0),
        method="Nelder-Mead",
        options={"initial_simplex": [(0.0, 1.0), (1.0, 1.0), (0.0, 1.2)], "maxfev": 40, "xatol": 0.02, "fatol": 1e-4},
    )
    return Calibration(float(found.x[0]), float(found.x[1]))
