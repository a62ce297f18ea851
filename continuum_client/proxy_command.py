"""The command ``continuum-proxy --upstream URL -- COMMAND ...``, which runs an agent behind a ``Proxy``.

COMMAND runs in the foreground with this process's terminal. ``continuum-proxy`` ends with the exit status of COMMAND.
With ``--listen`` there is no COMMAND: the proxy serves agents until a signal ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from continuum_traces.names import harmless

from continuum_client.changing_lines import KNOWN, ChangingLines
from continuum_client.child_process import NOT_EXECUTABLE, NOT_FOUND, run_command
from continuum_client.dialects import AUTO, DIALECTS, find_dialect
from continuum_client.endpoints import shown
from continuum_client.errors import ContinuumError
from continuum_client.options import DIALECT_VARIABLE, RECORD_VARIABLE, ClientOptions, ClientState
from continuum_client.recorder import Recorder, tool_by_command
from continuum_client.reply import CONTENTS, check_content
from continuum_client.version import VERSION

if TYPE_CHECKING:
    from continuum_client.proxy import Proxy

NEVER_CALLED = "the command never called the proxy; its model URL must come from OPENAI_BASE_URL or ANTHROPIC_BASE_URL"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run COMMAND and exit with its status, or serve agents until a signal comes."""
    options = parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if bool(command) == (options.listen is not None):
        parser().error("expected either -- COMMAND ... or --listen HOST:PORT")
    if options.listen is not None and options.program is not None:
        parser().error("--program is for a COMMAND; with --listen each conversation is a program of its own")
    try:
        from continuum_client.proxy import Proxy  # noqa: PLC0415 - without aiohttp the help can be read
    except ImportError as error:
        sys.exit(f"continuum-proxy needs aiohttp ({error}): pip install aiohttp")
    try:
        state = proxy_state(options.dialect, options.record, options.content)
        changing = changing_lines(options.changing_lines)
        proxy = Proxy(options.upstream, state, options.program, listen=options.listen, changing=changing)
        status = asyncio.run(serve(proxy) if options.listen is not None else run(proxy, command))
    except (ContinuumError, ValueError) as error:
        parser().error(str(error))
    sys.exit(status)


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        "continuum-proxy",
        usage="%(prog)s --upstream URL [options] (-- COMMAND ... | --listen HOST:PORT)",
        description="Run a program whose requests to a model server are tagged as one program, without changing it.",
    )
    arguments.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    arguments.add_argument("--upstream", required=True, metavar="URL", help="the server, with or without /v1")
    arguments.add_argument(
        "--listen",
        type=address,
        metavar="HOST:PORT",
        help="instead of COMMAND: serve agents here until a signal comes; each conversation is a program",
    )
    arguments.add_argument("--program", metavar="ID", help="program id (default: a random one)")
    arguments.add_argument(
        "--dialect",
        default=os.environ.get(DIALECT_VARIABLE) or AUTO.name,
        help=f"how tags are sent: {', '.join([*DIALECTS, AUTO.name])} (default: ${DIALECT_VARIABLE}, else auto)",
    )
    arguments.add_argument(
        "--record",
        metavar="DIR",
        default=os.environ.get(RECORD_VARIABLE) or None,
        help=f"directory to which the program is recorded (default: ${RECORD_VARIABLE}, else nothing is recorded)",
    )
    arguments.add_argument("--content", choices=CONTENTS, default="none", help="text that is recorded (default: none)")
    arguments.add_argument(
        "--changing-lines",
        action="append",
        default=[],
        metavar="known|REGEX",
        help="move lines of the system prompt that begin so to the end of the last message, so that a server can reuse "
        "what is between; known: clocks and token budgets that agents send (repeatable)",
    )
    arguments.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return arguments


def changing_lines(given: Sequence[str]) -> ChangingLines | None:
    """Return what ``--changing-lines`` asks for.

    Raises:
        ValueError: a pattern is no regular expression.
    """
    patterns = [pattern for each in given for pattern in (KNOWN if each == "known" else [each])]
    return ChangingLines(patterns) if patterns else None


def proxy_state(dialect: str, record: str | None, content: str) -> ClientState:
    """Return what a proxy keeps of its options.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name.
    """
    recorder = None
    if record is not None:
        recorder = Recorder(record, check_content(content), source="continuum-proxy", tool_key=tool_by_command)
    return ClientState(ClientOptions(find_dialect(dialect), recorder, implicit=False))


async def run(proxy: Proxy, command: Sequence[str]) -> int:
    """Run a command behind a proxy. Return its exit status, or 128 + N if signal N killed it."""
    async with proxy:
        status = await run_command(command, proxy.environment(os.environ), "continuum-proxy")
    if proxy.tally.calls:
        _say(str(proxy.tally))
    elif status not in (NOT_FOUND, NOT_EXECUTABLE):
        _say(f"none of the command's {proxy.requests} requests called a model" if proxy.requests else NEVER_CALLED)
    return status


async def serve(proxy: Proxy) -> int:
    """Serve agents until SIGTERM, SIGINT or SIGHUP, of which those that are ignored stay so."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a shell's background
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with proxy:
            _say(f"listening at {proxy.address}, upstream {shown(proxy.root)}")
            await stop.wait()
    except OSError as error:
        _say(f"--listen: {error.strerror}")
        return 2
    _say(str(proxy.tally))
    return 0


def _say(message: str) -> None:
    sys.stderr.write(f"continuum-proxy: {harmless(message)}\n")


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; IPv6 addresses are in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:9000")
    return host, int(port)


if __name__ == "__main__":
    main()
