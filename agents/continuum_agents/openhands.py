"""OpenHands, tagged and timed: one program in one process, ``python -m continuum_agents.openhands``.

Runs in OpenHands' own environment (``environments``). Its agent, prompt, tools, condenser and conversation loop are its
own (openhands-sdk and openhands-tools, what ``openhands-ai`` 1.x is built on); ours are an LLM that calls through our
client, a reader of its events, and a limit on a command's time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openhands.sdk import LLM, LocalConversation, Tool
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import ActionEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.event.llm_convertible.observation import ObservationBaseEvent
from openhands.tools.preset.default import get_default_agent
from pydantic import PrivateAttr

from continuum_agents.channel import Channel
from continuum_agents.edge import command_name, ending, recording_client, serve, tool_name, turn_ended
from continuum_agents.litellm_loading import warm_up
from continuum_agents.openhands_settings import Settings, settings_of
from continuum_agents.openhands_terminal import TERMINAL
from continuum_agents.protocol import Done, Start, ToolEnded
from continuum_client import OpenAI
from continuum_client.program import Program

CONDENSER = "condenser"
"""``usage_id`` of the LLM that shortens a history."""


class Calls:
    """Makes the LLM's calls as calls of the program.

    A condenser's call is a program of its own, a child that is over after one call: its prompt has nothing of the
    conversation's prefix, and must not end the hold of the conversation's blocks.
    """

    def __init__(self, client: OpenAI, program: Program, channel: Channel, step_limit: int) -> None:
        self._client = client
        self._program = program
        self._channel = channel
        self._step_limit = step_limit
        self.turns = 0
        self.metrics: dict[str, Any] = {}
        """OpenHands' own count of the agent's calls."""

    def agent(self, call: Callable[[OpenAI], Any]) -> Any:
        """A step of the agent."""
        if self.turns + 1 >= self._step_limit:
            self._program.last_step()  # no further call, whatever the reply says
        with self._program.active():
            response = call(self._client)
        self._channel.say(turn_ended(self.turns, response.raw_response))
        self.turns += 1
        return response

    def condenser(self, call: Callable[[OpenAI], Any]) -> Any:
        """A summary of the history."""
        with self._program.child() as child:
            child.last_step()
            return call(self._client)


class TaggedLLM(LLM):  # type: ignore[misc]
    """OpenHands' LLM; its retries happen inside a call and tell the same again. Copies make calls of one program."""

    _calls: Calls = PrivateAttr()

    def completion(self, *given: Any, **options: Any) -> Any:
        """OpenHands' completion, through our client."""
        plain = super().completion

        def call(client: OpenAI) -> Any:
            return plain(*given, **{**options, "client": client})

        if self.usage_id == CONDENSER:
            return self._calls.condenser(call)
        response = self._calls.agent(call)
        self._calls.metrics = self.telemetry.metrics.get()
        return response


class ToolClock:
    """Tool times from OpenHands' events: from an action's instant to its observation's.

    Tools of one reply run one after the other: the second begins when the first has ended. Seconds of the wall clock,
    as OpenHands stamps them.
    """

    def __init__(self, program: Program, channel: Channel, calls: Calls) -> None:
        self._program = program
        self._channel = channel
        self._calls = calls
        self._under_way: dict[str, ActionEvent] = {}
        self._free_s = 0.0

    def __call__(self, event: Any) -> None:
        if isinstance(event, ActionEvent):
            self._under_way[event.tool_call_id] = event
        elif isinstance(event, ObservationBaseEvent):
            action = self._under_way.pop(event.tool_call_id, None)
            if action is not None:
                self._ended(action, _instant_s(event), _returncode(event))

    def stop(self) -> None:
        """The program ends here: what still runs has run until now."""
        now_s = datetime.now().timestamp()
        for action in list(self._under_way.values()):
            self._ended(action, now_s, None)
        self._under_way.clear()

    def _ended(self, action: ActionEvent, end_s: float, returncode: int | None) -> None:
        start_s = min(end_s, max(_instant_s(action), self._free_s))
        self._free_s = end_s
        name = recorded_name(action.tool_call.name, action.tool_call.arguments)
        seconds = round(end_s - start_s, 6)
        self._program.ran(name, seconds, ended_ago_s=max(0.0, datetime.now().timestamp() - end_s))
        self._channel.say(ToolEnded(max(0, self._calls.turns - 1), name, seconds, returncode))


