"""Run OpenHands with tags and tool times, for one program: ``python -m continuum_agents.openhands``.

The module runs in OpenHands' own environment (``environments``). The agent, prompt, tools, condenser and conversation
loop are those of openhands-sdk and openhands-tools, on which ``openhands-ai`` 1.x is built. We add three
parts: an LLM class that sends its requests with our client, a callback that reads tool times from events, and a time
limit for commands.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Any

from continuum_traces.json_io import write_json
from openhands.sdk import LLM, LocalConversation, Tool
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import ActionEvent
from openhands.sdk.event.conversation_error import ConversationErrorEvent
from openhands.sdk.event.llm_convertible.observation import ObservationBaseEvent
from openhands.tools.preset.default import get_default_agent
from pydantic import PrivateAttr

from continuum_agents.channel import Channel
from continuum_agents.edge import Turns, ending, recording_client, serve, tool_name
from continuum_agents.litellm_loading import warm_up
from continuum_agents.openhands_settings import OpenHandsSettings, settings_of
from continuum_agents.openhands_terminal import TERMINAL
from continuum_agents.patches import head_of, patch_of
from continuum_agents.protocol import Done, Start
from continuum_client import OpenAI
from continuum_client.recorder import tool_by_command

CONDENSER = "condenser"
"""``usage_id`` of the LLM with which OpenHands' condenser shortens a history."""


class TaggedLLM(LLM):  # type: ignore[misc]
    """OpenHands' LLM. Our client sends its calls, as turns of the program. OpenHands retries a failed call itself, and
    each try has the same tags.

    A call of the condenser is a program of its own, a child that ends after this call. Its prompt shares no prefix with
    the conversation, and it must not end the pin of the conversation's KV cache.
    """

    _client: OpenAI = PrivateAttr()
    _turns: Turns = PrivateAttr()

    def completion(self, *arguments: Any, **options: Any) -> Any:
        """Call the model as OpenHands does, through our client."""
        options["client"] = self._client
        if self.usage_id == CONDENSER:
            with self._turns.program.child() as child:
                child.last_step()
                return super().completion(*arguments, **options)
        with self._turns.call():
            response = super().completion(*arguments, **options)
        self._turns.turn_ended()
        return response


class ToolClock:
    """Reads tool times from OpenHands' events: from an action to its observation, in seconds of the wall clock.

    The tools of a reply run one after the other, so a tool starts when the previous tool has ended.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._under_way: dict[str, ActionEvent] = {}
        self._free_s = 0.0

    def __call__(self, event: Any) -> None:
        if isinstance(event, ActionEvent):
            self._under_way[event.tool_call_id] = event
        elif isinstance(event, ObservationBaseEvent):
            action = self._under_way.pop(event.tool_call_id, None)
            if action is not None:
                self._ended(action, _instant_s(event))

    def stop(self) -> None:
        """Report the tools that are still running at the end of the program."""
        now_s = datetime.now().timestamp()
        for action in list(self._under_way.values()):
            self._ended(action, now_s)
        self._under_way.clear()

    def _ended(self, action: ActionEvent, end_s: float) -> None:
        start_s = min(end_s, max(_instant_s(action), self._free_s))
        self._free_s = end_s
        name = recorded_name(action.tool_call.name, action.tool_call.arguments)
        seconds = round(end_s - start_s, 6)
        self._turns.program.ran(name, seconds, ended_ago_s=max(0.0, datetime.now().timestamp() - end_s))
        self._turns.tool_ended(name, seconds)


def _instant_s(event: Any) -> float:
    return datetime.fromisoformat(event.timestamp).timestamp()


def recorded_name(name: str, arguments: str) -> str:
    """Return the tool name of a tool call: for the terminal, the first real program that its command runs."""
    return tool_by_command(name, arguments) if name == TERMINAL else tool_name(name)


def run(start: Start, channel: Channel) -> Done:
    """Run the program from its task to its end."""
    settings = settings_of(start)
    client = recording_client(start, "openhands", recorded_name)
    program = client.program(start.program_id)
    with ending(program):
        turns = Turns(program, channel, settings.conversation["max_iteration_per_run"])
        clock = ToolClock(turns)
        base = head_of(start.workspace)
        os.chdir(start.workspace)
        conversation = _conversation(start, settings, client, turns, clock)
        try:
            conversation.send_message(settings.message(start))
            conversation.run()
            patch = patch_of(start.workspace, base)
            return Done(_status(conversation), patch)
        finally:
            clock.stop()
            conversation.close()
            _write_trajectory(start, conversation)


def _conversation(
    start: Start, settings: OpenHandsSettings, client: OpenAI, turns: Turns, clock: ToolClock
) -> LocalConversation:
    llm = TaggedLLM(**settings.llm)
    llm._client, llm._turns = client, turns
    agent = get_default_agent(llm, cli_mode=True)
    terminal = Tool(name=TERMINAL, params={**settings.terminal, "limit_s": start.tool_limit_s})
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
    """Return Finished, Stuck, or OpenHands' name of an error, such as MaxIterationsReached."""
    status = conversation.state.execution_status
    if status is ConversationExecutionStatus.ERROR:
        errors = [event.code for event in conversation.state.events if isinstance(event, ConversationErrorEvent)]
        return str(errors[-1]) if errors else "Error"
    return str(status.value).capitalize()


def _write_trajectory(start: Start, conversation: LocalConversation) -> None:
    """Write the events to one file, in the format of OpenHands' evaluation logs."""
    history = [event.model_dump(mode="json") for event in conversation.state.events]
    metrics = conversation.agent.llm.metrics.get()
    file = Path(start.trajectory)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"instance_id": start.program_id, "history": history, "metrics": metrics}, indent=None)


if __name__ == "__main__":
    serve(warm_up, run, settings_of)
