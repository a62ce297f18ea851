"""The edge of an agent's process, the same for every framework: ready, one program, its last word, out."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from continuum_traces.shell import first_program

from continuum_agents.channel import Channel
from continuum_agents.protocol import CHECK, Done, Failed, Ready, Start, TurnEnded, read_start
from continuum_client import OpenAI
from continuum_client.program import Program
from continuum_client.recorder import Recorder

MAX_NAME_CHARS = 128


class Stopped(KeyboardInterrupt):
    """The harness wants this program to end. A KeyboardInterrupt: the one kind that no layer retries or swallows."""


def serve(
    version: str,
    warm_up: Callable[[], None],
    run: Callable[[Start, Channel], Done],
    check: Callable[[Start], object] = lambda start: None,
) -> NoReturn:
    """Be an agent's process. Its status: 0, over or not needed; 1, an error, told and on stderr; 130, stopped.

    Args:
        version: of the framework.
        warm_up: loads what its first call would load, so that no program pays for it.
        run: plays the program.
        check: raises where the start's configuration cannot be used; what ``protocol.CHECK`` asks for.
    """
    if sys.argv[1:] == [CHECK]:
        sys.exit(_fault(check, read_start(sys.stdin.readline())))
    status = _serve(Channel(), version, warm_up, run)
    sys.stderr.flush()
    os._exit(status)  # all is written; the libraries' own tidying takes seconds


def _fault(check: Callable[[Start], object], start: Start) -> str | None:
    """In one line; None where there is none."""
    try:
        check(start)
    except Exception as error:  # noqa: BLE001 - the edge of the process: files and frameworks fail in many ways
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _serve(channel: Channel, version: str, warm_up: Callable[[], None], run: Callable[[Start, Channel], Done]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness gets it and decides
    signal.signal(signal.SIGTERM, _stop)
    try:
        warm_up()
        channel.say(Ready(version))
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


def recording_client(start: Start, source: str, name: Callable[[str, str], str]) -> OpenAI:
    """A client of the program's server that records into its directory; its key leaves this process's environment.

    Commands inherit that environment, and what they print is shown to the model and recorded.

    Args:
        start: the program.
        source: the framework, for the trace.
        name: from a function's name and arguments to the tool's.
    """
    content: Any = start.content
    recorder = Recorder(start.run_dir, content=content, source=source, tool_key=name)
    key = os.environ.pop("OPENAI_API_KEY", None) or "EMPTY"
    return OpenAI(base_url=start.base_url, api_key=key, dialect=start.dialect, record=recorder, implicit=False)


@contextmanager
def ending(program: Program) -> Iterator[None]:
    """Whatever happens in the body, the program's end is told to the server and recorded."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # undisturbed; who cannot wait sends SIGKILL
        program.close()


def turn_ended(turn: int, response: Any) -> TurnEnded:
    """The event of a reply, with its token counts where it has them."""
    usage = getattr(response, "usage", None)
    return TurnEnded(
        turn,
        prompt_tokens=getattr(usage, "prompt_tokens", None),
        output_tokens=getattr(usage, "completion_tokens", None),
        cached_tokens=getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None),
    )


def command_name(command: str, shell: str) -> str:
    """The name a command is tagged and recorded under: the first real program it runs; ``shell`` where none is."""
    return (first_program(command) or shell)[:MAX_NAME_CHARS]


def tool_name(name: str) -> str:
    """A function's name as it can be sent: models make up names of any kind."""
    return "".join(filter(str.isprintable, name)).strip()[:MAX_NAME_CHARS] or "unknown"


def kill_children() -> None:
    """Kill commands that still run, each with its session."""
    with suppress(OSError):
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with suppress(OSError):
                os.killpg(int(pid), signal.SIGKILL)