def _instant_s(event: Any) -> float:
    return datetime.fromisoformat(event.timestamp).timestamp()


def _returncode(event: Any) -> int | None:
    code = getattr(getattr(event, "observation", None), "exit_code", None)
    return code if isinstance(code, int) else None


def recorded_name(name: str, arguments: str) -> str:
    """The name a tool is tagged and recorded under: a terminal's is that of the program it runs."""
    if name != TERMINAL:
        return tool_name(name)
    try:
        return command_name(json.loads(arguments)["command"], TERMINAL)
    except (ValueError, KeyError, TypeError, AttributeError):
        return TERMINAL


def run(start: Start, channel: Channel) -> Done:
    """The program, from its task to its end. Whatever happens, its end is told to the server and recorded."""
    settings = settings_of(start)
    client = recording_client(start, "openhands", recorded_name)
    program = client.program(start.program_id)
    with ending(program):
        calls = Calls(client, program, channel, settings.conversation["max_iteration_per_run"])
        clock = ToolClock(program, channel, calls)
        base = _git(start.workspace, "rev-parse", "HEAD").strip()
        os.chdir(start.workspace)
        conversation = _conversation(start, settings, calls, clock)
        try:
            conversation.send_message(settings.message(start))
            conversation.run()
            patch = _patch(start.workspace, base)
            return Done(_status(conversation), patch, calls.turns)
        finally:
            clock.stop()
            conversation.close()
            _write_trajectory(start, conversation, calls.metrics)


def _conversation(start: Start, settings: Settings, calls: Calls, clock: ToolClock) -> LocalConversation:
    llm = TaggedLLM(**settings.llm)
    llm._calls = calls
    agent = get_default_agent(llm, cli_mode=True)
    terminal = Tool(name=TERMINAL, params={**settings.terminal, "limit_s": settings.tool_limit_s})
    tools = [terminal if tool.name == TERMINAL else tool for tool in agent.tools]
    condenser = agent.condenser.model_copy(update=settings.condenser)
    agent = agent.model_copy(update={"tools": tools, "condenser": condenser})
    return LocalConversation(
        agent,
        workspace=start.workspace,
        persistence_dir=Path(start.trajectory).parent / "conversation",
        callbacks=[clock],
        visualizer=None,
        delete_on_close=False,
        **settings.conversation,
    )


def _status(conversation: LocalConversation) -> str:
    """Finished, Stuck, or the name OpenHands gives an error (MaxIterationsReached)."""
    status = conversation.state.execution_status
    if status is ConversationExecutionStatus.ERROR:
        errors = [event.code for event in conversation.state.events if isinstance(event, ConversationErrorEvent)]
        return str(errors[-1]) if errors else "Error"
    return str(status.value).capitalize()


def _patch(workspace: str, base: str) -> str:
    """What differs from the code as given, committed or not."""
    _git(workspace, "add", "-A", "--", ".", ":(exclude,glob)**/__pycache__/**")
    return _git(workspace, "diff", "--cached", "--no-color", "--no-ext-diff", "--binary", base)


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "surrogateescape")


def _write_trajectory(start: Start, conversation: LocalConversation, metrics: dict[str, Any]) -> None:
    """The events as one file, in the form of OpenHands' own evaluation logs."""
    history = [event.model_dump(mode="json") for event in conversation.state.events]
    file = Path(start.trajectory)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {"instance_id": start.program_id, "history": history, "metrics": metrics}
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(whole) + "\n", encoding="utf-8")
    unfinished.replace(file)


if __name__ == "__main__":
    serve(version("openhands-sdk"), warm_up, run, settings_of)
