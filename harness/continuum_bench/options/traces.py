"""Options of ``traces``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_traces.exporters import EXPORTERS

from continuum_bench.options.declare import (
    ABOVE_ZERO,
    ARGUMENT,
    NOT_NEGATIVE,
    WRITABLE,
    Option,
    Options,
    at_least,
    named,
    one_of,
)
from continuum_bench.options.run import Format, Json, TokensReading
from continuum_bench.options.together import Without

Source = Annotated[Path, Option("Trace file to read.", argument=True)]
Target = Annotated[Path, WRITABLE, Option("File to write. It is gzipped if its name ends in .gz.", argument=True)]
Overwrite = Annotated[bool, Option("Replace the file to write if it exists.")]


@dataclass(frozen=True, kw_only=True)
class ImportOptions(Options):
    """Options of ``traces import``."""

    source: Source
    target: Target
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class ImportLogOptions(Options):
    """Options of ``traces import-log``.

    Attributes:
        source: Request log of a server, or the folder that holds it or several.
        target: Folder to write; several runs of a log have a folder each in it.
        gpu: GPU that the server ran on. `doctor` lists the known GPUs.
        model: Model that it served. `doctor` lists the known models. Default: as in the log.
    """

    source: Annotated[Path, ARGUMENT]
    target: Annotated[Path, ARGUMENT]
    gpu: str | None = None
    model: str | None = None


@dataclass(frozen=True, kw_only=True)
class SynthOptions(Options):
    """Options of ``traces synth``.

    Attributes:
        profile: swebench, bfcl, openhands, claude-code, long-prompts, chat, or a profile file.
        mix: Several kinds of programs in random order, with their shares: chat:0.9,swebench:0.1. A kind is a profile or
            a trace file. Each program gets its kind as metadata, for --by kind.
        num_programs: Number of programs.
        seed: Seed. Equal seeds give equal files.
        length_scale: Multiply every length in tokens by this factor.
    """

    target: Target
    profile: str = "swebench"
    mix: Annotated[str | None, Without("profile", "--mix names the profiles")] = None
    num_programs: Annotated[int, at_least(1), named("-n", "--num-programs")] = 100
    seed: Annotated[int, NOT_NEGATIVE] = 0
    tokens_reading: TokensReading = "context"
    length_scale: Annotated[float, ABOVE_ZERO] = 1.0
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """Options of ``traces fit``.

    Attributes:
        name: Name of the profile.
    """

    source: Source
    target: Target
    name: str = "fitted"
    tokens_reading: TokensReading = "context"
    form: Format = None
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class StatsOptions(Options):
    """Options of ``traces stats``.

    Attributes:
        source: Trace file, or swebench or bfcl for the bundled programs.
    """

    source: Annotated[str, ARGUMENT]
    form: Format = None
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """Options of ``traces convert``.

    Attributes:
        to: Format to write. Of a trace: continuum, agentic-mooncake, mooncake or dynamo. Of a run's
            scheduler_timestamps: preview (the JSON file of the papers' public preview), or native (a run directory,
            from such a file).
    """

    source: Source
    target: Target
    to: Annotated[str, one_of("continuum", *EXPORTERS, "preview", "native")]
    form: Annotated[Format, Without("to", "--format is for traces", lambda to: to in ("preview", "native"))] = None
    overwrite: Overwrite = False
