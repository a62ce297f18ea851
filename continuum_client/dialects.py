"""Dialects: the body fields in which each kind of server reads tags. Pure functions from tags to body fields.

Every server accepts our headers (``tagging.tag_headers``), so the headers are the same in all dialects. Not every
server accepts unknown body fields: OpenAI, Dynamo and TensorRT-LLM answer 400. A dialect therefore adds only fields
that are in its server's schema.

Sources: vLLM 0.32 ``entrypoints/openai/*/protocol.py``; Dynamo ``lib/llm/src/protocols/openai/validate.rs``;
SGLang 0.5.23 ``srt/entrypoints/openai/protocol.py``; TensorRT-LLM ``serve/openai_protocol.py``; OpenAI's parameter
types in the ``openai`` package. No source file is recorded for ThunderAgent. docs/client/dialects.md says with what
each dialect is tested.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import quote

from continuum_traces.schema import Tags
from continuum_traces.wire import tags_to_xargs

from continuum_client.errors import UnknownDialect

DialectName = Literal["headers", "vllm", "sglang", "dynamo", "trtllm", "thunderagent", "openai", "auto"]

MAX_CACHE_KEY_CHARS = 64
"""OpenAI refuses a longer ``prompt_cache_key``."""
KEYED = ("/chat/completions", "/responses")
"""The routes with a ``prompt_cache_key``."""


@dataclass(frozen=True, slots=True)
class Release:
    """The request that ends a program: POST ``path`` at the server's root, outside ``/v1``."""

    path: str
    body: Mapping[str, Any]
    events: str | None = None
    """Where the same server takes the program's tool events; None: nowhere."""


class Dialect(Protocol):
    """The body fields and the release request of one kind of server."""

    name: str

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        """Return fields to merge into the request's body.

        Args:
            tags: the tags of the call; a tag that is None is unknown.
            path: ``/chat/completions``, ``/completions`` or ``/responses``, whose schemas differ.
            output_tokens: the expected length of the answer; None: unknown.
        """

    def release(self, program_id: str) -> Release | None:
        """Return the request that releases a program's KV cache; None if the server has no such request."""


class Headers:
    """Headers only, which every server accepts."""

    name = "headers"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {}

    def release(self, program_id: str) -> Release | None:
        return None


class Vllm(Headers):
    """vLLM, with or without our plugin: ``session_id``, and flat ``vllm_xargs`` whose values are str, int or float.

    Some gateways drop all of that on some routes, and headers too, but not OpenAI's ``prompt_cache_key``.
    """

    name = "vllm"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"vllm_xargs": tags_to_xargs(tags)}
        if tags.program_id is not None:
            fields["session_id"] = tags.program_id
            if path in KEYED:
                fields["prompt_cache_key"] = cache_key(tags.program_id)
        return fields

    def release(self, program_id: str) -> Release | None:
        name = quote(program_id, safe="")
        if name in (".", ".."):  # httpx takes these two for steps of a path
            name = name.replace(".", "%2E")
        at = f"/continuum/programs/{name}"
        return Release(f"{at}/release", {}, f"{at}/events")


class Sglang(Headers):
    """SGLang: ``session_id``."""

    name = "sglang"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if tags.program_id is None else {"session_id": tags.program_id}

    def release(self, program_id: str) -> Release | None:
        return Release("/close_session", {"session_id": program_id})


class Dynamo(Headers):
    """Dynamo: the expected length of the answer. Dynamo reads the program id and the last step from the headers."""

    name = "dynamo"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if output_tokens is None else {"nvext": {"agent_hints": {"osl": output_tokens}}}


class TrtLlm(Headers):
    """TensorRT-LLM: ``conversation_params.conversation_id``; not in the Responses API, which does not read it."""

    name = "trtllm"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        if tags.program_id is None or path == "/responses":
            return {}
        return {"conversation_params": {"conversation_id": tags.program_id}}


class ThunderAgent(Headers):
    """ThunderAgent's proxy: ``program_id``. The proxy puts all requests without this field into one program."""

    name = "thunderagent"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if tags.program_id is None else {"program_id": tags.program_id}

    def release(self, program_id: str) -> Release | None:
        return Release("/programs/release", {"program_id": program_id})


class OpenAIHosted(Headers):
    """OpenAI's API: ``prompt_cache_key``, at most 64 characters (longer ids are hashed). Not in ``/completions``."""

    name = "openai"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        if tags.program_id is None or path not in KEYED:
            return {}
        return {"prompt_cache_key": cache_key(tags.program_id)}


class Auto(Headers):
    """Stands for the dialect of the server, which the client asks once. Until the server has answered: headers only."""

    name = "auto"


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (Headers(), Vllm(), Sglang(), Dynamo(), TrtLlm(), ThunderAgent(), OpenAIHosted())
}

HEADERS = DIALECTS["headers"]
AUTO: Dialect = Auto()

BY_OWNER: dict[str, Dialect] = {
    "vllm": DIALECTS["vllm"],
    "sglang": DIALECTS["sglang"],
    "tensorrt_llm": DIALECTS["trtllm"],
    **dict.fromkeys(("litellm", "local", "self_hosted"), DIALECTS["vllm"]),  # gateways: LiteLLM, sglang-router, smg
}
"""The dialect of a server by ``owner_of`` its first model. ``nvidia`` is missing, because both Dynamo and hosted
services send it; these servers get ``headers``."""

LITELLM_CREATED = 1677610602
"""``created`` of all models that LiteLLM's proxy lists. It calls their owner ``openai``, whoever that is."""


def owner_of(model: Mapping[str, Any]) -> str:
    """Return the kind of a server by the first model in its ``/models``, a key of ``BY_OWNER`` if it is known."""
    owner = model.get("owned_by")
    if owner == "openai" and model.get("created") == LITELLM_CREATED:
        return "litellm"
    return owner if isinstance(owner, str) else ""


BY_HOST: dict[str, Dialect] = {"api.openai.com": DIALECTS["openai"]}


def find_dialect(wanted: str | Dialect, source: str = "dialect") -> Dialect:
    """Return the dialect with a name.

    Args:
        wanted: the name, or a dialect object, which is returned as it is.
        source: where the name comes from, for the error message.

    Raises:
        UnknownDialect: no dialect has that name.
    """
    if not isinstance(wanted, str):
        return wanted
    named = {**DIALECTS, AUTO.name: AUTO}
    if wanted not in named:
        raise UnknownDialect(f"{source} {wanted!r}: there are {', '.join(named)}")
    return named[wanted]


def cache_key(program_id: str) -> str:
    """Return ``program_id`` if it has at most 64 characters, else its first 30 characters and a digest."""
    if len(program_id) <= MAX_CACHE_KEY_CHARS:
        return program_id
    return f"{program_id[:30]}-{hashlib.sha256(program_id.encode()).hexdigest()[:32]}"
