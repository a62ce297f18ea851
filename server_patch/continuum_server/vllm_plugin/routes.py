"""Find the HTTP routes of vLLM that carry a client's tags to the engine, in vLLM's own router.

These are the routes whose body has ``vllm_xargs`` or sampling parameters. vLLM's API keys guard only some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any, get_args, get_type_hints


class Carrier(Enum):
    """Where a route reads tags, besides the session headers."""

    XARGS = "vllm_xargs of a JSON body"
    EXTRA_ARGS = "sampling_params.extra_args of a JSON body"
    FORM = "vllm_xargs of a form"
    HEADERS = "nowhere else"


Find = Callable[[str], Carrier | None]

_SIGNS = {"vllm_xargs", "sampling_params", "temperature", "max_tokens"}
_READS_ITSELF = {"/invocations": Carrier.XARGS}
"""SageMaker's route has no body in its signature, because it passes its body to another route."""


def carriers(app: Any) -> dict[str, Carrier]:
    """Return the POST routes of a vLLM server that carry tags, by the router's path."""
    carrying: dict[str, Carrier] = {}
    for route in _flat(app.routes):
        path = getattr(route, "path", "")
        if "POST" in (getattr(route, "methods", None) or ()):
            carrier = _READS_ITSELF.get(path) or _carrier(route.endpoint)
            if carrier is not None:
                carrying[path] = carrier
    return carrying


def finder(app: Any) -> Find:
    """Return a function that maps a request's path to its carrier, or to None if the route carries no tags."""
    by_path = carriers(app)
    exact = {path: carrier for path, carrier in by_path.items() if "{" not in path}
    patterns = [(re.compile(re.sub(r"\{[^}]*\}", ".+", path)), by_path[path]) for path in by_path if "{" in path]

    def find(path: str) -> Carrier | None:
        return exact.get(path) or next((carrier for pattern, carrier in patterns if pattern.fullmatch(path)), None)

    return find


def guarded(path: str) -> bool:
    """Whether vLLM itself answers 401 to a request for ``path`` without a valid key."""
    try:
        from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX  # noqa: PLC0415 - newer versions only
    except ImportError:
        return path.startswith("/v1")
    return path.startswith(GUARDED_PREFIX)


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Yield all routes, including those of included routers, which FastAPI nests from 0.137 on."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from [route] if inner is None else _flat(inner.routes)


def _carrier(endpoint: Any) -> Carrier | None:
    try:
        hints = get_type_hints(endpoint, include_extras=True)
    except (NameError, TypeError, AttributeError):  # the route of another plugin, which may generate text
        return Carrier.XARGS
    for name, hint in hints.items():
        for model in _models(hint) if name != "return" else ():
            fields = model.model_fields
            if _SIGNS.isdisjoint(fields):
                continue
            if any(type(extra).__name__ == "Form" for extra in getattr(hint, "__metadata__", ())):
                return Carrier.FORM
            if "sampling_params" in fields:
                return Carrier.EXTRA_ARGS
            takes_any = model.model_config.get("extra") == "allow"
            return Carrier.XARGS if takes_any or "vllm_xargs" in fields else Carrier.HEADERS
    return None


def _models(hint: Any) -> Iterator[Any]:
    """Yield the pydantic models in a type or in a union of types."""
    if hasattr(hint, "model_fields"):
        yield hint
    for inner in get_args(hint):
        yield from _models(inner)
