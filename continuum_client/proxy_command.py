"""The command ``continuum-proxy --upstream URL -- COMMAND ...``, which runs an agent behind a ``Proxy``.

COMMAND runs in the foreground with this process's terminal. ``continuum-proxy`` ends with the exit status of COMMAND.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from continuum_client.dialects import AUTO, DIALECTS, find_dialect
from continuum_client.errors import ContinuumError
from continuum_client.recorder import Recorder, tool_by_command
from continuum_client.reply import CONTENTS, check_content
from continuum_client.settings import DIALECT_VARIABLE, RECORD_VARIABLE, ClientSettings, settings_from

try:
    from continuum_client.proxy import Proxy
except ImportError as error:
    sys.exit(f"continuum-proxy needs aiohttp ({error}): pip install 'continuum-ttl[proxy]'")

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of a shell for a command that cannot be started."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to all processes in its foreground, so that COMMAND gets them too."""


def main() -> None:
    """Run COMMAND and exit with its status."""
    options = parser().parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser().error("expected -- COMMAND ...")
    try:
        settings = proxy_settings(options.dialect, options.record, options.content)
        status = asyncio.run(run(options.upstream, settings, options.program, command))
    except (ContinuumError, ValueError) as error:
        parser().error(str(error))
    sys.exit(status)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        "continuum-proxy",
        usage="%(prog)s --upstream URL [options] -- COMMAND ...",
        description="Run a program whose requests to a model server are tagged as one program, without changing it.",
    )
    arguments.add_argument("--upstream", required=True, metavar="URL", help="the server, with or without /v1")
    arguments.add_argument("--program", metavar="ID", help="program id (default: a random one)")
    arguments.add_argument(
        "--dialect",
        default=os.environ.get(DIALECT_VARIABLE) or AUTO,
        help=f"how tags are sent: {', '.join([*DIALECTS, AUTO])} (default: ${DIALECT_VARIABLE}, else auto)",
    )
    arguments.add_argument(
        "--record",
        metavar="DIR",
        default=os.environ.get(RECORD_VARIABLE) or None,
        help=f"directory to which the program is recorded (default: ${RECORD_VARIABLE}, else nothing is recorded)",
    )
    arguments.add_argument("--content", choices=CONTENTS, default="none", help="text that is recorded (default: none)")
    arguments.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return arguments


def proxy_settings(dialect: str, record: str | None, content: str) -> ClientSettings:
    """Return the settings of a proxy.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name.
    """
    recorder = None
    if record is not None:
        recorder = Recorder(record, check_content(content), source="continuum-proxy", tool_key=tool_by_command)
    return settings_from({"dialect": find_dialect(dialect) or "auto", "record": recorder, "implicit": False})


async def run(upstream: str, settings: ClientSettings, program_id: str | None, command: Sequence[str]) -> int:
    """Run a command behind a proxy. Return its exit status, or 128 + N if signal N killed it."""
    async with Proxy(upstream, settings, program_id) as proxy:
        try:
            process = await asyncio.create_subprocess_exec(*command, env=proxy.environment(os.environ))
        except OSError as error:
            sys.stderr.write(f"continuum-proxy: {command[0]}: {error.strerror}\n")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        pass_on_signals(process)
        status = await process.wait()
        return status if status >= 0 else 128 - status


def pass_on_signals(process: asyncio.subprocess.Process) -> None:
    """Send the signals that this process gets to the command, except those that the terminal sends to both."""
    loop = asyncio.get_running_loop()

    def send(number: int) -> None:
        if process.returncode is None and not (number in FROM_TERMINAL and _in_foreground()):
            process.send_signal(number)

    for number in (*PASSED_ON, *FROM_TERMINAL):
        loop.add_signal_handler(number, send, number)


def _in_foreground() -> bool:
    """Whether the terminal sends its Ctrl-C to our process group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


if __name__ == "__main__":
    main()
