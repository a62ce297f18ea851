"""BFCL's web-search entries, tagged and timed: one program in one process, ``python -m continuum_agents.bfcl``.

Runs in bfcl-eval's own environment (``environments``). Its entries, its multi-turn loop, its tools and its scorer are
its own; ours are a model handler that calls through our client, a clock around each tool, and the web (``bfcl_web``).
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import openai
from bfcl_eval.model_handler import base_handler
from continuum_traces.run_dir import write_json

from continuum_agents.bfcl_benchmark import Benchmark, Handler
from continuum_agents.bfcl_web import LIVE, use_web
from continuum_agents.channel import Channel
from continuum_agents.edge import MAX_NAME_CHARS, ending, recording_client, serve, turn_ended
from continuum_agents.protocol import Done, Start, ToolEnded
from continuum_client import OpenAI
from continuum_client.program import Program

MAX_RETRIES = 40
"""Of the client, four to five minutes together: a server that restarts is waited for."""
NAME = "continuum"
"""Ours in BFCL's table of models, where FC in a name would be a choice of the tools API."""
NAMELESS = "tool"
ANSWERED, STEP_LIMIT, NOT_DECODED, FAILED = "Answered", "StepLimit", "NotDecoded", "InferenceError"
"""How a program ends: with an answer, at BFCL's step limit, with calls BFCL cannot read, with an error in its loop."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the harness says in ``Start.config``, KEY=VALUE."""

    web: str = LIVE
    record_web: str | None = None
    data: str | None = None
    """Folder of entries in BFCL's layout; None: bfcl-eval's own."""
    temperature: float = 0.001
    prompting: bool = False
    """Functions in the prompt and calls in the text, instead of the tools API."""

    @classmethod
    def read(cls, config: tuple[str, ...]) -> Settings:
        """Raises:
        ValueError: a setting there is not.
        """
        given = dict(part.partition("=")[::2] for part in config)
        unknown = given.keys() - cls.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"no such setting: {', '.join(sorted(unknown))}")
        return cls(
            web=given.get("web", LIVE),
            record_web=given.get("record_web"),
            data=given.get("data"),
            temperature=float(given.get("temperature", 0.001)),
            prompting=given.get("prompting") == "True",
        )


class TaggedHandler(Handler):
    """BFCL's handler of OpenAI-compatible servers, through our client.

    Every query is a call of ``program``: the id, the tools that ran since the last call and their seconds go with it,
    and it is recorded. Retries happen inside a query and tell the same again.
    """

    def __init__(
        self, settings: Settings, model: str, client: OpenAI, program: Program, channel: Channel, step_limit: int
    ) -> None:
        super().__init__(model, settings.temperature, NAME, not settings.prompting)
        self.model_name_underline_replaced = NAME  # BFCL makes a Python name of it; a model's may begin with a digit
        self.client = client
        self._program = program
        self._channel = channel
        self._step_limit = step_limit
        self.turns = 0

    def generate_with_backoff(self, **call: Any) -> Any:
        """BFCL's call of the model, tagged. Gives the response and its seconds."""
        if self.turns + 1 >= self._step_limit:
            self._program.last_step()  # BFCL makes no further call, whatever the reply says
        with self._program.active():
            response, seconds = super().generate_with_backoff(**call)
        self._channel.say(turn_ended(self.turns, response))
        self.turns += 1
        return response, seconds


