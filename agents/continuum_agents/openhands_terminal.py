"""OpenHands' terminal with a time limit for commands. OpenHands' own time-outs leave a command running.

At the limit the command gets Ctrl-C, as when OpenHands itself interrupts a command. If it is still running three
seconds later, it is killed. In both cases OpenHands sees the prompt of the shell and continues.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from openhands.sdk.tool import register_tool
from openhands.tools.terminal import TerminalTool
from openhands.tools.terminal.impl import TerminalExecutor

from continuum_agents.protocol import MARK_VARIABLE

TERMINAL = str(TerminalTool.name)
GRACE_S = 3.0
"""Seconds from Ctrl-C until the command is killed."""


class LimitedExecutor(TerminalExecutor):  # type: ignore[misc]
    """OpenHands' executor with a time limit."""

    def __init__(self, *, limit_s: float | None, **options: Any) -> None:
        super().__init__(**options)
        self._limit_s = limit_s

    def __call__(self, action: Any, conversation: Any = None) -> Any:
        """Run a command."""
        if self._limit_s is None:
            return super().__call__(action, conversation)
        timers = [Timer(self._limit_s, self.interrupt), Timer(self._limit_s + GRACE_S, kill_commands)]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            return super().__call__(action, conversation)
        finally:
            for timer in timers:
                timer.cancel()


class LimitedTerminal(TerminalTool):  # type: ignore[misc]
    """OpenHands' terminal with a ``LimitedExecutor``."""

    name = TERMINAL

    @classmethod
    def create(cls, conv_state: Any, limit_s: float | None = None, **options: Any) -> Sequence[Any]:
        """Make the terminal.

        Args:
            conv_state: OpenHands' state of the conversation.
            limit_s: seconds that a command may take; None: no limit.
            options: options of OpenHands' executor.
        """
        executor = LimitedExecutor(
            limit_s=limit_s,
            working_dir=conv_state.workspace.working_dir,
            full_output_save_dir=conv_state.env_observation_persistence_dir,
            **options,
        )
        tools: Sequence[Any] = super().create(conv_state, executor=executor)
        return tools


def kill_commands() -> None:
    """Kill the commands in this process's terminals, but not the shells. This works only on Linux."""
    mark = f"{MARK_VARIABLE}={os.environ.get(MARK_VARIABLE, '')}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(OSError):
            in_a_terminal = os.getsid(pid) not in (pid, os.getsid(0))
            if in_a_terminal and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)


register_tool(TERMINAL, LimitedTerminal)
