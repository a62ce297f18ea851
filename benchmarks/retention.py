"""Prints what it gains to keep the KV of recorded sessions for 1, 5 or 60 minutes after each turn.

    python benchmarks/retention.py weka_60.jsonl.gz                 # in unlimited memory, from the trace alone
    python benchmarks/retention.py weka_60.jsonl.gz --documents 0.3 [--tier dram-200] [--seeds 0,1,2]

The first form prints the share of all prompt tokens that a turn finds because it came in time, and the KV that is kept
between turns, in times the KV of the requests that run (token-seconds). A request runs for its recorded seconds. Where
these are unknown, it runs for the mean of the others. KV is kept after the last turn too, because no agent says that
it was the last.

The second form plays four sessions at a time in virtual time, on an H100 with Llama-3.1-8B, beside one-off requests
that nobody continues: so many documents a second, with prompts of 8,000 tokens in the mean. Sessions ask for a soft
hold of these lengths (``kv_ttl_s``), documents do not. Pauses are cut to an hour. Of four hours the first does not
count.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
from continuum_analysis.compare.intervals import interval_text, mean_interval, ratio_interval
from continuum_analysis.compare.words import markdown
from continuum_bench.options.run import TraceOptions
from continuum_bench.workload.load import load_trace
from continuum_server.policy.program_table import Guards
from continuum_server.routers import ROUTERS
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.offload import read_offload
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, Tags, Turn, TurnRecord

HOUR_S = 3600.0
SESSION = "session"
TURN_S = 10.0
"""Seconds of a turn that are assumed when it is decided when a session's successor starts."""
PROMPT, ANSWER, SIGMA = 8000, 200, 0.5
"""Mean tokens of a document and of the answer to it, and the deviation of the logarithm of its length."""
GUARDS = Guards(max_ttl_s=HOUR_S)


# ------------------------------------------------------------------------------------------- unlimited memory


def kept(programs: Sequence[Program], keep_s: float) -> tuple[float, float]:
    """Return the share of prompt tokens that are found, and the kept KV in times the running KV."""
    known = [turn.llm_s for program in programs for turn in program.turns if turn.llm_s is not None]
    usual_s = fmean(known) if known else 1.0
    asked = found = idle = running = 0.0
    for program in programs:
        away_s = float("inf")
        for turn, prompt, reusable in zip(
            program.turns, program.prompt_tokens(), program.reusable_tokens(), strict=True
        ):
            asked += prompt
            found += reusable if away_s <= keep_s else 0
            away_s = turn.gap_s if turn is not program.turns[-1] else float("inf")
            context = prompt + turn.output_tokens
            running += context * (usual_s if turn.llm_s is None else turn.llm_s)
            idle += context * min(away_s, keep_s)
    return found / asked, idle / running


def table_of(programs: Sequence[Program], asked: Sequence[int]) -> Iterator[str]:
    rows = []
    for minutes in asked:
        found, idle = kept(programs, 60.0 * minutes)
        rows.append([f"{minutes} min", f"{found:.1%}", f"{idle:.1f}"])
    yield f"{len(programs)} sessions, {sum(len(program.turns) for program in programs)} turns"
    yield from markdown(["kept after each turn", "prompt tokens found", "kept KV, in times the running KV"], rows)


# ------------------------------------------------------------------------------------------- beside documents


@dataclass(frozen=True, slots=True)
class Crowd:
    """Sessions at a time, beside documents."""

    sessions: int
    documents_per_s: float
    tier: str | None = None
    """A tier below the GPU's memory (``--offload``)."""
    hours: float = 4.0

    def jobs(self, programs: Sequence[Program], seed: int, ttl_s: float | None) -> list[Job]:
        """Return jobs of sessions, one behind the other in each of ``sessions`` lanes, and of documents."""
        chance, jobs = random.Random(seed), list[Job]()
        for _ in range(self.sessions):
            at_s = chance.uniform(0.0, 600.0)
            while at_s < self.hours * HOUR_S:
                program = chance.choice(programs)
                named = replace(program, program_id=f"{SESSION}-{len(jobs)}")
                hints = tuple(Tags(kv_ttl_s=ttl_s) for _ in program.turns)
                jobs.append(Job(named, at_s, hints=hints, sends="no-last"))
                at_s += sum(turn.gap_s + TURN_S for turn in program.turns)
        at_s = chance.expovariate(self.documents_per_s)
        while at_s < self.hours * HOUR_S:
            prompt = round(chance.lognormvariate(math.log(PROMPT) - SIGMA**2 / 2, SIGMA))
            document = Program(f"document-{len(jobs)}", (Turn(prompt, ANSWER),), synthetic=True, tagged=False)
            jobs.append(Job(document, at_s))
            at_s += chance.expovariate(self.documents_per_s)
        return sorted(jobs, key=lambda job: job.arrival_s)


