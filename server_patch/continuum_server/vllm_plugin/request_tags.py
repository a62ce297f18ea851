"""Read the tags of HTTP requests, and write them in the form that the scheduler reads. Pure functions without vLLM.

A tag can be in ``vllm_xargs``, in a field of the body (``job_id`` and similar fields come from the authors' preview,
``program_id`` from ThunderAgent) or in a header. The first of these three that has the tag counts. If none has the
program id, an id by which the agent names its conversation is used (``continuum_server.foreign_ids``). A malformed tag
is dropped, and its name is reported. Members that are no tags are vLLM's to accept or refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Any

from continuum_traces.schema import Tags
from continuum_traces.wire import (
    PROGRAM_ID_ALIASES,
    TAG_NAMES,
    read_program_id,
    tags_from_headers,
    tags_from_xargs,
    tags_to_xargs,
)

from continuum_server.foreign_ids import ForeignId, FoundId, find_id, is_source
from continuum_server.retention import NAMES, Retention, read_retention

CLIENT_KEY = "continuum_client"
"""xarg with the digest of the request's API key. Only the HTTP side can set it, and not a client."""
NAMESPACE_KEY = "continuum_namespace"
"""xarg with the digest of the API key to which the request's program ids belong. A client cannot set it."""
WEIGHT_KEY = "continuum_weight"
"""xarg with the weight of that key among the keys that share the engine; unset: 1. A client cannot set it."""
SOURCE_KEY = "continuum_source"
"""xarg with the place of the program id if that is no tag (``ForeignId.source``). A client cannot set it."""
WEAK_KEY = "continuum_weak"
"""xarg, 1 if several conversations can have this program id (``ForeignId.weak``). A client cannot set it."""
IGNORED_KEY = "continuum_ignored"
"""xarg with the names of hints in the request that do nothing, with commas between them. A client cannot set it."""

BODY_FIELDS = ("program_id", "job_id", "is_last_step", "last_func_call", "this_func_call")
_DIGEST = re.compile("[0-9a-f]{16}")
_VALID: dict[str, Callable[[Any], bool]] = {
    CLIENT_KEY: lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None,
    NAMESPACE_KEY: lambda value: isinstance(value, str) and _DIGEST.fullmatch(value) is not None,
    WEIGHT_KEY: lambda value: type(value) in (int, float) and 0.0 < value < inf,
    SOURCE_KEY: is_source,
    WEAK_KEY: lambda value: value == 1,
    IGNORED_KEY: lambda value: isinstance(value, str) and NAMES.issuperset(value.split(",")),
}
"""The xargs that only the HTTP side can set, and which values it sets."""
_OURS = frozenset((*TAG_NAMES, *PROGRAM_ID_ALIASES, *_VALID))

Json = dict[str, Any]

MOST_XARGS = 256
"""Largest number of xargs. If a request has more, none is read or passed on."""
LONGEST_XARGS = 1 << 16
"""Largest number of characters and list items in all xargs together. If a request has more, none is read or passed
on."""


class UnreadableBody(ValueError):
    """A body is JSON, but Python's parser cannot read it, so that its tags are unknown."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. An API key is represented by 16 hexadecimal digits of its digest."""

    client: str | None = None
    """The API key of the request; None: it has none. Limits per client apply to this key."""
    namespace: str | None = None
    """The API key to which program ids belong; None: the server has fewer than two keys, and all clients share ids."""
    rejected: tuple[str, ...] = ()
    """Names of the xargs that only the HTTP side can set, and whose value it cannot have set."""
    source: str = ""
    """Where the program id was found (``ForeignId.source``); empty: it is a tag, or there is none."""
    weak: bool = False
    """Several conversations can have this program id."""
    weight: float = 1.0
    """Weight of the key among the keys that share the engine."""
    ignored: tuple[str, ...] = ()
    """Names of the request's hints that do nothing (``continuum_server.retention``)."""


