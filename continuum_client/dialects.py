"""What each server understands in a request's body (SPEC 7). Pure: tags in, fields out.

Headers are the same everywhere and legal everywhere (``tagging.tag_headers``). Unknown body fields are not: OpenAI,
Dynamo and TensorRT-LLM answer 400 to them. So a dialect adds exactly the fields its server's schema has.

Sources: vLLM 0.32 ``entrypoints/openai/*/protocol.py``; Dynamo ``lib/llm/src/protocols/openai/validate.rs``;
TensorRT-LLM ``serve/openai_protocol.py`` (completions); OpenAI's parameter types in the ``openai`` package. SGLang and
ThunderAgent: as SPEC 7 has them. Tests hold each dialect against a strict copy of its schema, and all of them against
a real vLLM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

from continuum_traces.schema import Tags
from continuum_traces.wire import tags_to_xargs

from continuum_client.errors import UnknownDialect

AUTO = "auto"
"""Not a dialect: ``endpoints`` finds out which one a base URL speaks."""

MAX_CACHE_KEY_CHARS = 64
"""OpenAI refuses a longer ``prompt_cache_key``."""


@dataclass(frozen=True, slots=True)
class Release:
    """The request that ends a program: POST ``path`` at the server's root, outside ``/v1``."""

    path: str
    body: Mapping[str, Any]


class Dialect(Protocol):
    """How one kind of server is told."""

    name: str

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        """Fields to merge into the request's body.

        Args:
            tags: known facts.
            path: ``/chat/completions``, ``/completions`` or ``/responses``: schemas differ.
            output_tokens: how long an answer the client expects.
        """

    def release(self, program_id: str) -> Release | None:
        """The request that lets go of a program's KV; None where the server has none."""


class Headers:
    """Nothing but headers: legal against every server."""

    name = "headers"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {}

    def release(self, program_id: str) -> Release | None:
        return None


class Vllm(Headers):
    """vLLM, with or without our plugin: ``session_id`` and flat ``vllm_xargs`` (str, int, float only)."""

    name = "vllm"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"vllm_xargs": tags_to_xargs(tags)}
        if tags.program_id is not None:
            fields["session_id"] = tags.program_id
        return fields

    def release(self, program_id: str) -> Release | None:
        return Release(f"/continuum/programs/{quote(program_id, safe='')}/release", {})


class Sglang(Headers):
    """SGLang: ``session_id``."""

    name = "sglang"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if tags.program_id is None else {"session_id": tags.program_id}

    def release(self, program_id: str) -> Release | None:
        return Release("/close_session", {"session_id": program_id})


class Dynamo(Headers):
    """Dynamo reads the id and the end in headers; its body has a place for the expected length of the answer."""

    name = "dynamo"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if output_tokens is None else {"nvext": {"agent_hints": {"osl": output_tokens}}}


class TrtLlm(Headers):
    """TensorRT-LLM: ``conversation_params.conversation_id``; not in Responses, whose schema was not checked."""

    name = "trtllm"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        if tags.program_id is None or path == "/responses":
            return {}
        return {"conversation_params": {"conversation_id": tags.program_id}}


class ThunderAgent(Headers):
    """ThunderAgent's proxy: ``program_id``. Without it all requests share one program there."""

    name = "thunderagent"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        return {} if tags.program_id is None else {"program_id": tags.program_id}

    def release(self, program_id: str) -> Release | None:
        return Release("/programs/release", {"program_id": program_id})


class OpenAIHosted(Headers):
    """OpenAI's API: ``prompt_cache_key``, at most 64 characters (longer ids are hashed). Not in ``/completions``."""

    name = "openai"

    def body(self, tags: Tags, path: str, output_tokens: int | None) -> dict[str, Any]:
        if tags.program_id is None or path == "/completions":
            return {}
        return {"prompt_cache_key": cache_key(tags.program_id)}


DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (Headers(), Vllm(), Sglang(), Dynamo(), TrtLlm(), ThunderAgent(), OpenAIHosted())
}

HEADERS = DIALECTS["headers"]

BY_OWNER: dict[str, Dialect] = {
    "vllm": DIALECTS["vllm"],
    "sglang": DIALECTS["sglang"],
    "tensorrt_llm": DIALECTS["trtllm"],
}
"""``owned_by`` of a server's ``/models`` -> dialect. Dynamo says ``nvidia``, as hosted services do: headers serve
both.
"""

BY_HOST: dict[str, Dialect] = {"api.openai.com": DIALECTS["openai"]}


def find_dialect(wanted: str | Dialect) -> Dialect | None:
    """The dialect of a name, or the given one; None for ``auto``.

    Raises:
        UnknownDialect: no such name.
    """
    if not isinstance(wanted, str):
        return wanted
    if wanted == AUTO:
        return None
    try:
        return DIALECTS[wanted]
    except KeyError:
        raise UnknownDialect(f"dialect {wanted!r}: there are {', '.join([*DIALECTS, AUTO])}") from None


def cache_key(program_id: str) -> str:
    """``program_id``, or 63 characters that stand for a longer one: its start and a digest."""
    if len(program_id) <= MAX_CACHE_KEY_CHARS:
        return program_id
    return f"{program_id[:30]}-{hashlib.sha256(program_id.encode()).hexdigest()[:32]}"