@dataclass(frozen=True, slots=True)
class Result:
    """A run, without its first hour."""

    hits: float
    """Share of the sessions' prompt tokens that were in the cache."""
    turn_s: float
    """Mean seconds of a session's turn."""
    first_s: float
    """Mean seconds to the first token of a session's turn."""
    first95_s: float
    document_s: float
    """Mean seconds of a document."""


def play(jobs: Sequence[Job], policy: str, tier: str | None, until_s: float) -> Result:
    offload = None if tier is None else read_offload(tier, EngineConfig.gpu)
    config = EngineConfig(guards=GUARDS, offload=offload)
    shape, times = shape_of(config), times_of(config)
    turns, events = list[TurnRecord](), list[SchedulerEvent]()
    sink = SimpleNamespace(write=events.append)
    engine = build_engine(shape, times, settings_of(config, policy, {}), jobs, turns.append, sink)
    least_step_s = 0.5 * times.step_s((), 1, 1)
    ReplicaLoops([engine.loop], ROUTERS["round-robin"](), jobs, least_step_s, until_s=until_s).run()
    assert not engine.close()
    ended = [turn for turn in turns if turn.finish_s is not None and turn.due_s >= HOUR_S]
    of_session = [turn for turn in ended if turn.program_id.startswith(SESSION)]
    starts = [each for each in events if each.event == "start" and each.program_id.startswith(SESSION)]
    starts = [each for each in starts if each.t >= HOUR_S]
    firsts = [(turn.first_token_s or 0.0) - turn.due_s for turn in of_session]
    return Result(
        sum(each.hit_tokens or 0 for each in starts) / sum(each.prompt_tokens or 0 for each in starts),
        fmean((turn.finish_s or 0.0) - turn.due_s for turn in of_session),
        fmean(firsts),
        float(np.percentile(firsts, 95)),
        fmean((turn.finish_s or 0.0) - turn.due_s for turn in ended if not turn.program_id.startswith(SESSION)),
    )


BASE = "`working-set`, no hints"


def beside(programs: Sequence[Program], crowd: Crowd, seeds: Sequence[int], asked: Sequence[int]) -> Iterator[str]:
    """Yield a line for each run, and a table at the end. Ratios are to ``BASE``, over seeds.

    Args:
        asked: minutes for which sessions ask, an arm each.
    """
    arms: dict[str, tuple[str, float | None]] = {"stock vLLM": ("vllm", None), BASE: ("working-set", None)}
    arms |= {f"{minutes} min": ("working-set", 60.0 * minutes) for minutes in asked}
    results: dict[str, list[Result]] = {name: [] for name in arms}
    for seed in seeds:
        for name, (policy, ttl_s) in arms.items():
            result = play(crowd.jobs(programs, seed, ttl_s), policy, crowd.tier, crowd.hours * HOUR_S)
            results[name].append(result)
            yield f"seed {seed}, {name}: {result}"
    rows = []
    for name, runs in results.items():
        row = [name, interval_text(mean_interval([run.hits for run in runs]), "{:.1%}".format)]
        for what in ("turn_s", "first_s", "first95_s", "document_s"):
            values, of_base = ([getattr(run, what) for run in each] for each in (runs, results[BASE]))
            row.append(f"{fmean(values):.2f}")
            if name != BASE:
                row[-1] += f" ({interval_text(ratio_interval(values, of_base), '{:.3f}'.format)})"
        rows.append(row)
    heads = ["", "prefix hits", "a turn, s", "first token, mean, s", "P95, s", "a document, s"]
    yield from ("", crowd, "", *markdown(heads, rows), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("trace", type=Path)
    parser.add_argument("--documents", type=float, metavar="PER_S", help="play sessions beside so many documents/s")
    parser.add_argument("--tier", help="DRAM below the GPU's memory, as --offload of a replay: dram-200")
    parser.add_argument("--sessions", type=int, default=4, help="sessions at a time")
    parser.add_argument("--minutes", type=numbers, default=[1, 5, 60], help="for which sessions ask")
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    options = parser.parse_args()
    for line in _lines(options):
        print(line, flush=True)  # noqa: T201


def _lines(options: argparse.Namespace) -> Iterator[str]:
    trace = TraceOptions(traces=options.trace)
    if options.documents is None:
        yield from table_of(load_trace(options.trace.stem, trace, context_tokens=10**9).programs, options.minutes)
        return
    programs = load_trace(options.trace.stem, replace(trace, skip_invalid=True, max_think_s=HOUR_S)).programs
    crowd = Crowd(options.sessions, options.documents, options.tier)
    yield from beside(programs, crowd, options.seeds, options.minutes)


if __name__ == "__main__":
    main()
