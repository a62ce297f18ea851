"""Run mini-swe-agent with tags and tool times, for one program: ``python -m continuum_agents.mini_swe``.

The module runs in mini-swe-agent's own environment (``environments``). The agent, its configuration files and its
command execution are mini-swe-agent's. We add a model class that calls through our client, and environment classes that
measure commands.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from continuum_traces.shell import first_program
from litellm.exceptions import ContextWindowExceededError
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.docker import DockerEnvironment
from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment, BubblewrapEnvironmentConfig
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel
from minisweagent.utils.serialize import recursive_merge

from continuum_agents.channel import Channel
from continuum_agents.edge import Turns, ending, kill_children, recording_client, serve
from continuum_agents.litellm_loading import warm_up
from continuum_agents.protocol import BUBBLEWRAP, DOCKER, LOCAL, Done, Start
from continuum_client import OpenAI
from continuum_client.recorder import tool_by_command

BASH = "bash"
"""mini-swe-agent's only tool."""


class TaggedQueries:
    """Makes a model's queries belong to the program. The class precedes mini-swe-agent's class in the order of bases.

    mini-swe-agent retries within a query, and every try has the same tags.
    """

    def __init__(self, *, client: OpenAI, turns: Turns, **config: Any) -> None:
        super().__init__(**config)
        self._client = client
        self._turns = turns

    def query(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Query the model as mini-swe-agent does, through our client."""
        with self._turns.call():
            message: dict[str, Any] = super().query(messages, client=self._client, **options)  # type: ignore[misc]
        return message

    def _query(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        response = super()._query(messages, **options)  # type: ignore[misc]
        self._turns.turn_ended()
        return response


class TaggedModel(TaggedQueries, LitellmModel):  # type: ignore[misc]
    """mini-swe-agent's default model class, which reads commands from tool calls."""


class TaggedTextModel(TaggedQueries, LitellmTextbasedModel):  # type: ignore[misc]
    """mini-swe-agent's model class that reads commands from the text of a reply."""


MODELS = {"litellm": TaggedModel, "litellm_textbased": TaggedTextModel}
"""Our classes by mini-swe-agent's names (``model_class``)."""


class Timed:
    """Measures the commands of an environment. The class precedes mini-swe-agent's class in the order of bases."""

    def __init__(self, *, turns: Turns, **config: Any) -> None:
        self._turns = turns
        super().__init__(**config)

    def execute(self, action: dict[str, Any], cwd: str = "", **options: Any) -> dict[str, Any]:
        """Run a command and measure it. The next call sends its time to the server."""
        tool = self._turns.program.tool(first_program(str(action.get("command", ""))) or BASH)
        try:
            with tool:
                output: dict[str, Any] = super().execute(action, cwd, **options)  # type: ignore[misc]
        except KeyboardInterrupt:
            kill_children()
            raise
        finally:
            seconds = round(tool.seconds or 0.0, 6)
            self._turns.tool_ended(tool.name, seconds)
        output.setdefault("extra", {})["tool_time_s"] = seconds
        return output

    def cleanup(self) -> None:
        """Remove the folders and containers of the environment."""


class TimedLocal(Timed, LocalEnvironment):  # type: ignore[misc]
    """Runs commands in the workspace, without a sandbox."""


class TimedBubblewrap(Timed, BubblewrapEnvironment):  # type: ignore[misc]
    """Runs commands in a sandbox that can write to the workspace and only read the rest of the system."""

    def cleanup(self) -> None:
        """Remove the folder that mini-swe-agent makes for the sandbox."""
        BubblewrapEnvironment.cleanup(self)


class TimedDocker(Timed, DockerEnvironment):  # type: ignore[misc]
    """Runs commands in a container of the task's image."""

    def cleanup(self) -> None:
        """Remove the container and wait for its end. mini-swe-agent removes it in a background process instead."""
        container, self.container_id = getattr(self, "container_id", None), None
        if container is not None:
            remove = [self.config.executable, "rm", "-f", "-v", container]
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(remove, capture_output=True, stdin=subprocess.DEVNULL, timeout=REMOVE_TIMEOUT_S)


ENVIRONMENTS = {LOCAL: TimedLocal, BUBBLEWRAP: TimedBubblewrap, DOCKER: TimedDocker}
SANDBOX = ("--die-with-parent", "--unshare-pid")
"""Options of bubblewrap with which the child processes of a command are killed together with the command."""
REMOVE_TIMEOUT_S = 60


def configuration(start: Start) -> dict[str, Any]:
    """Merge mini-swe-agent's configuration files and the options of the harness.

    Raises:
        FileNotFoundError: mini-swe-agent does not find a file.
        ValueError: the model class is not in ``MODELS``.
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
    """Check the configuration.

    Raises:
        FileNotFoundError, ValueError: as ``configuration``. pydantic's ValidationError: a fault in the agent's part.
    """
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
"""For each place where commands can run, the function that completes the environment's configuration."""


def run(start: Start, channel: Channel) -> Done:
    """Run the program from its task to its submission."""
    client = recording_client(start, "mini-swe-agent", tool_by_command)
    config = configuration(start)
    program = client.program(start.program_id)
    with ending(program):
        turns = Turns(program, channel, int(config["agent"].get("step_limit", 0)))
        model = MODELS[config["model_class"]](client=client, turns=turns, **config["model"])
        environment = ENVIRONMENTS[start.environment](turns=turns, **config["environment"])
        try:
            agent = DefaultAgent(model, environment, **{**config["agent"], "output_path": Path(start.trajectory)})
            info: dict[str, Any] = agent.run(start.task)
        except ContextWindowExceededError as error:  # an end of the program, as in mini-swe-agent's own batches
            info = {"exit_status": type(error).__name__}
        finally:
            environment.cleanup()
        return Done(str(info.get("exit_status")), str(info.get("submission") or ""))


if __name__ == "__main__":
    serve(warm_up, run, check)
