"""Tasks that are run repeatedly, for ``own_policy.py``: a cell's programs, and what a policy learned from earlier runs.

A cell with "history": FILE plays the programs of "traces". FILE contains an earlier run of each of them, whose id has
the same part behind the last slash. A cell with "repeats": {"tasks": 8, "runs": 8, "history": 1, "correlation": 0.75}
plays eight runs of each of eight synthetic tasks of its workload, drawn with the cell's seed; the policy knows one
earlier run of each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from continuum_server.policy.forecasts import Forecasts
from continuum_server.virtual.tokens import TokenContext, shared_token
from continuum_server.vllm_plugin.turns import task_name
from continuum_traces.conversation import open_turn
from continuum_traces.importers.registry import read_any
from continuum_traces.jsonl import too_long
from continuum_traces.schema import Program
from continuum_traces.synth import Repeats, load_profile, synthesize

LONGEST = 131072


def programs_of(cell: dict[str, Any], seed: int) -> tuple[list[Program], list[Program]]:
    """Return the earlier runs, and the programs that are played."""
    if "repeats" in cell:
        given = cell["repeats"]
        tasks, before, runs = given["tasks"], given.get("history", 0), given["runs"]
        drawn = synthesize(
            load_profile(cell["workload"]),
            tasks * (before + runs),
            seed,
            length_scale=cell.get("length_scale", 1.0),
            repeats=Repeats(before + runs, given["correlation"]),
        )
        return _fitting(drawn[: tasks * before]), _fitting(drawn[tasks * before :])
    earlier, played = (list(map(_as_run, read_any(Path(cell[name]), None))) for name in ("history", "traces"))
    return _fitting(earlier), _fitting(played)


def _fitting(programs: Sequence[Program]) -> list[Program]:
    return [program for program in programs if too_long(program, LONGEST) is None]


def _as_run(program: Program) -> Program:
    """Mark the program as a run of the task that its id names: runs of a task begin with the same prompt."""
    task = program.program_id.rpartition("/")[2]
    return replace(program, shared_prefix_id=f"task {task}", shared_prefix_tokens=program.turns[0].new_input_tokens)


def learn(forecasts: Forecasts, programs: Sequence[Program], block_size: int) -> None:
    """Teach the forecasts as if these programs had run to their ends on an engine with this block size."""
    for number, program in enumerate(programs):
        progress = forecasts.progress(task_name(None, _prompt_mark(program, number, block_size), None), 0.0)
        for turn, prompt in zip(program.turns, program.prompt_tokens(), strict=True):
            forecasts.turn_ended(progress, prompt, prompt + turn.output_tokens)
        forecasts.program_ended(progress)


def _prompt_mark(program: Program, number: int, block_size: int) -> tuple[int, bytes | None]:
    """Return what ``touch_points.prompt_mark`` returns for the program's first request."""
    context = TokenContext(
        number, block_size, shared_token(program.shared_prefix_id or ""), program.shared_prefix_tokens
    )
    open_turn(context, program, 0)
    prompt = context.prompt
    hashes = context.hasher()(SimpleNamespace(block_hashes=[], num_tokens=len(prompt), all_token_ids=prompt))
    return len(prompt), hashes[-1] if hashes else None
