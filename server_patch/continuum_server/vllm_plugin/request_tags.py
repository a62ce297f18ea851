"""Read the tags of HTTP requests, and write them in the form that the scheduler reads. Pure functions without vLLM.

A tag can be in ``vllm_xargs``, in a field of the body (``job_id`` and similar fields come from the authors' preview,
``program_id`` from ThunderAgent) or in a header. The first of these three that has the tag counts. A malformed tag is
dropped, and its name is reported.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
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

from continuum_server.vllm_plugin import loose_json
from continuum_server.vllm_plugin.loose_json import Raw

CLIENT_KEY = "continuum_client"
"""xarg with the digest of the request's API key. Only the HTTP side can set it, and not a client."""
NAMESPACE_KEY = "continuum_namespace"
"""xarg with the digest of the API key to which the request's program ids belong. A client cannot set it."""

BODY_FIELDS = ("program_id", "job_id", "session_id", "is_last_step", "last_func_call", "this_func_call")
_CARRIERS = ("vllm_xargs", "kv_hints", "sampling_params")
_OURS = frozenset((*TAG_NAMES, *PROGRAM_ID_ALIASES, CLIENT_KEY, NAMESPACE_KEY))
_DIGEST = re.compile("[0-9a-f]{16}")

Json = dict[str, Any]

MOST_XARGS = 256
"""Largest number of xargs. If a request has more, none is read."""
LOOSE_BYTES = 1 << 20
"""Longest body that is searched for tags although Python's JSON parser refuses it. vLLM refuses longer ones."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. An API key is represented by 16 hexadecimal digits of its digest."""

    client: str | None = None
    """The API key of the request; None: it has none. Limits per client apply to this key."""
    namespace: str | None = None
    """The API key to which program ids belong; None: the server has fewer than two keys, and all clients share ids."""
    rejected: tuple[str, ...] = ()
    """Names of these two xargs whose value was not a digest."""


ANYBODY = Caller()
"""A caller without a key on a server without keys."""


@dataclass(frozen=True, slots=True)
class Tagged:
    body: bytes
    rejected: tuple[str, ...] = ()
    """Names of malformed tags, as the client wrote them."""


def read_caller(xargs: Mapping[str, Any]) -> Caller:
    """Read the sender of a request from its ``vllm_xargs``. Only digests are accepted."""
    sent = {key: xargs[key] for key in (CLIENT_KEY, NAMESPACE_KEY) if key in xargs}
    if not sent:
        return ANYBODY
    read = {key: value for key, value in sent.items() if isinstance(value, str) and _DIGEST.fullmatch(value)}
    return Caller(read.get(CLIENT_KEY), read.get(NAMESPACE_KEY), tuple(key for key in sent if key not in read))


def normalize_tags(
    body: bytes, headers: Mapping[str, str], caller: Caller | None = ANYBODY, nested: bool = False
) -> Tagged:
    """Move all tags of a request to ``vllm_xargs`` in its body. If nothing changes, the same bytes are returned.

    Args:
        body: JSON as received. Any other body is returned unchanged, and vLLM refuses it.
        headers: the headers by lower-case name.
        caller: the sender; None: the sender has no valid key, and all tags are removed.
        nested: on this route the tags are in ``sampling_params.extra_args``.
    """
    try:
        return _tag(body, _loads, _compact, headers, caller, nested)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return Tagged(body)
    except (RecursionError, ValueError):  # a value is nested too deep, or a number is too long
        if len(body) > LOOSE_BYTES:
            return Tagged(body)
    try:
        return _tag(body, loose_json.loads, loose_json.dumps, headers, caller, nested)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return Tagged(body)


def _tag(
    body: bytes,
    loads: Callable[[bytes], Any],
    dumps: Callable[[Any], str],
    headers: Mapping[str, str],
    caller: Caller | None,
    nested: bool,
) -> Tagged:
    data = loads(body)
    if not isinstance(data, dict):
        return Tagged(body)
    _bound(data)
    before = _tags_as_text(data)
    rejected = gather(data, headers, caller, nested)
    if loads is _loads and _tags_as_text(data) == before:
        return Tagged(body, rejected)
    return Tagged(dumps(data).encode("utf-8", "surrogatepass"), rejected)


def _bound(data: Json) -> None:
    """Drop xargs if there are too many, because reading them would delay all other requests."""
    inner = data.get("sampling_params")
    for owner, carrier in ((data, "vllm_xargs"), (inner, "extra_args")):
        if isinstance(owner, dict) and isinstance(xargs := owner.get(carrier), dict) and len(xargs) > MOST_XARGS:
            owner[carrier] = []


def _loads(body: bytes, frames: int = 100) -> Any:
    """Call ``json.loads`` from deeper in the stack than vLLM does, because the limit of nesting depends on the stack.

    So vLLM can parse every body that we can parse.
    """
    return _loads(body, frames - 1) if frames else json.loads(body)


