"""The command ``continuum-instrument``: it runs a Python agent whose openai clients tag and record their calls."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from continuum_client.child_process import NOT_EXECUTABLE, NOT_FOUND, read_tally, run_command
from continuum_client.dialects import DialectName
from continuum_client.options import CONTENT_VARIABLE, DIALECT_VARIABLE, RECORD_VARIABLE, TALLY_VARIABLE
from continuum_client.reply import CONTENTS
from continuum_client.version import VERSION

STARTUP = Path(__file__).parent / "startup"
"""The folder of our ``sitecustomize.py``, which Python imports at its start if the folder is in ``PYTHONPATH``. A
``.pth`` file would run in every process of the environment."""
PATH = "PYTHONPATH"
OTEL = "opentelemetry.instrumentation.auto_instrumentation"
"""The folder of OpenTelemetry's ``sitecustomize.py``, as a module."""
NO_CALLS = (
    "no call was tagged: the command made none with openai, or its Python did not load Continuum. `python -I` and `-E` "
    "ignore PYTHONPATH, and the environment of the command needs continuum-ttl"
)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="continuum-instrument",
        description="Run a Python agent whose openai clients, whoever makes them, tag and record their calls.",
        epilog="Without COMMAND it prints the environment variables that have the same effect.",
    )
    arguments.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    arguments.add_argument("--dialect", choices=get_args(DialectName), help="which body fields the server accepts")
    arguments.add_argument("--record", metavar="DIR", help="record all calls to this directory")
    arguments.add_argument("--content", choices=CONTENTS, help="how much text is recorded (default: none)")
    arguments.add_argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="such as: python my_agent.py")
    return arguments


def environment(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that instrument a process.

    Args:
        options: the options of the command line.
        environ: the present environment.
    """
    folders = [folder for folder in environ.get(PATH, "").split(os.pathsep) if folder and folder != str(STARTUP)]
    if OTEL in sys.modules:  # opentelemetry-instrument has started us, and has removed its folder from the variable
        folders.insert(0, str(Path(str(sys.modules[OTEL].__file__)).parent))
    record = None if options.record is None else str(Path(options.record).absolute())
    chosen = {DIALECT_VARIABLE: options.dialect, RECORD_VARIABLE: record, CONTENT_VARIABLE: options.content}
    return {
        PATH: os.pathsep.join([str(STARTUP), *folders]),
        **{name: value for name, value in chosen.items() if value is not None},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run COMMAND, and say how many of its calls were tagged. Return its exit status, as a shell does."""
    options = parser().parse_args(arguments)
    variables = environment(options, os.environ)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        sys.stdout.write("".join(f"{name}={value}\n" for name, value in variables.items()))
        return 0
    with tempfile.NamedTemporaryFile(prefix="continuum-calls-") as calls:
        variables[TALLY_VARIABLE] = calls.name
        status = asyncio.run(run_command(command, {**os.environ, **variables}, "continuum-instrument"))
        tally = read_tally(Path(calls.name))
    if status not in (NOT_FOUND, NOT_EXECUTABLE) or tally.calls:
        sys.stderr.write(f"continuum-instrument: {tally if tally.calls else NO_CALLS}\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
