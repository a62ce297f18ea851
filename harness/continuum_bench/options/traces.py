"""Options of ``traces``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from continuum_bench.options.declare import ABOVE_ZERO, NOT_NEGATIVE, SHARE, WRITABLE, Options
from continuum_bench.options.run import Format, TokensReading
from continuum_bench.options.together import Needs, Without

Source = Annotated[Path, typer.Argument(help="Trace file to read.")]
Target = Annotated[Path, WRITABLE, typer.Argument(help="File to write. It is gzipped if its name ends in .gz.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file to write if it exists.")]


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Options of ``traces import``."""

    source: Source
    target: Target
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class SynthOptions(Options):
    """Options of ``traces synth``."""

    target: Target
    profile: str = "swebench"
    """swebench, bfcl, openhands, claude-code, long-prompts, chat, or a profile file."""
    mix: Annotated[str | None, Without("profile", "--mix names the profiles")] = None
    """Several kinds of programs in random order, with their shares: chat:0.9,swebench:0.1. A kind is a profile or a
    trace file. Each program gets its kind as metadata, for --by kind."""
    num_programs: Annotated[int, typer.Option("-n", "--num-programs", min=1)] = 100
    """Number of programs."""
    seed: Annotated[int, NOT_NEGATIVE] = 0
    """Seed. Equal seeds give equal files."""
    tokens_reading: TokensReading = "context"
    length_scale: Annotated[float, ABOVE_ZERO] = 1.0
    """Multiply every length in tokens by this factor."""
    runs_per_task: Annotated[int, typer.Option(min=1)] = 1
    """Runs of each task. They begin with the same prompt; the first runs of all come first."""
    task_correlation: Annotated[float, SHARE, Needs("runs_per_task")] = 0.75
    """Rank correlation of turns, and of tokens, between two runs of a task."""
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """Options of ``traces fit``."""

    source: Source
    target: Target
    name: str = "fitted"
    """Name of the profile."""
    tokens_reading: TokensReading = "context"
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """Options of ``traces convert``."""

    source: Source
    target: Target
    to: str
    """Format to write. Of a trace: continuum, agentic-mooncake, mooncake or llmservingsim. Of a run's
    scheduler_timestamps: preview (the JSON file of the papers' public preview), or native (a run directory, from such a
    file)."""
    form: Annotated[Format, Without("to", "--format is for traces", lambda to: to in ("preview", "native"))] = None
    overwrite: Overwrite = False
