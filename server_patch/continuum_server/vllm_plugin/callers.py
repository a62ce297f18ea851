"""Find the API key of an HTTP request, with the same keys and the same comparison as vLLM, and the tenant it serves."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, MutableMapping
from functools import cache
from typing import Any

from continuum_server.defaults import KEY_WEIGHTS, TENANT_HEADER
from continuum_server.vllm_plugin.request_tags import Caller

Scope = MutableMapping[str, Any]


def caller_of(scope: Scope) -> Caller | None:
    """Return the sender of a request; None: the server has API keys, and the request has none of them.

    With a valid key, the header that ``TENANT_HEADER`` names may name the tenant for whom a gateway sends the request.
    Tenants share the engine as keys do.
    """
    keys = _api_keys(scope["app"])
    token = _token(scope)
    if keys and not (token is not None and _is_one_of(token, keys)):
        return None
    tenant = headers_of(scope).get(os.environ.get(TENANT_HEADER, "").lower(), "").strip() if keys else ""
    name = tenant or (token or "").strip()
    client = _digest(f"tenant {tenant}" if tenant else name, keys) if name else None
    weight = _weights(os.environ.get(KEY_WEIGHTS, "{}")).get(name, 1.0) if keys else 1.0
    return Caller(client, client if tenant or len(keys) > 1 else None, weight=weight)


@cache
def _weights(text: str) -> dict[str, float]:
    """Return the weights by key or tenant, as ``serve --key-weight`` wrote them."""
    return {str(name): float(weight) for name, weight in json.loads(text).items()}


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


def _digest(name: str, keys: Iterable[str]) -> str:
    """Return the digest that represents a key or a tenant outside this module, to which the key itself is never passed.

    All keys of the server go into it, so that a record does not let one guess a key by itself. It stays the same as
    long as the server has the same keys.
    """
    secret = hashlib.sha256("\n".join(sorted(keys)).encode()).digest()
    return hmac.new(secret, name.encode(), hashlib.sha256).hexdigest()[:16]