class TimedTools:
    """BFCL's execution of a reply's calls, one after the other as it does, with a clock and a limit around each."""

    def __init__(
        self,
        execute: Callable[..., tuple[list[str], dict[str, Any]]],
        handler: TaggedHandler,
        program: Program,
        channel: Channel,
        limit_s: float | None,
    ) -> None:
        self._execute = execute
        self._handler = handler
        self._program = program
        self._channel = channel
        self._limit_s = limit_s

    def __call__(self, calls: list[str], *context: Any, **options: Any) -> tuple[list[str], dict[str, Any]]:
        """Results of all calls, and the instances they ran on, as BFCL's function gives them."""
        results, instances = self._execute([], *context, **options)
        for call in calls:
            results += self._timed(call, *context, **options)
        return results, instances

    def _timed(self, call: str, *context: Any, **options: Any) -> list[str]:
        tool = self._program.tool(name_of(call))
        try:
            with tool, time_limit(self._limit_s):
                return self._execute([call], *context, **options)[0]
        except TimeoutError as error:  # BFCL's own words, where its code did not catch it
            return [f"Error during execution: {error}"]
        finally:
            seconds = round(tool.seconds or 0.0, 6)
            self._channel.say(ToolEnded(max(0, self._handler.turns - 1), tool.name, seconds))


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """``TimeoutError`` in the body when the time is up. In the main thread; None: no limit."""
    if seconds is None:
        yield
        return
    inside = True

    def expired(number: int, frame: FrameType | None) -> None:
        if inside:
            raise TimeoutError("the tool was stopped at its time limit")

    signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def name_of(call: str) -> str:
    """The function of a call that BFCL is about to evaluate."""
    name = call.split("(", 1)[0].strip()[:MAX_NAME_CHARS]
    return name if name and name.isprintable() else NAMELESS


def recorded_name(name: str, arguments: str) -> str:
    """A tool is recorded under its function's name."""
    return name


def run(start: Start, channel: Channel) -> Done:
    """The program, from its question to its answer. Whatever happens, its end is told to the server and recorded."""
    settings = Settings.read(start.config)
    use_web(settings.web, settings.record_web)
    benchmark = Benchmark(None if settings.data is None else Path(settings.data))
    entry = benchmark.entry(start.instance_id)
    if start.step_limit is not None:
        base_handler.MAXIMUM_STEP_LIMIT = start.step_limit - 1
    step_limit = base_handler.MAXIMUM_STEP_LIMIT + 1  # BFCL stops when it has made more than so many steps
    client = recording_client(start, "bfcl-eval", recorded_name).with_options(max_retries=MAX_RETRIES)
    program = client.program(start.program_id)
    with ending(program):
        handler = TaggedHandler(settings, start.model, client, program, channel, step_limit)
        execute = base_handler.execute_multi_turn_func_call
        base_handler.execute_multi_turn_func_call = TimedTools(execute, handler, program, channel, start.tool_limit_s)
        status, result = infer(handler, entry, step_limit)
    write_json(made(Path(start.trajectory)), result)
    return Done(status, answer_of(result), handler.turns, passed=benchmark.valid(handler, result))


def infer(handler: TaggedHandler, entry: dict[str, Any], step_limit: int) -> tuple[str, dict[str, Any]]:
    """BFCL's loop; gives how it ended and the entry's result as BFCL writes it.

    Raises:
        openai.APIError: the server failed or was not there: that is not the program's own end.
    """
    try:
        steps, metadata = handler.inference(entry, include_input_log=False, exclude_state_log=False)
    except Exception as error:
        if isinstance(error, openai.APIError) and not isinstance(error, openai.BadRequestError):
            raise
        traceback.print_exc()  # as BFCL's own command does: the error is the entry's result
        told = {"result": f"Error during inference: {error}", "traceback": traceback.format_exc()}
        return FAILED, {"id": entry["id"], **told}
    result: dict[str, Any] = json.loads(json.dumps({"id": entry["id"], "result": steps, **metadata}, default=str))
    return _ended(handler, result["result"][-1][-1], step_limit), result


def _ended(handler: TaggedHandler, last: Any, step_limit: int) -> str:
    try:
        calls = handler.decode_execute(last, has_tool_call_tag=False)
    except Exception:  # noqa: BLE001 - whatever BFCL cannot decode ends its turn
        return NOT_DECODED if isinstance(last, list) else ANSWERED
    return STEP_LIMIT if calls and handler.turns >= step_limit else ANSWERED


def answer_of(result: dict[str, Any]) -> str:
    """The last thing the model said in words; empty where it ended with calls or an error."""
    steps = result["result"]
    last = steps[-1][-1] if isinstance(steps, list) else ""
    return last if isinstance(last, str) else ""


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def warm_up() -> None:
    """Load what the client loads at its first call, so that no program pays for it."""
    client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0, implicit=False)
    with suppress(openai.APIConnectionError):  # nobody answers there
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "."}])


if __name__ == "__main__":
    serve(version("bfcl-eval"), warm_up, run)
