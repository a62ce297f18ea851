"""Computes lower bounds on mean JCT and wall time from step times and pool size.

    python benchmarks/limit.py pressure small     # grids of benchmarks/results

It writes docs/results/data/limit-pressure.json and limit-small.json.

For each point of the grids and each seed:

``limit``      No schedule has a lower mean JCT. Each new token is prefilled once, and a decode step costs what it costs
               in the fullest batch that the pool allows. The engine then has a fixed amount of work for each program,
               and no order of that work completes more programs by any instant than the shortest remaining work first
               (SRPT). No program is faster than alone. A run below it is an error. Nor does any schedule finish the
               last program earlier (``wall_s``).
``in order``   An ideal engine in order of arrival: the earliest programs that fit the pool together run in one batch,
               at the least time of such a step; no KV is ever lost. Its schedule is no bound for others: one that lets
               short programs overtake may be better.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from continuum_bench.errors import BenchError
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.plan import group_of
from continuum_server.step_times.table import TableStepTimes, attended_pairs
from continuum_server.virtual.config import EngineShape, shape_of, times_of
from continuum_traces.playing.conversation import Job
from results import DATA, GRIDS, grid_of, write

Piece = tuple[float, float]
"""A part of a program: the seconds that it takes at least, and its seconds of engine work (0 between turns)."""


@dataclass(frozen=True, slots=True)
class Line:
    """Every step with n tokens, d decodes over c tokens of context and p attended pairs of prompt chunks takes at least
    ``step_s + n * token_s + d * request_s + c * context_s + p * pair_s``."""

    step_s: float
    token_s: float
    request_s: float
    context_s: float
    pair_s: float


class Machine:
    """Computes lower bounds on the time that a GPU with its pool needs for a turn.

    Args:
        times: step times from a table.
        shape: the engine.
    """

    def __init__(self, times: TableStepTimes, shape: EngineShape) -> None:
        table, mixed = times._table, times._mixed
        self.pool_tokens = (shape.num_blocks - 1) * shape.block_size
        self.chunk_tokens, self.most = shape.max_num_batched_tokens, shape.max_num_seqs
        overhead_s, request_s = times.provenance.step_overhead_ms / 1e3, times.provenance.request_overhead_ms / 1e3
        batches, means = np.array(table.decode_batch), np.array(table.decode_context_tokens)
        decode_s = np.array(table.decode_attention_ms) / 1e3
        # Step times and batch * mean are bilinear between grid points, so a bound at the points holds between them.
        context_s = float((decode_s / (batches[:, None] * means)).min())
        pair_s = 0.0  # FlashAttention-2 overlaps prompts with the reading of decodes, which may hide either
        if mixed is None:
            pairs = [[attended_pairs(n, prefix) for prefix in table.chunk_prefix_tokens] for n in table.chunk_tokens]
            pair_s = float((np.array(table.chunk_attention_ms) / 1e3 / np.array(pairs)).min())
        self.lines = [
            Line(overhead_s + fixed_s, token_s, request_s, context_s, pair_s)
            for fixed_s, token_s in _lines_below(*_steps_up_to(table, self.chunk_tokens))
        ]
        least_s = min(_steps_up_to(table, self.chunk_tokens)[1])
        self._decode_s = overhead_s + request_s + least_s
        self._grid = np.unique(np.geomspace(1, means[-1], 2000).astype(int))
        self._least_attention_s = _least_attention(batches, means, decode_s, self._grid, shape.max_num_seqs)

    def pieces(self, job: Job, line: Line) -> Iterator[Piece]:
        """Yield the pieces of a program: for each turn its prefill, its decode steps, and the gap after it."""
        program = job.program
        turns = zip(program.turns, program.prompt_tokens(), program.reusable_tokens(), strict=True)
        for index, (turn, prompt, reusable) in enumerate(turns):
            prefix = min(reusable, prompt - 1)
            yield self._prefill(prompt - prefix, prefix, line)
            if turn.output_tokens > 1:
                contexts = np.arange(prompt + 1, prompt + turn.output_tokens)
                yield self._decodes(contexts, program.shared_prefix_tokens, line)
            if index < len(program.turns) - 1:
                yield turn.gap_s, 0.0

    def step_s(self, decodes: Sequence[int], left: Sequence[list[_Turn]], tokens: int, prefix: float) -> float:
        """Return the least seconds of a step with these decodes and a chunk of ``tokens`` behind ``prefix`` tokens."""
        together = len(decodes) + tokens
        context = sum(left[number][-1].context for number in decodes)
        line = self.lines[0]
        fixed_s = max(each.step_s + each.token_s * together for each in self.lines)
        rest_s = line.request_s * len(decodes) + line.context_s * context
        return fixed_s + rest_s + line.pair_s * attended_pairs(tokens, int(prefix))

    def _prefill(self, tokens: int, prefix: int, line: Line) -> Piece:
        pairs, steps = attended_pairs(tokens, prefix), math.ceil(tokens / self.chunk_tokens)
        seconds = max(steps * each.step_s + tokens * each.token_s + pairs * each.pair_s for each in self.lines)
        return seconds, tokens * line.token_s + pairs * line.pair_s

    def _decodes(self, contexts: np.ndarray[Any, Any], shared: int, line: Line) -> Piece:
        """Return the piece of a turn's decode steps. The fixed part of a step is charged to its requests by the memory
        that each of them does not share."""
        number, total = len(contexts), float(contexts.sum())
        fixed_s = line.step_s * (total - number * shared) / self.pool_tokens
        work_s = fixed_s + number * (line.token_s + line.request_s) + total * line.context_s
        attention_s = self._least_attention_s[np.searchsorted(self._grid, contexts, side="right") - 1]
        return number * self._decode_s + float(attention_s.sum()), work_s


def _steps_up_to(table: Any, tokens: int) -> tuple[list[int], list[float]]:
    """Return the grid of tokens up to the point after ``tokens``, and the seconds of a step without attention."""
    end = min(bisect_right(table.shared_tokens, tokens), len(table.shared_tokens) - 1) + 1
    return list(table.shared_tokens[:end]), [ms / 1e3 for ms in table.shared_ms[:end]]


def _lines_below(tokens: Sequence[int], seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Return lines below all points, as (seconds at 0 tokens, seconds per token): the edges of the lower convex hull,
    and a line through 0."""
    hull: list[tuple[float, float]] = []
    for x, y in zip(tokens, seconds, strict=True):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], (x, y)):
            hull.pop()
        hull.append((x, y))
    edges = [((y2 - y1) / (x2 - x1), x1, y1) for (x1, y1), (x2, y2) in pairwise(hull)]
    lines = [(y - slope * x, slope) for slope, x, y in edges if slope >= 0 and y >= slope * x]
    return [*lines, (0.0, min(y / x for x, y in hull))]


