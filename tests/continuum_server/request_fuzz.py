"""Requests with tags of every kind, made from a seed: each a pair, with its tags and without them.

Bodies are written as text, so that they may have what no encoder writes: equal names, escapes, long numbers.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

KEYS = ("fuzz-key-a", "fuzz-key-b")
MESSAGES = '[{"role": "user", "content": "hi"}]'
ROUTES = {
    "/v1/completions": '"prompt": [301, 302, 303], "max_tokens": 1',
    "/v1/chat/completions": f'"messages": {MESSAGES}, "max_tokens": 1',
    "/v1/chat/completions/batch": f'"messages": [{MESSAGES}], "max_tokens": 1',
    "/v1/responses": '"input": "hi", "max_output_tokens": 1, "store": false',
    "/v1/messages": f'"messages": {MESSAGES}, "max_tokens": 1',
    "/invocations": '"prompt": [301, 302, 303], "max_tokens": 1',
    "/inference/v1/generate": '"token_ids": [301, 302], "sampling_params": {"max_tokens": 1EXTRA}',
    "/v1/completions/render": '"prompt": "hi", "max_tokens": 1',
}
CHEAP = ("/v1/completions", "/inference/v1/generate", "/invocations")
AUTHORIZATIONS = ("Bearer fuzz-key-a", "bearer fuzz-key-b", "Bearer wrong", "Basic fuzz-key-a", None)
BESIDE = ("", ', "user": "\\ud800"', ', "unknown": [NaN, Infinity, 1e999]', ', "unknown": ' + "[" * 400 + "]" * 400)
"""What else a body has that is no tag."""
ENCODINGS = ("utf-8", "utf-16", "utf-8-sig")
TYPES = ("application/json", "application/json; charset=utf-8", "text/plain")
NAMES = (
    *("program_id", "job_id", "session_id", "is_last_step", "pred_tool", "pred_tool_s", "last_func_call"),
    *("last_tool_duration_s", "this_func_call", "kv_ttl_s", "parent_id", "continuum_client", "continuum_namespace"),
)
OTHERS = ('"other": "x"', '"": 1', '"vllm_xargs": [1, "a"]', '"extra_args": 0.5')
"""Members that are no tags, and that vLLM accepts."""
FIELDS = ("program_id", "job_id", "session_id", "is_last_step", "last_func_call", "this_func_call")
TEXTS = ("p1", "p2", "", " ", "a\nb", "\ud800", "é\U0001f600", "0123456789abcdef", "true", "5")
NUMBERS = ("0", "1", "-1", "0.5", "NaN", "-Infinity", "1e999", str(2**64), "9" * 401, "-0.0")
SCALARS = (*map(json.dumps, TEXTS), *NUMBERS, "true", "false", "null")
HEADERS = ("X-Session-ID", "X-Dynamo-Session-ID", "X-Dynamo-Session-Final")
HEADER_VALUES = ("p1", "", "a b", "true", "é", "\u0085", "x" * 257, "x" * 5000, "[]", "0123456789abcdef:p1")


@dataclass(frozen=True)
class Sent:
    """One request."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Pair:
    tagged: Sent
    plain: Sent
    """The same without any tag."""


def pairs(seed: int, number: int) -> list[Pair]:
    rng = random.Random(seed)
    return [_pair(rng) for _ in range(number)]


def _pair(rng: random.Random) -> Pair:
    path = rng.choice(CHEAP if rng.random() < 0.6 else list(ROUTES))
    beside = rng.choice(BESIDE) if rng.random() < 0.2 else ""
    encoding = rng.choice(ENCODINGS) if rng.random() < 0.1 else "utf-8"
    kind = rng.choice(TYPES) if rng.random() < 0.1 else TYPES[0]
    authorization = rng.choice(AUTHORIZATIONS) if rng.random() < 0.4 else AUTHORIZATIONS[0]
    common = [("Content-Type", kind)] + ([("Authorization", authorization)] if authorization else [])
    plain = "{" + ROUTES[path].replace("EXTRA", "") + beside + "}"
    extra = ', "extra_args": ' + _carrier(rng, ()) if rng.random() < 0.7 else ""
    tags = "".join(f", {text}" for text in _tags(rng))
    tagged = "{" + ROUTES[path].replace("EXTRA", extra) + beside + tags + "}"
    headers = [(name, rng.choice(HEADER_VALUES)) for name in HEADERS if rng.random() < 0.2]
    return Pair(
        Sent(path, tuple(common + headers), tagged.encode(encoding)),
        Sent(path, tuple(common), plain.encode(encoding)),
    )


def _tags(rng: random.Random) -> list[str]:
    found = [f"{_name(rng, 'vllm_xargs')}: {_carrier(rng, OTHERS)}" for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    found += [f"{_name(rng, name)}: {_value(rng)}" for name in FIELDS if rng.random() < 0.15]
    rng.shuffle(found)
    return found


def _carrier(rng: random.Random, others: tuple[str, ...]) -> str:
    """The text of a ``vllm_xargs`` or ``extra_args``; in the latter vLLM takes ``others`` of any kind."""
    if rng.random() < 0.1:
        return rng.choice(SCALARS)
    if others and rng.random() < 0.01:
        return json.dumps({f"name{number}": None for number in range(20_000)})
    members = [f"{_name(rng, name)}: {_value(rng)}" for name in rng.choices(NAMES, k=rng.randrange(6))]
    return "{" + ", ".join(members + rng.choices(others, k=rng.randrange(2) if others else 0)) + "}"


def _name(rng: random.Random, name: str) -> str:
    if name and rng.random() < 0.1:
        position = rng.randrange(len(name))
        return f'"{name[:position]}\\u{ord(name[position]):04x}{name[position + 1 :]}"'
    return json.dumps(name)


def _value(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(SCALARS)
    if kind < 0.8:
        return "[" + ", ".join(rng.choices(SCALARS, k=rng.randrange(4))) + "]"
    if kind < 0.88:
        return '{"a": ' + rng.choice(SCALARS) + ', "vllm_xargs": {"program_id": "p"}}'
    if kind < 0.94:
        return _deep(rng.choice((50, 500)), rng.random() < 0.5)
    return rng.choice(("9" * 4000, '"' + "k" * 20_000 + '"', "-" + "1" * 4301 + ".5"))


def _deep(levels: int, objects: bool) -> str:
    return '{"a":' * levels + "1" + "}" * levels if objects else "[" * levels + "]" * levels
