"""The virtual environments of agent frameworks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from continuum_agents.environments import (
    COMMAND,
    FRAMEWORKS,
    Framework,
    NoPython,
    find_framework,
    python_of,
    set_up,
)

from continuum_bench.errors import BenchError
from continuum_bench.show import print_notice


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of an agent framework."""

    framework: Framework
    python: Path

    def run(self, module: str, *arguments: str, asked: str, stdin: str = "") -> str:
        """Run a module in this environment, and return its stdout.

        Args:
            module: name of the module.
            arguments: its command-line arguments.
            asked: the user's option that needs the module; the beginning of the error message.
            stdin: its standard input.

        Raises:
            BenchError: the module failed; the message ends with the last line of its stderr.
        """
        done = subprocess.run(
            [str(self.python), "-I", "-m", module, *arguments],
            capture_output=True,
            text=True,
            input=stdin,
            env={**os.environ, **self.framework.variables()},
        )
        if done.returncode:
            raise BenchError(f"{asked}: {(done.stderr.strip().splitlines() or ['it printed no error'])[-1]}")
        return done.stdout


def environment_of(name: str) -> Environment:
    """Return the environment of a framework.

    Raises:
        AgentEnvironmentError: the framework is unknown or not installed.
    """
    if name == COMMAND.name:
        return Environment(COMMAND, Path(sys.executable))
    framework = find_framework(name)
    return Environment(framework, python_of(framework))


def setup_environments(names: Sequence[str], anew: bool) -> int:
    """Create the environments of these frameworks; by default, of all whose Python version this machine has."""
    for framework in [find_framework(name) for name in names or FRAMEWORKS]:
        try:
            set_up(framework, print_notice, anew)
        except NoPython as error:
            if names:
                raise
            print_notice(f"left out: {error}")
    return 0
