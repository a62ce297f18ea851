"""Turns what a client sent into the tags that the scheduler reads. Pure functions; no vLLM.

A tag may be in ``vllm_xargs``, in a field of the body (``job_id`` and the like come from the authors' preview,
``program_id`` from ThunderAgent) or in a header. The first of these three that has it counts. What cannot be read is
left out, and its name is reported.
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
"""xarg that tells the scheduler which API key sent the request. The HTTP side sets it; a client cannot."""
NAMESPACE_KEY = "continuum_namespace"
"""xarg that tells the scheduler to which API key the request's program ids belong. A client cannot set it."""

BODY_FIELDS = ("program_id", "job_id", "session_id", "is_last_step", "last_func_call", "this_func_call")
_CARRIERS = ("vllm_xargs", "kv_hints", "sampling_params")
_OURS = frozenset((*TAG_NAMES, *PROGRAM_ID_ALIASES, CLIENT_KEY, NAMESPACE_KEY))
_DIGEST = re.compile("[0-9a-f]{16}")

Json = dict[str, Any]

MOST_XARGS = 256
"""Of a request with more xargs than this, none is read."""
LOOSE_BYTES = 1 << 20
"""Longest body in which we look for tags though Python's parser refuses it; a longer one is left to vLLM to refuse."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. API keys are 16 hexadecimal digits of a digest."""

    client: str | None = None
    """The key that the request came with; None: it had none. Limits per client count by this key."""
    namespace: str | None = None
    """The key to which its program ids belong; None: the server has fewer than two keys, and ids are shared by all."""
    rejected: tuple[str, ...] = ()
    """Names of these two xargs that held something else than a digest."""


ANYBODY = Caller()
"""A caller without a key on a server without keys."""


@dataclass(frozen=True, slots=True)
class Tagged:
    body: bytes
    rejected: tuple[str, ...] = ()
    """Names of the tags that could not be read, as the client wrote them."""


def read_caller(xargs: Mapping[str, Any]) -> Caller:
    """The sender of the request with these ``vllm_xargs``. Only our own digests are accepted."""
    found = {key: xargs[key] for key in (CLIENT_KEY, NAMESPACE_KEY) if key in xargs}
    if not found:
        return ANYBODY
    read = {key: value for key, value in found.items() if isinstance(value, str) and _DIGEST.fullmatch(value)}
    return Caller(read.get(CLIENT_KEY), read.get(NAMESPACE_KEY), tuple(key for key in found if key not in read))


def normalize_tags(
    body: bytes, headers: Mapping[str, str], caller: Caller | None = ANYBODY, nested: bool = False
) -> Tagged:
    """The request's body with all its tags in clean ``vllm_xargs``. If nothing changes, the bytes are the same.

    Args:
        body: JSON as received. What is no JSON object is returned as it is, for vLLM to refuse.
        headers: by lower-case name.
        caller: the sender; None: it has no valid key, and all its tags are removed.
        nested: this route has the tags in ``sampling_params.extra_args``.
    """
    try:
        return _tag(body, _loads, _compact, headers, caller, nested)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return Tagged(body)
    except (RecursionError, ValueError):  # a value is nested too deep or a number is too long: such a tag is dropped
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
    """Drop a mapping of too many xargs: reading it would delay all other requests."""
    inner = data.get("sampling_params")
    for owner, carrier in ((data, "vllm_xargs"), (inner, "extra_args")):
        if isinstance(owner, dict) and isinstance(found := owner.get(carrier), dict) and len(found) > MOST_XARGS:
            owner[carrier] = []


def _loads(body: bytes, frames: int = 100) -> Any:
    """``json.loads``, called from deeper in the stack than in vLLM, because its limit of nesting depends on the stack.

    So whatever we can parse vLLM can parse too, also members that a later member of the same name replaces.
    """
    return _loads(body, frames - 1) if frames else json.loads(body)


def _compact(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def _tags_as_text(data: Json) -> str:
    """The part of the body that ``gather`` may change. As text, because in Python False equals 0."""
    found = {name: data[name] for name in (*_CARRIERS, *BODY_FIELDS) if name in data}
    return json.dumps(found, sort_keys=True, default=lambda raw: raw.text)


def gather(data: Json, headers: Mapping[str, str], caller: Caller | None, nested: bool = False) -> tuple[str, ...]:
    """Move all tags of this body to where the engine reads them. Returns the names of those that were dropped."""
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
    """From ``vllm_xargs``: the members that are not ours, the tags, and the names of what was dropped."""
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
    """Whether the text can be encoded: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _body_tags(data: Json) -> tuple[Json, tuple[str, ...]]:
    """Tags among the body's own fields, and the names of those that vLLM would refuse and that were taken out.

    ``session_id`` stays in the body, because vLLM reads it too; it accepts only text.
    """
    found = {name: data[name] for name in BODY_FIELDS if data.get(name) is not None}
    harmful = [name for name, value in found.items() if isinstance(value, dict | list | Raw)]
    session_id = found.get("session_id")
    if session_id is not None and not (isinstance(session_id, str) and _is_text(session_id)):
        named = read_program_id(session_id)
        if named is not None:
            data["session_id"] = named
        elif "session_id" not in harmful:
            harmful.append("session_id")
    for name in harmful:
        del data[name]
    return tags_to_xargs(tags_from_xargs(found).tags), tuple(harmful)


def hints_to_xargs(envelope: Any) -> Json:
    """How long the ``kv.retain`` actions of upstream's ``kv_hints`` envelope want the KV kept.

    Three payload shapes are in use: ``ttl_s``, ``ttl_seconds``, and ``directives`` of a ``duration`` each, where the
    longest counts and priority 0 is a release. Other actions change nothing here.
    """
    seconds = max((wish for wish in _retain_s(envelope) if wish is not None), default=None)
    return {"kv_ttl_s": seconds} if seconds is not None else {}


def _retain_s(envelope: Any) -> list[float | None]:
    """All durations that the envelope asks for; None stands for one that cannot be read."""
    actions = envelope.get("actions") if isinstance(envelope, Mapping) else None
    found = [wish for action in actions for wish in _wishes(action)] if isinstance(actions, list) else []
    return [tags_from_xargs({"kv_ttl_s": wish}).tags.kv_ttl_s for wish in found if wish is not None]


def _wishes(action: Any) -> list[Any]:
    payload = action.get("payload") if isinstance(action, Mapping) else None
    if not isinstance(payload, Mapping) or action.get("action_type") != "kv.retain":
        return []
    directives = payload.get("directives")
    found = [payload.get("ttl_s"), payload.get("ttl_seconds")]
    for directive in directives if isinstance(directives, list) else []:
        if isinstance(directive, Mapping):
            found.append(0 if directive.get("priority") == 0 else directive.get("duration"))
    return found
