"""Run any command as an agent, behind a proxy of its own: ``python -m continuum_agents.command``.

The module runs in the harness's own environment. The start's configuration is the command, in whose words ``{task}``,
``{id}``, ``{model}`` and ``{workspace}`` are replaced. The command runs in the workspace, and its output goes to the
log.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from continuum_agents.channel import Channel
from continuum_agents.edge import Reports, Stopped, serve
from continuum_agents.patches import head_of, patch_of
from continuum_agents.protocol import Done, Start
from continuum_client.proxy import Proxy
from continuum_client.proxy_command import proxy_state
from continuum_client.reply import Reply

FINISHED, LIMIT = "Finished", "LimitsExceeded"
GRACE_S = 5.0
"""Seconds from SIGTERM until a command is killed."""


class Reporter(Reports):
    """Reports the events of the proxy to the harness."""

    def __init__(self, channel: Channel, step_limit: int | None) -> None:
        super().__init__(channel)
        self.at_limit = asyncio.Event()
        """Set when the number of turns has reached the step limit."""
        self._step_limit = step_limit

    def turn(self, reply: Reply) -> None:
        """Report a reply that has ended."""
        self.turn_ended()
        if self._step_limit is not None and self.count >= self._step_limit:
            self.at_limit.set()

    tool = Reports.tool_ended


def words_of(start: Start) -> list[str]:
    """Return the command with the task's values in it. Other braces stay as they are."""
    values = {"{task}": start.task, "{id}": start.instance_id, "{model}": start.model, "{workspace}": start.workspace}
    words = list(start.config)
    for name, value in values.items():
        words = [word if name not in word else word.replace(name, value) for word in words]
    return words


def run(start: Start, channel: Channel) -> Done:
    """Run the command to its end."""
    try:
        return asyncio.run(_run(start, channel))
    except asyncio.CancelledError:
        raise Stopped from None


async def _run(start: Start, channel: Channel) -> Done:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    base = head_of(start.workspace)
    reporter = Reporter(channel, start.step_limit)
    state = proxy_state(start.dialect, start.run_dir, start.content)
    async with Proxy(start.base_url, state, start.program_id, reporter) as proxy:
        models = {"OPENAI_MODEL": start.model, "ANTHROPIC_MODEL": start.model}
        status = await _play(words_of(start), start.workspace, {**proxy.environment(os.environ), **models}, reporter)
    try:
        patch = patch_of(start.workspace, base)
    except (subprocess.CalledProcessError, OSError):  # the agent may have damaged its folder
        patch = ""
    if status is None:
        return Done(LIMIT, patch, passed=False)
    exit_status = FINISHED if status == 0 else f"Exit {status}" if status > 0 else f"Signal {-status}"
    return Done(exit_status, patch, passed=status == 0)


async def _play(words: list[str], folder: str, environment: Mapping[str, str], reporter: Reporter) -> int | None:
    """Run the command. Return its exit status; None if it was stopped at the step limit."""
    process = await asyncio.create_subprocess_exec(
        *words,
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        stderr=sys.stderr.fileno(),
        start_new_session=True,
    )
    waits = [asyncio.create_task(process.wait()), asyncio.create_task(reporter.at_limit.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return process.returncode
    finally:
        for wait in waits:
            wait.cancel()
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and the processes that it started."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    serve(lambda: None, run)
