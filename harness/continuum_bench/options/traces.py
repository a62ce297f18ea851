"""Options of ``traces``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from continuum_bench.options.declare import (
    ARGUMENT,
    WRITABLE,
    OptionGroup,
    named,
)
from continuum_bench.options.run import Format, Json, TokensReading
from continuum_bench.options.together import Without

Source = Annotated[Path, Meta(description="Trace file to read."), ARGUMENT]
Target = Annotated[Path, WRITABLE, Meta(description="File to write. It is gzipped if its name ends in .gz."), ARGUMENT]
Overwrite = Annotated[bool, Meta(description="Replace the file to write if it exists.")]


@dataclass(frozen=True, kw_only=True)
class ImportOptions(OptionGroup):
    """Options of ``traces import``."""

    source: Source
    target: Target
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class ImportLogOptions(OptionGroup):
    """Options of ``traces import-log``."""

    source: Annotated[Path, ARGUMENT]
    """Request log of a server, or the folder that holds it or several."""
    target: Annotated[Path, ARGUMENT]
    """Folder to write; several runs of a log have a folder each in it."""
    gpu: str | None = None
    """GPU that the server ran on. `doctor` lists the known GPUs."""
    model: str | None = None
    """Model that it served. `doctor` lists the known models. Default: as in the log."""


@dataclass(frozen=True, kw_only=True)
class SynthOptions(OptionGroup):
    """Options of ``traces synth``."""

    target: Target
    profile: str = "swebench"
    """swebench, bfcl, openhands, claude-code, long-prompts, chat, or a profile file."""
    mix: Annotated[str | None, Without("profile", "--mix names the profiles")] = None
    """Several kinds of programs in random order, with their shares: chat:0.9,swebench:0.1. A kind is a profile or a
    trace file. Each program gets its kind as metadata, for --by kind."""
    num_programs: Annotated[int, Meta(ge=1), named("-n", "--num-programs")] = 100
    """Number of programs."""
    seed: int = 0
    """Seed. Equal seeds give equal files."""
    tokens_reading: TokensReading = "context"
    length_scale: Annotated[float, Meta(gt=0)] = 1.0
    """Multiply every length in tokens by this factor."""
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(OptionGroup):
    """Options of ``traces fit``."""

    source: Source
    target: Annotated[Path, WRITABLE, ARGUMENT]
    """File to write, plain JSON: a name that ends in .gz is refused."""
    name: str = "fitted"
    """Name of the profile."""
    tokens_reading: TokensReading = "context"
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class StatsOptions(OptionGroup):
    """Options of ``traces stats``."""

    source: Annotated[str, ARGUMENT]
    """Trace file, or swebench or bfcl for the bundled programs."""
    form: Format = None
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(OptionGroup):
    """Options of ``traces convert``."""

    source: Source
    target: Annotated[Path, WRITABLE, ARGUMENT]
    """File to write, or directory with --to native. A trace is gzipped if its name ends in .gz; a preview is plain
    JSON, and that name is refused."""
    to: str
    """Format to write. Of a trace: continuum, agentic-mooncake, mooncake or dynamo. Of a run's scheduler_timestamps:
    preview (the JSON file of the papers' public preview), or native (a run directory, from such a file)."""
    form: Annotated[Format, Without("to", "--format is for traces", lambda to: to in ("preview", "native"))] = None
    overwrite: Overwrite = False
