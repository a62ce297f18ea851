"""Programs that are under way when a closed loop begins (``--start-within 0.25:0.75``).

A benchmark that starts all of its agents at their first turn measures for minutes how they start. So each of the first
N programs begins at a turn within these shares of its turns. Its first prompt is the whole context so far, which nobody
has computed yet.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program

from continuum_bench.options.forms import START_WITHIN

ALL = "0:0"


def read_shares(text: str) -> tuple[float, float]:
    """Read ``0.25:0.75``.

    Raises:
        OptionError: the text has another form.
    """
    _, (low, high) = START_WITHIN.read(text)
    return low, high


def under_way(jobs: Sequence[Job], number: int, text: str, seed: int) -> list[Job]:
    """Return the jobs, of which the first ``number`` root programs begin inside.

    Args:
        jobs: in the order in which they start, sub-programs among them.
        number: programs at a time.
        text: the shares, as ``read_shares``.
        seed: decides the turns.
    """
    low, high = read_shares(text)
    rng, skipped = random.Random(f"start-within {seed}"), dict[str, int]()
    started: list[Job] = []
    for job in jobs:
        program = job.program
        if program.parent_turn is None:
            if len(skipped) < number:
                skipped[job.program_id] = int(rng.uniform(low, high) * len(program.turns))
            done = min(skipped.get(job.program_id, 0), len(program.turns) - 1)
            hints = job.hints[done:]
            started.append(replace(job, program=from_turn(program, done), hints=hints) if done else job)
            continue
        done = skipped.get(program.parent_id or "", 0)
        if program.parent_turn >= done:
            later = replace(program, parent_turn=program.parent_turn - done)
            started.append(replace(job, program=later) if done else job)
        else:
            skipped[job.program_id] = len(program.turns)  # nor do the programs that it would have started
    return started


def from_turn(program: Program, index: int) -> Program:
    """Return the program from this turn on. The first prompt is as long as this turn's, all of it new."""
    prompt = program.prompt_tokens()[index]
    first = replace(program.turns[index], new_input_tokens=prompt, kept_tokens=None, cached_tokens=None)
    shared = min(program.shared_prefix_tokens, prompt)
    return replace(program, turns=(first, *program.turns[index + 1 :]), shared_prefix_tokens=shared)