def _turns_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def _least_attention(
    batches: np.ndarray[Any, Any],
    means: np.ndarray[Any, Any],
    decode_s: np.ndarray[Any, Any],
    contexts: np.ndarray[Any, Any],
    most: int,
) -> np.ndarray[Any, Any]:
    """Return for each number of tokens in ``contexts`` the least seconds of decode attention in a step whose decodes
    together have at least that many tokens of context."""
    least = np.full(len(contexts), np.inf)
    for batch in range(1, most + 1):
        rows = [np.interp(batch, batches, column) for column in decode_s.T]
        later = np.minimum.accumulate(np.array(rows)[::-1])[::-1]  # the least from each grid point on
        mean = np.clip(contexts / batch, 1, means[-1])
        here, following = np.interp(mean, means, rows), later[np.clip(np.searchsorted(means, mean), 0, len(means) - 1)]
        least = np.minimum(least, np.minimum(here, following))
    return np.asarray(np.minimum.accumulate(least[::-1])[::-1])


# ------------------------------------------------------------------------------------------------ limits


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds. ``jct`` and ``wall`` (from the first arrival on) are lower bounds; ``in_order``: of the ideal engine."""

    jct: float
    in_order: float
    wall: float
    work: float
    """The least busy time."""


def limits_of(jobs: Sequence[Job], machine: Machine) -> Limits:
    """Compute the limits of one arrival sequence; ``jobs`` must be in order of arrival."""
    line = max(machine.lines, key=lambda each: sum(work for job in jobs for _, work in machine.pieces(job, each)))
    programs = [(job.arrival_s, list(machine.pieces(job, line))) for job in jobs]
    alone = [(arrival_s, sum(seconds for seconds, _ in pieces)) for arrival_s, pieces in programs]
    work = [(arrival_s, sum(work for _, work in pieces)) for arrival_s, pieces in programs]
    ends = sorted(arrival_s + seconds for arrival_s, seconds in alone)
    served = shortest_first(work)
    arrivals = float(np.mean([arrival_s for arrival_s, _ in work]))
    ideal = in_order(jobs, machine)
    return Limits(
        jct=float(np.mean([max(pair) for pair in zip(ends, served, strict=True)])) - arrivals,
        in_order=float(np.mean(ideal)) - arrivals,
        wall=max(ends[-1], served[-1]) - jobs[0].arrival_s,
        work=sum(seconds for _, seconds in work),
    )


def shortest_first(work: Sequence[tuple[float, float]]) -> list[float]:
    """Return the ends, in order, of programs of (arrival, work) on a machine that does the shortest remaining work."""
    arrivals, now_s = sorted(work), 0.0
    waiting: list[float] = []
    ends: list[float] = []
    while arrivals or waiting:
        if not waiting:
            now_s = max(now_s, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now_s:
            heapq.heappush(waiting, arrivals.pop(0)[1])
        left_s = heapq.heappop(waiting)
        until_s = min(now_s + left_s, arrivals[0][0] if arrivals else math.inf)
        if until_s >= now_s + left_s:
            ends.append(now_s + left_s)
        else:
            heapq.heappush(waiting, left_s - (until_s - now_s))
        now_s = until_s
    return ends


@dataclass(slots=True)
class _Turn:
    """The remaining work of a turn."""

    prefill: float
    """Prompt tokens to compute, behind ``context`` tokens."""
    decode: float
    """Tokens to generate after the first one."""
    context: float
    gap_s: float


def in_order(jobs: Sequence[Job], machine: Machine) -> list[float]:
    """Return the instant, in seconds, at which each program ends on an ideal engine that serves in order of arrival.

    All programs whose contexts fit the pool together run in one batch, the earliest first, at the least time of such a
    step. The tokens of one chunk are computed beside them. KV is never lost, and takes memory only while its program
    runs.
    """
    left = [_turns(job) for job in jobs]
    ends, now_s, begun = [0.0] * len(jobs), 0.0, 0
    inside: list[int] = []
    while begun < len(jobs) or inside:
        while begun < len(jobs) and jobs[begun].arrival_s <= now_s:
            inside.append(begun)
            begun += 1
        batch = _batch(inside, left, jobs, machine)
        chunk = next((number for number in batch if left[number][-1].prefill > 0), None)
        decodes = [number for number in batch if left[number][-1].prefill <= 0]
        tokens = machine.chunk_tokens - len(decodes) if chunk is not None else 0
        step_s = machine.step_s(decodes, left, tokens, left[chunk][-1].context if chunk is not None else 0.0)
        steps = min((left[number][-1].decode for number in decodes), default=math.inf)
        if chunk is not None:
            steps = min(steps, 1.0, left[chunk][-1].prefill / tokens)
        away = [number for number in inside if left[number][-1].prefill <= 0 and left[number][-1].decode <= 0]
        until_s = min(
            jobs[begun].arrival_s if begun < len(jobs) else math.inf,
            now_s + steps * step_s if batch else math.inf,
            *(now_s + left[number][-1].gap_s for number in away),
        )
        done = (until_s - now_s) / step_s if batch else 0.0
        for number in decodes:
            left[number][-1].decode = _less(left[number][-1].decode, done)
            left[number][-1].context += done
        if chunk is not None:
            left[chunk][-1].context += done * tokens
            left[chunk][-1].prefill = _less(left[chunk][-1].prefill, done * tokens)
        for number in away:
            left[number][-1].gap_s = _less(left[number][-1].gap_s, until_s - now_s)
        now_s = until_s
        for number in inside:
            _leave_turns(number, left[number], ends, now_s)
        inside = [number for number in inside if left[number]]
    return ends


def _turns(job: Job) -> list[_Turn]:
    """Return the turns of a program, the last turn first."""
    program = job.program
    turns = []
    for turn, prompt, reusable in zip(program.turns, program.prompt_tokens(), program.reusable_tokens(), strict=True):
        prefix = min(reusable, prompt - 1)
        turns.append(_Turn(prompt - prefix, turn.output_tokens - 1, prefix, turn.gap_s))
    turns[-1].gap_s = 0.0
    return turns[::-1]


def _leave_turns(number: int, turns: list[_Turn], ends: list[float], now_s: float) -> None:
    while turns and turns[-1].prefill <= 0 and turns[-1].decode <= 0:
        if len(turns) == 1:
            ends[number] = now_s
        elif turns[-1].gap_s > 0:
            return
        turns.pop()


def _batch(inside: Sequence[int], left: Sequence[list[_Turn]], jobs: Sequence[Job], machine: Machine) -> list[int]:
    """Return the earliest programs that have work and together fit the pool; at least one program."""
    batch: list[int] = []
    free = float(machine.pool_tokens)
    for number in inside:
        turn = left[number][-1]
        if turn.prefill <= 0 and turn.decode <= 0:
            continue
        free -= turn.context + turn.prefill - jobs[number].program.shared_prefix_tokens
        if batch and (free < 0 or len(batch) == machine.most):
            break
        batch.append(number)
    return batch


def _less(amount: float, by: float) -> float:
    rest = amount - by
    return rest if rest > 1e-7 else 0.0


# --------------------------------------------------------------------------------------------- data file


def points_of(grid: Grid) -> Iterator[dict[str, Any]]:
    """Yield for each point the data of the arm ``in order``, in the form of results.py's files.

    Raises:
        RuntimeError: a run of results.py is below the limit.
    """
    played = json.loads((DATA / f"{grid.name}.json").read_text(encoding="utf-8"))["points"]
    for point, published in zip(grid.points, played, strict=True):
        group = group_of(point, grid)
        times = times_of(group.engine)
        assert isinstance(times, TableStepTimes)
        machine = Machine(times, shape_of(group.engine))
        limits = {
            seed: limits_of(sorted(group.workload.jobs(seed), key=lambda job: job.arrival_s), machine)
            for seed in point.seeds
        }
        for arm, runs in published["runs"].items():
            for seed, run in runs.items():
                limit = limits[int(seed)]
                if run["jct_mean_s"] < limit.jct - 0.01 or run["wall_s"] < limit.wall - 0.1:
                    raise RuntimeError(f"{point.axes}, {arm}, seed {seed} is below the limit: {run}, {limit}")
        ideal = {str(seed): {"jct_mean_s": round(limit.in_order, 3)} for seed, limit in limits.items()}
        yield {"axes": published["axes"], "runs": {"in order": ideal}}


def main() -> None:
    grids = sorted(grid.stem for grid in GRIDS.glob("*.yaml"))
    parser = argparse.ArgumentParser(
        description="Write docs/results/data/limit-GRID.json: the bounds of a played grid."
    )
    parser.add_argument("grids", nargs="+", metavar="GRID", choices=grids, help=f"one of {', '.join(grids)}")
    for name in dict.fromkeys(parser.parse_args().grids):
        try:
            write(f"limit-{name}", {"points": list(points_of(grid_of(name)))})
        except (BenchError, OSError, RuntimeError, ValueError) as error:
            parser.error(f"{name}: {error}")


if __name__ == "__main__":
    main()
