"""From whatever a client sent to the ``vllm_xargs`` the scheduler reads. Pure functions on bytes; no vLLM.

Order of trust, the first that names a thing wins: ``vllm_xargs``, the body's own fields (``job_id`` and its companions
are the authors' preview's, ``program_id`` ThunderAgent's), headers. What cannot be read is left out and named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from continuum_traces.wire import (
    PROGRAM_ID_ALIASES,
    TAG_NAMES,
    read_program_id,
    tags_from_headers,
    tags_from_xargs,
    tags_to_xargs,
)

CLIENT_KEY = "continuum_client"
"""xarg in which the HTTP side tells the scheduler whose request it is; a client cannot set it."""

BODY_FIELDS = ("program_id", "job_id", "session_id", "is_last_step", "last_func_call", "this_func_call")
_HINTS = ("kv_hints",)
_MARKERS = tuple(f'"{name}"'.encode() for name in (*BODY_FIELDS, *_HINTS, "vllm_xargs", CLIENT_KEY))

NAMESPACE_KEY = "continuum_namespace"
"""xarg in which the HTTP side names the API key to which the request's program ids belong; a client cannot set it."""

Json = dict[str, Any]

_DIGEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as digests of its API key; None: not known."""

    client: str | None = None
    """For limits per client."""
    namespace: str | None = None
    """Whose program ids it names, where a server has several keys."""


def read_caller(xargs: Mapping[str, Any]) -> Caller:
    """What the HTTP side says of the caller; anything but a digest is nothing."""
    return Caller(_read_digest(xargs.get(CLIENT_KEY)), _read_digest(xargs.get(NAMESPACE_KEY)))


def _read_digest(raw: Any) -> str | None:
    return raw if isinstance(raw, str) and _DIGEST.fullmatch(raw) else None


@dataclass(frozen=True, slots=True)
class Tagged:
    body: bytes
    rejected: tuple[str, ...] = ()
    """Names of tags that were present and not understood."""


def tag_body(body: bytes, headers: Mapping[str, str], client: str | None = None) -> Tagged:
    """The request's body with clean ``vllm_xargs``; the very same bytes where nothing needs to change.

    Args:
        body: JSON as received; what is not an object passes as it is, for vLLM to refuse.
        headers: by lower-case name.
        client: who sends it, for limits per client.
    """
    read = tags_from_headers(headers)
    from_headers = tags_to_xargs(read.tags)
    if client is not None:
        from_headers = {**from_headers, CLIENT_KEY: client}
    data = _object(body) if any(marker in body for marker in _MARKERS) else None
    if data is None:
        return Tagged(_splice(body, from_headers) if from_headers else body, read.rejected)
    before = json.dumps(data, sort_keys=True)  # as text: to Python, False and 0 are equal
    rejected = (*read.rejected, *_merge(data, from_headers, client))
    if json.dumps(data, sort_keys=True) == before:
        return Tagged(body, rejected)
    return Tagged(json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(), rejected)


def _object(body: bytes) -> Json | None:
    try:
        data = json.loads(body)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _merge(data: Json, from_headers: Json, client: str | None) -> tuple[str, ...]:
    """Gather every tag in the body's ``vllm_xargs``; the names of those that were dropped."""
    xargs, rejected = _clean(data.pop("vllm_xargs", None))
    merged = {**hints_to_xargs(data.pop("kv_hints", None)), **from_headers, **_body_tags(data), **xargs}
    merged.pop(CLIENT_KEY, None)
    if client is not None:
        merged[CLIENT_KEY] = client
    if merged:
        data["vllm_xargs"] = merged
    if not isinstance(data.get("session_id", ""), str):  # a field of vLLM's own: another type would be refused
        named = read_program_id(data.pop("session_id"))
        if named is None:
            return (*rejected, "session_id")
        data["session_id"] = named
    return rejected


def _splice(body: bytes, xargs: Json) -> bytes:
    """``vllm_xargs`` as the object's first member, without reading the rest."""
    stripped = body.lstrip()
    if not stripped.startswith(b"{"):
        return body
    rest = stripped[1:].lstrip()
    comma = b"" if rest.startswith(b"}") else b","
    return b'{"vllm_xargs":' + json.dumps(xargs, separators=(",", ":")).encode() + comma + rest


def _clean(sent: Any) -> tuple[Json, tuple[str, ...]]:
    """``vllm_xargs`` with our tags readable and others of a type vLLM takes; the names of what was dropped."""
    if sent is None:
        return {}, ()
    if not isinstance(sent, Mapping):
        return {}, ("vllm_xargs",)
    read = tags_from_xargs(sent)
    ours = {*TAG_NAMES, *PROGRAM_ID_ALIASES}
    others = {name: value for name, value in sent.items() if name not in ours and _is_flat(value)}
    dropped = tuple(name for name in sent if name not in ours and name not in others)
    return {**others, **tags_to_xargs(read.tags)}, (*read.rejected, *dropped)


def _is_flat(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int | float) and not isinstance(item, bool) for item in value)
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _body_tags(data: Json) -> Json:
    """Tags among the body's own fields; ``session_id`` stays for vLLM, which knows it."""
    found = {name: data[name] for name in BODY_FIELDS if data.get(name) is not None}
    return tags_to_xargs(tags_from_xargs(found).tags) if found else {}


def hints_to_xargs(envelope: Any) -> Json:
    """What upstream's ``kv_hints`` envelope asks of us: how long its ``kv.retain`` actions want the KV kept.

    Three payload shapes are in use: ``ttl_s``, ``ttl_seconds``, and ``directives`` of a ``duration`` each, where the
    longest counts and priority 0 is a release. Other actions have no consumer here and change nothing.
    """
    actions = envelope.get("actions") if isinstance(envelope, Mapping) else None
    wishes = [_retain_s(action) for action in actions] if isinstance(actions, list) else []
    seconds = max((wish for wish in wishes if wish is not None), default=None)
    return tags_to_xargs(tags_from_xargs({"kv_ttl_s": seconds}).tags) if seconds is not None else {}


def _retain_s(action: Any) -> float | None:
    payload = action.get("payload") if isinstance(action, Mapping) else None
    if not isinstance(payload, Mapping) or action.get("action_type") != "kv.retain":
        return None
    directives = payload.get("directives")
    found = [payload.get("ttl_s"), payload.get("ttl_seconds")]
    for directive in directives if isinstance(directives, list) else []:
        if isinstance(directive, Mapping):
            found.append(0 if directive.get("priority") == 0 else directive.get("duration"))
    seconds = [float(wish) for wish in found if isinstance(wish, int | float) and not isinstance(wish, bool)]
    return max(seconds, default=None)
