"""Dynamo's vLLM worker with our tags, state and release: ``python -m continuum_server.dynamo_worker``.

Dynamo has an HTTP server of its own, in which our middleware does not run. Its frontend sends the worker what it read
of a session in the headers (``agent_context``), of which ``dynamo.vllm`` passes the session's id to vLLM. This module
passes on the parent's id too, and the mark of a last request (``X-Dynamo-Session-Final``), which is the last turn or a
small request that only ends the session. It adds two routes to the worker's system port (``DYN_SYSTEM_PORT``). Whoever
reaches that port controls the worker, so they ask for no API key.

- ``GET /engine/continuum/state``: as ``GET /continuum/state``, with all programs.
- ``POST /engine/continuum/release`` with ``{"program_id": ID}``: ends the program's hold.

Arguments are those of ``python -m dynamo.vllm``.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from continuum_traces.schema import Tags
from continuum_traces.wire import read_program_id, tags_to_xargs

from continuum_server.vllm_plugin.middleware import ask_engines
from continuum_server.vllm_plugin.state import engine_state


def tagged(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return Dynamo's function that makes a request's sampling parameters, which then contain the session's tags."""

    def build_tagged(request: Mapping[str, Any], *rest: Any, **options: Any) -> Any:
        params = build(request, *rest, **options)
        params.extra_args = {**(params.extra_args or {}), **tags_of(request.get("agent_context"))} or None
        return params

    return build_tagged


def tags_of(agent_context: object) -> dict[str, str | int | float]:
    """Return the ``vllm_xargs`` of a session, as Dynamo's frontend describes it."""
    if not isinstance(agent_context, Mapping):
        return {}
    parent = read_program_id(agent_context.get("parent_session_id"))
    return tags_to_xargs(Tags(parent_id=parent, is_last_step=agent_context.get("session_final") is True or None))


def with_routes(register: Callable[..., None]) -> Callable[..., None]:
    """Return Dynamo's method that adds the worker's routes, which then adds ours too."""

    def register_all(factory: Any, runtime: Any, endpoint: Any, handler: Any, *rest: Any, **options: Any) -> None:
        register(factory, runtime, endpoint, handler, *rest, **options)
        core = handler.engine_client.engine_core

        async def state(body: dict[str, Any]) -> dict[str, Any]:
            answers = await ask_engines(core, "state", {"namespace": None})
            return {"engines": [engine_state(answer) for answer in answers]}

        async def release(body: dict[str, Any]) -> dict[str, Any]:
            program_id = read_program_id(body.get("program_id"))
            if program_id is None:
                raise ValueError("a program id has 1 to 256 printable characters")
            answers = await ask_engines(core, "release", {"program_id": program_id, "namespace": None})
            return {"program_id": program_id, "released": any(answer["released"] for answer in answers)}

        runtime.register_engine_route("continuum/state", state)
        runtime.register_engine_route("continuum/release", release)

    return register_all


def main() -> None:
    handlers: Any = import_module("dynamo.vllm.handlers")
    factory = import_module("dynamo.vllm.worker_factory").WorkerFactory
    handlers.build_sampling_params = tagged(handlers.build_sampling_params)
    factory.register_engine_routes = with_routes(factory.register_engine_routes)
    runpy.run_module("dynamo.vllm", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