def _compact(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _tags_as_text(data: Json) -> str:
    """Return the part of the body that ``gather`` may change, as text, because in Python False equals 0."""
    members = {name: data[name] for name in (*_CARRIERS, *BODY_FIELDS) if name in data}
    return json.dumps(members, sort_keys=True, default=lambda raw: raw.text)


def gather(data: Json, headers: Mapping[str, str], caller: Caller | None, nested: bool = False) -> tuple[str, ...]:
    """Move all tags of this body to where the engine reads them. Return the names of malformed ones."""
    from_headers = tags_from_headers(headers)
    others, tags, rejected = _clean("vllm_xargs", data.pop("vllm_xargs", None), _is_flat)
    home = data.get("sampling_params") if nested else None
    if isinstance(home, dict):
        more, inner, odd = _clean("extra_args", home.pop("extra_args", None), lambda name, value: True)
        others, tags, rejected = {**more, **others}, {**inner, **tags}, (*rejected, *odd)
    hints = data.pop("kv_hints", None)
    hints = hints.parsed() if isinstance(hints, Raw) else hints
    from_body, odd = _body_tags(data)
    rejected = (*from_headers.rejected, *rejected, *odd, *(("kv_hints",) if None in _retain_s(hints) else ()))
    if caller is None:
        data.pop("session_id", None)
        merged, rejected = others, ()
    else:
        ours = {CLIENT_KEY: caller.client, NAMESPACE_KEY: caller.namespace}
        known = {key: value for key, value in ours.items() if value is not None}
        merged = {**hints_to_xargs(hints), **tags_to_xargs(from_headers.tags), **from_body, **others, **tags, **known}
    if merged and isinstance(home, dict):
        home["extra_args"] = merged
    elif merged and not nested:
        data["vllm_xargs"] = merged
    return rejected


def _clean(carrier: str, sent: Any, fits: Callable[[str, Any], bool]) -> tuple[Json, Json, tuple[str, ...]]:
    """Split ``vllm_xargs`` into other members and tags. Also return the names of dropped members."""
    if sent is None:
        return {}, {}, ()
    if not isinstance(sent, Mapping):
        return {}, {}, (carrier,)
    read = tags_from_xargs(sent)
    others = {name: value for name, value in sent.items() if name not in _OURS and fits(name, value)}
    read_by_now = {*others, *TAG_NAMES, *PROGRAM_ID_ALIASES}
    return others, tags_to_xargs(read.tags), (*read.rejected, *(name for name in sent if name not in read_by_now))


def _is_flat(name: str, value: Any) -> bool:
    """Whether vLLM's schema accepts this member of ``vllm_xargs``."""
    return _is_text(name) and all(_is_scalar(item) for item in (value if isinstance(value, list) else [value]))


def _is_scalar(value: Any) -> bool:
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, int):
        return not isinstance(value, bool) and -(2**63) <= value < 2**64
    return isinstance(value, float) and math.isfinite(value)  # /render cannot write others as JSON


def _is_text(value: str) -> bool:
    """Whether the text can be encoded as UTF-8, which half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _body_tags(data: Json) -> tuple[Json, tuple[str, ...]]:
    """Return the tags among the body's own fields. Remove fields that vLLM would refuse, and return their names.

    ``session_id`` stays in the body, because vLLM reads it too. vLLM only accepts text there.
    """
    sent = {name: data[name] for name in BODY_FIELDS if data.get(name) is not None}
    harmful = [name for name, value in sent.items() if isinstance(value, dict | list | Raw)]
    session_id = sent.get("session_id")
    if session_id is not None and not (isinstance(session_id, str) and _is_text(session_id)):
        named = read_program_id(session_id)
        if named is not None:
            data["session_id"] = named
        elif "session_id" not in harmful:
            harmful.append("session_id")
    for name in harmful:
        del data[name]
    return tags_to_xargs(tags_from_xargs(sent).tags), tuple(harmful)


def hints_to_xargs(envelope: Any) -> Json:
    """Convert the ``kv.retain`` actions of vLLM's ``kv_hints`` envelope to the tag ``kv_ttl_s``.

    Three forms of payload are in use: ``ttl_s``, ``ttl_seconds``, and ``directives`` with a ``duration`` each, of which
    the longest counts and priority 0 is a release. Other actions are ignored.
    """
    seconds = max((wish for wish in _retain_s(envelope) if wish is not None), default=None)
    return {"kv_ttl_s": seconds} if seconds is not None else {}


def _retain_s(envelope: Any) -> list[float | None]:
    """Return all durations in the envelope. None stands for a malformed duration."""
    actions = envelope.get("actions") if isinstance(envelope, Mapping) else None
    wishes = [wish for action in actions for wish in _wishes(action)] if isinstance(actions, list) else []
    return [tags_from_xargs({"kv_ttl_s": wish}).tags.kv_ttl_s for wish in wishes if wish is not None]


def _wishes(action: Any) -> list[Any]:
    payload = action.get("payload") if isinstance(action, Mapping) else None
    if not isinstance(payload, Mapping) or action.get("action_type") != "kv.retain":
        return []
    directives = payload.get("directives")
    durations = [payload.get("ttl_s"), payload.get("ttl_seconds")]
    for directive in directives if isinstance(directives, list) else []:
        if isinstance(directive, Mapping):
            durations.append(0 if directive.get("priority") == 0 else directive.get("duration"))
    return durations
