"""Plays a logged run on the virtual engine: the recorded arrivals and lengths, modelled step times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
from continuum_bench.options.traces import ImportLogOptions
from continuum_bench.request_logs.import_log import Conversation, conversations_of, experiment_of, program_of
from continuum_bench.request_logs.logs import read_log
from continuum_bench.request_logs.served import LoggedRun, Served
from continuum_bench.virtual.engine_options import engine_of
from continuum_server.step_times.model import PrefillChunk, StepTimes
from continuum_server.step_times.overhead import is_asynchronous
from continuum_server.virtual.config import EngineConfig, EngineError, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import TurnRecord


@dataclass(frozen=True, slots=True)
class Calibration:
    """The changes to modelled step times that ``fit`` finds."""

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
        EngineError: a request was not answered.
    """
    shape, settings, conversations = shape_of(config), settings_of(config, "vllm", {}), conversations_of(run)
    jobs = [Job(program_of(each, run), each[1][0].arrival_s) for each in conversations]
    records: list[TurnRecord] = []
    for number in range(config.replicas):
        own = jobs[number :: config.replicas]
        engine = build_engine(shape, times, settings, own, records.append, admits_late=asynchronous)
        engine.play(own)
        engine.close()
    return _answers(run, conversations, records)


def _answers(run: LoggedRun, conversations: Sequence[Conversation], records: Sequence[TurnRecord]) -> list[Served]:
    requests = {(name, turn): each for name, turns in conversations for turn, each in enumerate(turns)}
    answers: dict[int, Served] = {}
    for record in records:
        request = requests[record.program_id, record.turn]
        if record.first_token_s is None or record.finish_s is None:
            raise EngineError(f"{record.program_id} was not answered: {record.error}")
        times = {"first_token_s": record.first_token_s, "finish_s": record.finish_s}
        answers[id(request)] = replace(request, arrival_s=record.due_s, **times)
    return [answers[id(request)] for request in run.served]


STATISTICS = ("mean", "p50", "p99")


def numbers_of(served: Sequence[Served]) -> dict[str, float]:
    """Return times in seconds (``ttft_mean``, ``e2e_p99`` ...). TPOT is of requests with two or more tokens."""
    columns = {
        "e2e": [each.finish_s - each.arrival_s for each in served],
        "ttft": [each.first_token_s - each.arrival_s for each in served],
        "tpot": [
            (each.finish_s - each.first_token_s) / (each.output_tokens - 1) for each in served if each.output_tokens > 1
        ],
    }
    return {
        f"{name}_{which}": fmean(values) if which == "mean" else float(np.quantile(values, int(which[1:]) / 100))
        for name, values in columns.items()
        if values
        for which in STATISTICS
    }


def fit(score: Callable[[Calibration], float]) -> Calibration:
    """Search for the calibration with the lowest score, in at most 40 plays."""
    from scipy.optimize import minimize  # noqa: PLC0415 - takes a while to import

    fitted = cast(Any, minimize)(
        lambda x: score(Calibration(float(x[0]), float(x[1]))) if x[1] > 0.0 else 1e3,
        (0.0, 1.0),
        method="Nelder-Mead",
        options={"initial_simplex": [(0.0, 1.0), (1.0, 1.0), (0.0, 1.2)], "maxfev": 40, "xatol": 0.02, "fatol": 1e-4},
    )
    return Calibration(float(fitted.x[0]), float(fitted.x[1]))


def fit_lines(log: Path, gpu: str, model: str | None = None) -> Iterator[str]:
    """Of each run of a log: the calibration that fits its first half, and the errors of the second half with it."""
    for run in read_log(log):
        config = engine_of(experiment_of(run, ImportLogOptions(source=log, target=log, gpu=gpu, model=model)))[0]
        times, asynchronous, half = times_of(config), is_asynchronous(config.vllm), len(run.served) // 2
        measured = [numbers_of(run.served[:half]), numbers_of(run.served[half:])]

        def errors(calibration: Calibration, part: int) -> dict[str, float]:
            served = play(run, config, CalibratedStepTimes(times, calibration), asynchronous)  # noqa: B023
            modelled = numbers_of(served[half:] if part else served[:half])  # noqa: B023
            return {name: modelled[name] / value - 1.0 for name, value in measured[part].items()}  # noqa: B023

        def score(calibration: Calibration) -> float:
            return fmean(error**2 for name, error in errors(calibration, 0).items() if name.endswith("_mean"))

        best = fit(score)
        yield f"{run.name}: {best.overhead_ms:+.2f} ms a step, attention x {best.attention:.2f}, by the first half"
        yield "second half: " + ", ".join(f"{name} {error:+.1%}" for name, error in errors(best, 1).items())
