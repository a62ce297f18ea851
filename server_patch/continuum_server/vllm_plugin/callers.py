"""Find the API key of an HTTP request, with the same keys and the same comparison as vLLM."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import MutableMapping
from typing import Any

from continuum_server.vllm_plugin.request_tags import Caller

Scope = MutableMapping[str, Any]


def caller_of(scope: Scope) -> Caller | None:
    """Return the sender of a request; None: the server has API keys, and the request has none of them."""
    keys = _api_keys(scope["app"])
    token = _token(scope)
    if keys and not (token is not None and _is_one_of(token, keys)):
        return None
    client = None if token is None or not token.strip() else _digest(token.strip())
    return Caller(client, client if len(keys) > 1 else None)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return a request's headers by lower-case name. Of equal names the first counts, as in vLLM."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
    return headers


def _api_keys(app: Any) -> set[str]:
    configured = getattr(getattr(app.state, "args", None), "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    return {key for key in ([configured] if isinstance(configured, str) else configured) if key}


def _token(scope: Scope) -> str | None:
    """Return the text after ``Bearer`` and one space."""
    scheme, _, token = headers_of(scope).get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None


def _is_one_of(token: str, keys: set[str]) -> bool:
    # a list, because a search that ends early would reveal which key is right
    return any([hmac.compare_digest(token.encode(), key.encode()) for key in keys])


def _digest(token: str) -> str:
    """Return the digest that represents the key outside this module, to which the key itself is never passed."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]
