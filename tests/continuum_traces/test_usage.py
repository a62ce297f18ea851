"""Token counts in every form: answers and importers read the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from continuum_traces.importers.described import usage_of
from continuum_traces.wire.answers import Answer
from continuum_traces.wire.usage import read_usage

INPUT = {"input_tokens": 1370, "output_tokens": 9}
READ, WRITTEN = "cache_read_input_tokens", "cache_creation_input_tokens"


def chat(prompt: int, output: int, total: int | None = None, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": total} | more


def thought(tokens: int) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": tokens}}


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (chat(100, 5, 105), (100, 5, None, 0)),
        (chat(100, 5, 105, prompt_tokens_details={"cached_tokens": 96}), (100, 5, 96, 0)),
        (chat(100, 5, 105, **{READ: 64, WRITTEN: 10}), (100, 5, 64, 0)),
        # the total contains the cache: so does the prompt
        (chat(70, 9, 1079, **{READ: 1000, WRITTEN: 0}), (1070, 9, 1000, 0)),
        (chat(70, 9, 1379, **{READ: 1000, WRITTEN: 300}), (1370, 9, 1000, 0)),
        (chat(70, 9, 379, **{WRITTEN: 300}), (370, 9, None, 0)),
        (chat(70, 9, 1079, prompt_tokens_details={"cached_tokens": 1000}), (1070, 9, 1000, 0)),
        # the total contains the reasoning that the output lacks
        (chat(100, 5, 112, **thought(7)), (100, 12, None, 7)),
        (chat(100, 12, 112, **thought(7)), (100, 12, None, 7)),
        (chat(70, 5, 1082, **{READ: 1000}, **thought(7)), (1070, 12, 1000, 7)),
        # no field names what the total has more, or less
        (chat(100, 5, 112), (100, 5, None, 0)),
        (chat(100, 5, 111, **thought(7)), (100, 5, None, 7)),
        (chat(100, 5, 104), (100, 5, None, 0)),
        # Anthropic's, beside the cache or with it, and OpenAI's responses
        ({"input_tokens": 70, "output_tokens": 9, READ: 1000, WRITTEN: 300}, (1370, 9, 1000, 0)),
        (
            {"input_tokens": 1370, "output_tokens": 9, READ: 1000, WRITTEN: 300, "total_tokens": 1379},
            (1370, 9, 1000, 0),
        ),
        ({"input_tokens": 70, "output_tokens": 9, "input_tokens_details": {"cached_tokens": 64}}, (70, 9, 64, 0)),
        ({"output_tokens": 9}, (None, 9, None, 0)),
    ],
)
def test_a_count_is_what_fields_say(usage: dict[str, Any], counts: tuple[Any, ...]) -> None:
    answer = Answer()
    answer.take({"usage": usage})
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens, answer.reasoning_tokens) == counts
    read = usage_of("file", usage)
    assert (read.prompt_tokens or None, read.output_tokens, read.cached_tokens, read.reasoning_tokens) == counts


PARTS = {"text.input_tokens": 200, "image.input_tokens": 60, "audio.input_tokens": 40, "audio.output_tokens": 5}
PLAIN = {"input_tokens": 300, "output_tokens": 20, "cache_read.input_tokens": 150, "cache_write.input_tokens": 20}


@pytest.mark.parametrize("order", [dict, lambda counts: dict(sorted(counts.items()))])
def test_a_part_of_a_count_is_not_the_count_in_whatever_order(
    order: Callable[[dict[str, int]], dict[str, int]],
) -> None:
    """Names of OpenTelemetry's conventions (opentelemetry-util-genai 1.3b0). Many tools sort attributes."""
    read = read_usage(order({**PARTS, "text.cache_read.input_tokens": 100, **PLAIN}))
    counts = (read.prompt_tokens, read.output_tokens, read.cached_tokens, read.written_tokens)
    assert counts == (300, 20, 150, 20)


def test_parts_alone_are_no_count() -> None:
    assert read_usage(PARTS).prompt_tokens is None
    assert read_usage({"model.input_tokens": 7, "model.output_tokens": 2}).prompt_tokens == 7


@pytest.mark.parametrize(("total", "unnamed"), [(104, 0), (105, 0), (106, 1)])
def test_what_only_the_total_counts_may_belong_to_the_length(total: int, unnamed: int) -> None:
    answer = Answer()
    answer.take({"usage": chat(100, 5, total)})
    assert answer.unnamed_tokens == unnamed


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        *((0, 0), (2**53, 2**53), (2**53 + 1, None), (10**30, None), (1e30, None), (float("inf"), None)),
        *(("5", 5), ("9" * 16, None), ("9" * 5000, None), ("٣", 3), ("-1", None), ("5.5", None)),
        *((5.0, 5), (5.5, None), (-1, None), (True, None), ([5], None)),
    ],
)
def test_what_is_no_count_is_unknown(sent: object, read: int | None) -> None:
    answer = Answer()
    answer.take({"usage": {"prompt_tokens": sent, "completion_tokens": 3}})
    assert (answer.prompt_tokens, answer.output_tokens) == (read, 3)


@pytest.mark.parametrize("usage", ["x", [1], 5, {"prompt_tokens_details": [1]}, {"prompt_tokens": {"a": {}}}])
def test_usage_of_another_form_does_no_harm(usage: object) -> None:
    answer = Answer()
    answer.take({"usage": usage})
    assert (answer.prompt_tokens, answer.output_tokens) == (None, None)