ANYBODY = Caller()
"""A caller without a key on a server without keys."""


@dataclass(frozen=True, slots=True)
class TaggedBody:
    body: bytes
    rejected: tuple[str, ...] = ()
    """Names of malformed tags, as the client wrote them."""
    xargs: Any = None
    """The ``vllm_xargs`` of the body, if it is an object."""
    session_id: Any = None
    """The body's own ``session_id``."""

    def tags(self) -> Tags:
        """Return the tags that the scheduler will read."""
        return tags_from_xargs(self.xargs if isinstance(self.xargs, dict) else {}, self.session_id).tags


def read_caller(xargs: Mapping[str, Any]) -> Caller:
    """Read the sender of a request from its ``vllm_xargs``, where the HTTP side wrote it."""
    sent = {key: xargs[key] for key in _VALID if key in xargs}
    if not sent:
        return ANYBODY
    read = {key: value for key, value in sent.items() if _VALID[key](value)}
    return Caller(
        client=read.get(CLIENT_KEY),
        namespace=read.get(NAMESPACE_KEY),
        weight=float(read.get(WEIGHT_KEY, 1.0)),
        rejected=tuple(key for key in sent if key not in read),
        source=read.get(SOURCE_KEY, ""),
        weak=WEAK_KEY in read,
        ignored=tuple(read[IGNORED_KEY].split(",")) if IGNORED_KEY in read else (),
    )


