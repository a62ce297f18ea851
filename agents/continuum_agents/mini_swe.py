"""mini-swe-agent, tagged and timed: one program in one process, ``python -m continuum_agents.mini_swe``.

Runs in mini-swe-agent's own environment (``environments``). Its agent, its configuration files and its command
execution are its own; ours are a model class that calls through our client and an environment class with a clock.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import minisweagent
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment, BubblewrapEnvironmentConfig
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from minisweagent.utils.serialize import recursive_merge

from continuum_agents.channel import Channel
from continuum_agents.edge import command_name, ending, kill_children, recording_client, serve, turn_ended
from continuum_agents.litellm_loading import warm_up
from continuum_agents.protocol import BUBBLEWRAP, DOCKER, LOCAL, Done, Start, ToolEnded
from continuum_client import OpenAI
from continuum_client.program import Program

BASH = "bash"
"""mini-swe-agent's one tool."""


class Tagged:
    """The part of a model that tags. Comes before mini-swe-agent's class in the order of bases.

    Every query is a call of ``program`` through our client: the id, the tools that ran since the last call and their
    seconds go with it, and it is recorded. mini-swe-agent's retries happen inside a query and tell the same again.
    """

    def __init__(
        self, *, client: OpenAI, program: Program, channel: Channel, step_limit: int = 0, **config: Any
    ) -> None:
        super().__init__(**config)
        self._client = client
        self._program = program
        self._channel = channel
        self._step_limit = step_limit
        self.turns = 0

    def query(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """mini-swe-agent's query, tagged."""
        if self._step_limit and self.turns + 1 >= self._step_limit:
            self._program.last_step()  # the agent makes no further call, whatever the reply says
        with self._program.active():
            message: dict[str, Any] = super().query(messages, client=self._client, **options)  # type: ignore[misc]
        return message

    def _query(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        response = super()._query(messages, **options)  # type: ignore[misc]
        self._channel.say(turn_ended(self.turns, response))
        self.turns += 1
        return response


class TaggedModel(Tagged, LitellmModel):  # type: ignore[misc]
    """mini-swe-agent's default model, by tool calls."""


class TaggedTextModel(Tagged, LitellmTextbasedModel):  # type: ignore[misc]
    """Its model that finds the command in the text."""


MODELS = {"litellm": TaggedModel, "litellm_textbased": TaggedTextModel}
"""By mini-swe-agent's own names for them (``model_class``)."""


class Timed:
    """The part of an environment that has a clock around each command. Comes before mini-swe-agent's class."""

    def __init__(self, *, program: Program, channel: Channel, model: Tagged, **config: Any) -> None:
        self._program = program
        self._channel = channel
        self._model = model
        super().__init__(**config)

    def execute(self, action: dict[str, Any], cwd: str = "", **options: Any) -> dict[str, Any]:
        """Run a command; its seconds go to the server with the next call."""
        tool = self._program.tool(name_of(str(action.get("command", ""))))
        returncode: int | None = None
        try:
            with tool:
                output: dict[str, Any] = super().execute(action, cwd, **options)  # type: ignore[misc]
            returncode = output.get("returncode")
        except Submitted:
            returncode = 0
            raise
        except KeyboardInterrupt:
            kill_children()
            raise
        finally:
            seconds = round(tool.seconds or 0.0, 6)
            self._channel.say(ToolEnded(max(0, self._model.turns - 1), tool.name, seconds, returncode))
        output.setdefault("extra", {})["tool_time_s"] = seconds
        return output

    def cleanup(self) -> None:
        """What the environment leaves outside this process."""


class TimedLocal(Timed, LocalEnvironment):  # type: ignore[misc]
    """Commands as they are, in the workspace."""


class TimedBubblewrap(Timed, BubblewrapEnvironment):  # type: ignore[misc]
    """Commands in a sandbox that sees the system read-only and the workspace."""

    def cleanup(self) -> None:
        """mini-swe-agent's own folder for it."""
        BubblewrapEnvironment.cleanup(self)


class TimedDocker(Timed, DockerEnvironment):  # type: ignore[misc]
    """Commands in a container of the task's image."""

    def cleanup(self) -> None:
        """Remove the container, and wait for it: mini-swe-agent leaves that to a process of its own."""
        container, self.container_id = getattr(self, "container_id", None), None
        if container is not None:
            remove = [self.config.executable, "rm", "-f", "-v", container]
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(remove, capture_output=True, stdin=subprocess.DEVNULL, timeout=REMOVE_TIMEOUT_S)


ENVIRONMENTS = {LOCAL: TimedLocal, BUBBLEWRAP: TimedBubblewrap, DOCKER: TimedDocker}
SANDBOX = ("--die-with-parent", "--unshare-pid")
"""Of bubblewrap: a command killed at its limit takes its children along."""
REMOVE_TIMEOUT_S = 60


def name_of(command: str) -> str:
    """The name a command is tagged and recorded under: the first real program it runs."""
    return command_name(command, BASH)


def recorded_name(name: str, arguments: str) -> str:
    """The same for a tool call as the model wrote it; the function's name where the arguments were not kept."""
    if name != BASH:
        return name
    try:
        return name_of(json.loads(arguments)["command"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return name


def configuration(start: Start) -> dict[str, Any]:
    """mini-swe-agent's configuration files merged, then what the harness was told.

    Raises:
        FileNotFoundError: a file mini-swe-agent does not find.
        ValueError: a model class that we have no tagged form of.
    """
    config: dict[str, Any] = recursive_merge(*(get_config_from_spec(spec) for spec in start.config))
    model, environment, agent = (dict(config.get(part) or {}) for part in ("model", "environment", "agent"))
    model_class = model.pop("model_class", None) or "litellm"
    if model_class not in MODELS:
        raise ValueError(f"model.model_class {model_class!r}: there are {', '.join(MODELS)}")
    environment.pop("environment_class", None)
    if start.tool_limit_s is not None:
        environment["timeout"] = start.tool_limit_s
    environment = PLACES[start.environment](start, environment)
    if start.step_limit is not None:
        agent["step_limit"] = start.step_limit
    model["model_name"] = f"openai/{start.model}"
    return {"model_class": model_class, "model": model, "environment": environment, "agent": agent}


def check(start: Start) -> None:
    """Raises: what ``configuration`` does; pydantic's ValidationError for the agent's part."""
    AgentConfig(**configuration(start)["agent"])


def _in_the_workspace(start: Start, config: dict[str, Any]) -> dict[str, Any]:
    env = {name: value for name, value in config.get("env", {}).items() if name != "BASH_ENV"}
    return {**config, "cwd": start.workspace, "env": env}


def _in_a_sandbox(start: Start, config: dict[str, Any]) -> dict[str, Any]:
    stock = BubblewrapEnvironmentConfig().wrapper_args
    return {**_in_the_workspace(start, config), "wrapper_args": [*config.get("wrapper_args", stock), *SANDBOX]}


def _in_a_container(start: Start, config: dict[str, Any]) -> dict[str, Any]:
    labels = [word for label in start.labels for word in ("--label", label)]
    return {**config, "image": start.image, "run_args": [*config.get("run_args", ["--rm"]), *labels]}


PLACES = {LOCAL: _in_the_workspace, BUBBLEWRAP: _in_a_sandbox, DOCKER: _in_a_container}
"""An environment's configuration, for the program's place."""


def run(start: Start, channel: Channel) -> Done:
    """The program, from its task to its submission. Whatever happens, its end is told to the server and recorded."""
    client = recording_client(start, "mini-swe-agent", recorded_name)
    config = configuration(start)
    program = client.program(start.program_id)
    with ending(program):
        model = MODELS[config["model_class"]](
            client=client,
            program=program,
            channel=channel,
            step_limit=int(config["agent"].get("step_limit", 0)),
            **config["model"],
        )
        timed = ENVIRONMENTS[start.environment]
        environment = timed(program=program, channel=channel, model=model, **config["environment"])
        try:
            agent = DefaultAgent(model, environment, **{**config["agent"], "output_path": Path(start.trajectory)})
            info: dict[str, Any] = agent.run(start.task)
        finally:
            environment.cleanup()
        return Done(str(info.get("exit_status")), str(info.get("submission") or ""), model.turns)


if __name__ == "__main__":
    serve(minisweagent.__version__, warm_up, run, check)
