"""Run one of BFCL's web-search entries with tags and tool times: ``python -m continuum_agents.bfcl``.

The module runs in bfcl-eval's own environment (``environments``). The entries, the multi-turn loop, the tools and the
scorer are bfcl-eval's. We add a model handler that sends calls through our client, measure each tool, and choose the
web that the tools see (``bfcl_web``).
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import openai
from bfcl_eval.model_handler import base_handler
from continuum_traces.json_io import write_json
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from continuum_agents.bfcl_benchmark import Benchmark, Handler
from continuum_agents.bfcl_web import use_web
from continuum_agents.channel import Channel
from continuum_agents.edge import Turns, ending, recording_client, serve, tool_name
from continuum_agents.protocol import LIVE, Done, Start
from continuum_client import OpenAI

MAX_RETRIES = 40
"""Retries of the client. They take four to five minutes, so that a program survives a restart of the server."""
NAME = "continuum"
"""Our model's name in BFCL's table of models. BFCL uses the tools API for any name that contains FC."""
ANSWERED, STEP_LIMIT, NOT_DECODED, FAILED = "Answered", "StepLimit", "NotDecoded", "InferenceError"
"""The endings of a program: with an answer, at BFCL's step limit, with calls that BFCL cannot read, with an error."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class BfclSettings:
    """The settings that the KEY=VALUE pairs of ``Start.config`` contain. Pydantic reads the text of the values."""

    web: str = LIVE
    record_web: str | None = None
    data: Path | None = None
    """The folder with entries in BFCL's layout; None: bfcl-eval's own entries."""
    temperature: float = 0.001
    prompting: bool = False
    """Put the functions into the prompt and read the calls from the text, instead of using the tools API."""


class TaggedHandler(Handler):
    """BFCL's handler of OpenAI-compatible servers. It sends its calls through our client.

    The client retries within a call, and every try has the same tags.
    """

    def __init__(self, settings: BfclSettings, model: str, client: OpenAI, turns: Turns) -> None:
        super().__init__(model, settings.temperature, NAME, not settings.prompting)
        self.model_name_underline_replaced = NAME  # BFCL uses it as a Python name
        self.client = client
        self.turns = turns

    def generate_with_backoff(self, **call: Any) -> Any:
        """Call the model as BFCL does. Return the response and its seconds."""
        with self.turns.call():
            response, seconds = super().generate_with_backoff(**call)
        self.turns.turn_ended()
        return response, seconds


Execute = Callable[..., tuple[list[str], dict[str, Any]]]
"""The type of BFCL's function that executes tool calls. It returns the results of the calls, and the simulated objects
(such as a file system) that they used."""


def timed(execute: Execute, turns: Turns, limit_s: float | None) -> Execute:
    """Return a function that executes calls as ``execute`` does, but one after the other. Each call is measured, and is
    stopped after ``limit_s`` seconds."""

    def one(call: str, *context: Any, **options: Any) -> list[str]:
        tool = turns.program.tool(tool_name(call.split("(", 1)[0]))
        try:
            with tool, time_limit(limit_s):
                return execute([call], *context, **options)[0]
        except TimeoutError as error:  # mostly BFCL catches the error itself, and returns this text
            return [f"Error during execution: {error}"]
        finally:
            turns.tool_ended(tool.name, tool.seconds or 0.0)

    def every(calls: list[str], *context: Any, **options: Any) -> tuple[list[str], dict[str, Any]]:
        results, instances = execute([], *context, **options)
        for call in calls:
            results += one(call, *context, **options)
        return results, instances

    return every


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise ``TimeoutError`` in the body after ``seconds``; None: no limit. This works only in the main thread."""
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


def run(start: Start, channel: Channel) -> Done:
    """Run the program from its question to its answer."""
    settings = BfclSettings(**dict(part.split("=", 1) for part in start.config))  # type: ignore[arg-type]
    use_web(settings.web, settings.record_web)
    benchmark = Benchmark(settings.data)
    entry = benchmark.entry(start.instance_id)
    if start.step_limit is not None:
        base_handler.MAXIMUM_STEP_LIMIT = start.step_limit - 1
    step_limit = base_handler.MAXIMUM_STEP_LIMIT + 1  # BFCL stops when it has made more steps than its limit
    client = recording_client(start, "bfcl-eval").with_options(max_retries=MAX_RETRIES)
    program = client.program(start.program_id)
    with ending(program):
        turns = Turns(program, channel, step_limit)
        handler = TaggedHandler(settings, start.model, client, turns)
        execute = base_handler.execute_multi_turn_func_call
        base_handler.execute_multi_turn_func_call = timed(execute, turns, start.tool_limit_s)
        status, result = infer(handler, entry)
    trajectory = Path(start.trajectory)
    trajectory.parent.mkdir(parents=True, exist_ok=True)
    write_json(trajectory, result)
    return Done(status, answer_of(result), passed=benchmark.valid(handler, result))


def infer(handler: TaggedHandler, entry: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Run BFCL's loop. Return the program's ending, and the entry's result in BFCL's format.

    Raises:
        openai.APIError: the server failed or could not be reached, so that the program has no result.
    """
    try:
        steps, metadata = handler.inference(entry, include_input_log=False, exclude_state_log=False)
    except Exception as error:
        if isinstance(error, openai.APIError) and not isinstance(error, openai.BadRequestError):
            raise
        traceback.print_exc()
        failure = {"result": f"Error during inference: {error}", "traceback": traceback.format_exc()}
        return FAILED, {"id": entry["id"], **failure}  # in BFCL's own command, too, the error is the entry's result
    result: dict[str, Any] = json.loads(json.dumps({"id": entry["id"], "result": steps, **metadata}, default=str))
    return _ended(handler, result["result"][-1][-1]), result


def _ended(handler: TaggedHandler, last: Any) -> str:
    try:
        calls = handler.decode_execute(last, has_tool_call_tag=False)
    except Exception:  # noqa: BLE001 - any reply that BFCL cannot decode ends its turn
        return NOT_DECODED if isinstance(last, list) else ANSWERED
    return STEP_LIMIT if calls and handler.turns.count >= handler.turns.step_limit else ANSWERED


def answer_of(result: dict[str, Any]) -> str:
    """Return the model's last reply if it is text; empty if the reply consists of calls or the result is an error."""
    steps = result["result"]
    last = steps[-1][-1] if isinstance(steps, list) else ""
    return last if isinstance(last, str) else ""


def warm_up() -> None:
    """Load the modules that the client loads at its first call, so that no program contains this time."""
    client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", max_retries=0, implicit=False)
    with suppress(openai.APIConnectionError):  # no server listens on this port
        client.chat.completions.create(model="none", messages=[{"role": "user", "content": "."}])


if __name__ == "__main__":
    serve(warm_up, run)
