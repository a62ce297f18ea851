"""The command ``continuum-instrument``: it runs a Python agent whose openai clients tag and record their calls."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from continuum_client.dialects import DialectName
from continuum_client.reply import CONTENTS
from continuum_client.settings import CONTENT_VARIABLE, DIALECT_VARIABLE, RECORD_VARIABLE

STARTUP = Path(__file__).parent / "startup"
"""The folder of our ``sitecustomize.py``, which Python imports at its start if the folder is in ``PYTHONPATH``."""
PATH = "PYTHONPATH"


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="continuum-instrument",
        description="Run a Python agent whose openai clients, whoever makes them, tag and record their calls.",
        epilog="Without COMMAND it prints the environment variables that have the same effect.",
    )
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
    record = None if options.record is None else str(Path(options.record).absolute())
    chosen = {DIALECT_VARIABLE: options.dialect, RECORD_VARIABLE: record, CONTENT_VARIABLE: options.content}
    return {
        PATH: os.pathsep.join([str(STARTUP), *folders]),
        **{name: value for name, value in chosen.items() if value is not None},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Replace this process by COMMAND. Exit status 2: there is no such command."""
    options = parser().parse_args(arguments)
    variables = environment(options, os.environ)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        sys.stdout.write("".join(f"{name}={value}\n" for name, value in variables.items()))
        return 0
    program = shutil.which(command[0])
    if program is None:
        sys.stderr.write(f"error: {command[0]}: there is no such command\n")
        return 2
    os.execve(program, command, {**os.environ, **variables})


if __name__ == "__main__":
    raise SystemExit(main())