def normalize_tags(
    body: bytes,
    headers: Mapping[str, str],
    caller: Caller | None = ANYBODY,
    nested: bool = False,
    ours_only: bool = False,
    operators: tuple[ForeignId, ...] = (),
) -> TaggedBody:
    """Move all tags of a request to ``vllm_xargs`` in its body. If nothing changes, the same bytes are returned.

    Members that change are appended to the object: of equal names the last counts, for vLLM's parser too, which is also
    ``json``. So the rest of the body is not written again.

    Args:
        body: as received. What is no JSON object is returned unchanged, and vLLM refuses it.
        headers: the headers by lower-case name.
        caller: the sender; None: the sender has no valid key, and all tags are removed.
        nested: on this route the tags are in ``sampling_params.extra_args``.
        ours_only: ids that are not part of our own protocol are not read (``--recognise none``).
        operators: see ``foreign_ids.find_id``.

    Raises:
        UnreadableBody: the body is nested too deep, or contains an integer with too many digits. It must not reach
            vLLM, because the depth at which its parser fails depends on the call stack.
    """
    try:
        text = _utf8(body)
        data = json.loads(text)
        if not isinstance(data, dict):
            return TaggedBody(body)
        changed, rejected = gather(data, headers, caller, nested, ours_only, operators)
        members = json.dumps(changed, separators=(",", ":"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return TaggedBody(body)
    except RecursionError as error:
        raise UnreadableBody("the body is nested too deep") from error
    except ValueError as error:
        raise UnreadableBody(f"the body cannot be read: {error}") from error
    ids = _ids({**data, **changed}, nested)
    if not changed:
        return TaggedBody(body, rejected, *ids)
    end = text.rindex(b"}")  # the object's, because only white space can follow it
    return TaggedBody(b"".join((memoryview(text)[:end], b"," if data else b"", members[1:].encode())), rejected, *ids)


def _ids(members: Mapping[str, Any], nested: bool) -> tuple[Any, Any]:
    """Return the object with the tags and the ``session_id``, as vLLM will read them."""
    session_id = members.get("session_id")
    if not nested:
        return members.get("vllm_xargs"), session_id
    parameters = members.get("sampling_params")
    return parameters.get("extra_args") if isinstance(parameters, dict) else None, session_id


def _utf8(body: bytes) -> bytes:
    encoding = json.detect_encoding(body)
    if encoding.startswith("utf-8"):
        return body
    return body.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")


def gather(
    data: Mapping[str, Any],
    headers: Mapping[str, str],
    caller: Caller | None,
    nested: bool = False,
    ours_only: bool = False,
    operators: tuple[ForeignId, ...] = (),
) -> tuple[Json, tuple[str, ...]]:
    """Return the members of this body that change so that all tags are where the engine reads them. None stands for a
    member that is removed. Also return the names of malformed tags."""
    sent, home = data.get("vllm_xargs"), data.get("sampling_params") if nested else None
    inner = home.get("extra_args") if isinstance(home, dict) else None
    read, more = _opened(sent), _opened(inner)
    xargs = {**(more or {}), **(read or {})}
    others = {name: value for name, value in xargs.items() if name not in _OURS}
    foreign, malformed = (None, ()) if caller is None else find_id(headers, data, ours_only, operators)
    asks = Retention() if caller is None else read_retention({**xargs, **data})
    tags, rejected = ({}, ()) if caller is None else _tags(data, xargs, headers, caller, foreign, asks)
    merged = {**others, **tags}
    changed: Json = {}
    if isinstance(home, dict) and not _same(merged, inner):
        changed["sampling_params"] = {**home, "extra_args": merged or None}
    if not _same({} if nested else merged, sent):
        changed["vllm_xargs"] = None if nested else merged or None
    session_id = None if caller is None else read_program_id(data.get("session_id"))
    if data.get("session_id") != session_id:  # a field of vLLM's, for text only
        changed["session_id"] = session_id
    if caller is None:
        return changed, ()
    unread = [name for name, xargs in (("vllm_xargs", read), ("extra_args", more)) if xargs is None]
    return changed, (*unread, *malformed, *rejected)


def _opened(xargs: Any) -> Json | None:
    """Return the xargs; None: they are no object, or more than anybody sends."""
    if xargs is None:
        return {}
    if not isinstance(xargs, dict) or len(xargs) > MOST_XARGS:
        return None
    lengths = (len(value) for value in chain(xargs, xargs.values()) if isinstance(value, str | list))
    return xargs if sum(lengths) <= LONGEST_XARGS else None


def _tags(
    data: Mapping[str, Any],
    xargs: Json,
    headers: Mapping[str, str],
    caller: Caller,
    foreign: FoundId | None,
    asks: Retention,
) -> tuple[Json, tuple[str, ...]]:
    """Return the tags of a request as xargs, and the names of malformed ones."""
    fields = {name: data[name] for name in BODY_FIELDS if data.get(name) is not None}
    reads = [tags_from_headers(headers), tags_from_xargs(fields), tags_from_xargs(xargs)]
    tags: Json = {}
    for read in reads:
        tags.update(tags_to_xargs(read.tags))
    marks: Json = {CLIENT_KEY: caller.client, NAMESPACE_KEY: caller.namespace}
    if caller.weight != 1.0:
        marks[WEIGHT_KEY] = caller.weight
    if asks.seconds is not None:
        tags.setdefault("kv_ttl_s", asks.seconds)
    if asks.ignored:
        marks[IGNORED_KEY] = ",".join(asks.ignored)
    if foreign is not None and "program_id" not in tags:
        tags["program_id"] = foreign.program_id
        if foreign.parent_id is not None:
            tags.setdefault("parent_id", foreign.parent_id)
        marks |= {SOURCE_KEY: foreign.source, WEAK_KEY: 1 if foreign.weak else None}
    tags.update({key: value for key, value in marks.items() if value is not None})
    rejected = [name for read in reads for name in read.rejected] + [key for key in _VALID if key in xargs]
    return tags, tuple(rejected)


def _same(merged: Json, sent: Any) -> bool:
    """Whether these xargs are exactly the sent ones. Types count, because Python treats False and 0 as equal."""
    if not isinstance(sent, dict):
        return sent is None and not merged
    pairs = ((value, sent.get(name)) for name, value in merged.items())
    return merged.keys() == sent.keys() and all(
        one is other or (type(one) is type(other) and one == other) for one, other in pairs
    )
