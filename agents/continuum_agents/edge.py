"""The parts of an agent's process that all frameworks share: report that it is ready, run one program, report its end,
and exit."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import openai

from continuum_agents.channel import Channel
from continuum_agents.protocol import CHECK, Done, Failed, Ready, ServerState, Start, ToolEnded, TurnEnded, read_start
from continuum_client import OpenAI
from continuum_client.dialects import find_dialect
from continuum_client.errors import MAX_FAILURE_CHARS, is_servers_fault
from continuum_client.program import Program
from continuum_client.recorder import Recorder, tool_as_named
from continuum_client.reply import check_content

MAX_NAME_CHARS = 128


class Stopped(KeyboardInterrupt):
    """The harness has stopped this program. No framework catches or retries a ``KeyboardInterrupt``."""


def serve(
    warm_up: Callable[[], None],
    run: Callable[[Start, Channel], Done],
    check: Callable[[Start], object] = lambda start: None,
) -> NoReturn:
    """Run an agent's process to its end.

    Exit status: 0, the program has ended, or the harness sent no program; 1, an error, which is reported to the harness
    and on stderr; 130, the harness stopped the program.

    Args:
        warm_up: loads the modules that the framework loads at its first call, so that no program contains this time.
        run: runs the program.
        check: raises an exception if the start's configuration cannot be used. With the argument ``protocol.CHECK`` it
            is called instead of ``run``.
    """
    if sys.argv[1:] == [CHECK]:
        sys.exit(_fault(check, read_start(sys.stdin.readline())))
    status = _serve(Channel(), warm_up, run)
    sys.stderr.flush()
    os._exit(status)  # all records are written, and the clean-up of the libraries would take seconds


def _fault(check: Callable[[Start], object], start: Start) -> str | None:
    """Describe the fault of a configuration in one line; None if there is none."""
    try:
        check(start)
    except Exception as error:  # noqa: BLE001 - the edge of the process: files and frameworks fail in many ways
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _serve(channel: Channel, warm_up: Callable[[], None], run: Callable[[Start, Channel], Done]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness receives Ctrl-C too, and stops this process
    signal.signal(signal.SIGTERM, _stop)
    try:
        warm_up()
        channel.say(Ready())
        start = channel.wait_for_start()
        if start is None:
            return 0
        channel.say(run(start, channel))
    except Stopped:
        channel.say(Done("Stopped"))
        return 130
    except Exception as error:  # noqa: BLE001 - the edge of the process: it fails this program
        traceback.print_exc()
        channel.say(Failed(f"{type(error).__name__}: {error}"))
        return 1
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def recording_client(start: Start, source: str, tool_key: Callable[[str, str], str] = tool_as_named) -> OpenAI:
    """Make a client of the program's server that records to the program's directory.

    The API key is removed from this process's environment, because the agent's commands inherit the environment, and
    their output is shown to the model and recorded.

    Args:
        start: the start of the program.
        source: the framework's name; written to the trace.
        tool_key: as for ``Recorder``.
    """
    recorder = Recorder(start.run_dir, check_content(start.content), source, tool_key)
    key = os.environ.pop("OPENAI_API_KEY", None) or "EMPTY"
    return OpenAI(
        base_url=start.base_url,
        api_key=key,
        dialect=find_dialect(start.dialect),
        record=recorder,
        implicit=False,
    )


@contextmanager
def ending(program: Program) -> Iterator[None]:
    """Close the program after the ``with`` block, also after an error: send its release and complete its record."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only SIGKILL can interrupt the closing
        program.close()


class Reports:
    """Reports calls and tools to the harness as they end."""

    def __init__(self, channel: Channel) -> None:
        self.count = 0
        """The number of calls that were answered."""
        self._channel = channel
        self._failure: str | None = None

    def turn_ended(self) -> None:
        """Report a reply."""
        self._channel.say(TurnEnded())
        self.count += 1

    def server(self, failure: str | None) -> None:
        """Report that the server has failed a call; None: that it answers again."""
        if failure != self._failure:
            self._failure = failure
            self._channel.say(ServerState(failure))

    def tool_ended(self, name: str, seconds: float) -> None:
        """Report a tool that ran after the latest reply."""
        self._channel.say(ToolEnded(name, round(seconds, 6)))


class Turns(Reports):
    """Makes calls and tools belong to one program, and reports them.

    Args:
        program: the program.
        channel: the channel to the harness.
        step_limit: the largest number of calls that the framework makes; 0: unknown.
    """

    def __init__(self, program: Program, channel: Channel, step_limit: int = 0) -> None:
        super().__init__(channel)
        self.program = program
        self.step_limit = step_limit

    @contextmanager
    def call(self) -> Iterator[None]:
        """Make the call in this block belong to the program. The call at the step limit is the program's last."""
        if self.step_limit and self.count + 1 >= self.step_limit:
            self.program.last_step()
        try:
            with self.program.active():
                yield
        except openai.APIError as error:  # litellm's exceptions derive from openai's
            status = getattr(error, "status_code", None)
            if status is None or is_servers_fault(int(status)):
                self.server(f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARS])
            raise
        self.server(None)


def tool_name(name: str) -> str:
    """Remove the characters of a function's name that cannot be sent. Models invent names of any kind."""
    return "".join(filter(str.isprintable, name)).strip()[:MAX_NAME_CHARS] or "unknown"


def kill_children() -> None:
    """Kill the commands that are still running, each with all processes of its group."""
    with suppress(OSError):
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(OSError):
                os.killpg(int(pid), signal.SIGKILL)
