"""How answers end: cut at each byte, too short, too long, miscounted. test_stream_shapes has the forms of streams."""

from __future__ import annotations

import json
from typing import Any

import pytest
from continuum_traces.wire.answers import ANY_LENGTH, Answer, Asked, EventBytes, asked_in


def stream(tokens: int | None = 3, ids: int = 0, reason: str = "length", choices: int = 1) -> bytes:
    events: list[Any] = [
        {"choices": [{"index": index, "text": "x", "token_ids": [1] * ids, "finish_reason": reason}]}
        for index in range(choices)
    ]
    if tokens is not None:
        events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def read(data: bytes) -> Answer:
    answer, events = Answer(done=False), EventBytes()
    answer.take_events(events.feed(data), lambda: 1.0)
    answer.take_events(events.last(), lambda: 1.0)
    return answer


@pytest.mark.parametrize("asked", [ANY_LENGTH, Asked(3, 3)])
def test_an_answer_has_ended_with_its_finish_reason_wherever_the_stream_is_cut(asked: Asked) -> None:
    whole = stream()
    complete = whole.index(b"\n\n")  # of the event with the reason; counts and [DONE] follow
    ended = [read(whole[:size]).ending(asked).error is None for size in range(len(whole) + 1)]
    assert ended == [size >= complete for size in range(len(whole) + 1)]


def test_an_answer_that_lacks_a_choice_has_not_ended() -> None:
    one_of_two = stream(reason="stop").removesuffix(b"data: [DONE]\n\n")
    assert [read(one_of_two).ending(Asked(choices=n)).end for n in (1, 2)] == ["finished", "cut"]


def test_damage_before_the_end_of_an_answer_fails_it_and_after_it_does_not() -> None:
    assert read(b"data: {bro\n\n" + stream()).ending().code == "invalid-json"
    assert read(stream().replace(b"[DONE]", b"[DO")).ending().error is None


@pytest.mark.parametrize("mark", [b"[DONE]", b'"[DONE]"', b" [DONE] ", b"[DONE]\r"])
def test_forms_of_the_end_of_a_stream(mark: bytes) -> None:
    assert read(stream().replace(b"[DONE]", mark)).done


def test_a_byte_order_mark_hides_nothing_however_the_bytes_are_cut() -> None:
    whole = b"\xef\xbb\xbf" + stream()
    for size in (1, 2, 3, 4, len(whole)):
        answer, events = Answer(done=False), EventBytes()
        for start in range(0, len(whole), size):
            answer.take_events(events.feed(whole[start : start + size]), lambda: 1.0)
        assert (answer.prompt_tokens, answer.done, answer.first_token_s) == (5, True, 1.0)


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([{"name": "get_"}, {"name": "weather"}, {"arguments": "{}"}], ["get_weather"]),
        ([{"name": "get_"}, {"name": "get_weather"}, {"arguments": "{}"}], ["get_weather"]),
        ([{"name": "ls"}, {"name": "ls", "arguments": "{"}, {"name": "ls", "arguments": "}"}], ["ls"]),
        ([{"name": "ls", "arguments": "{}"}, {"name": "ls", "arguments": "{}"}], ["ls", "ls"]),
        ([{"name": "ls", "arguments": "{"}, {"name": "grep", "arguments": "}"}], ["ls"]),
    ],
)
def test_the_name_of_a_tool_in_parts(parts: list[dict[str, str]], calls: list[str]) -> None:
    answer = Answer(done=False)
    for part in parts:
        answer.take({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": part}]}}]}, 1.0)
    assert [tool.name for tool in answer.asked] == calls


@pytest.mark.parametrize(
    ("answer", "asked", "code"),
    [
        (stream(9), Asked(10, 10), "short"),
        (stream(10), Asked(10, 10), ""),
        (stream(11), Asked(10, 10), "long"),
        (stream(9, reason="stop"), Asked(0, 10), ""),
        (stream(9), Asked(0, 10), "short"),  # it says that it reached the limit
        (stream(9, reason="abort"), Asked(0, 10), "short"),
        (stream(10, reason="abort"), Asked(10, 10), "stream"),
        (stream(9, reason="stop"), Asked(10), "short"),
        (stream(19, reason="stop", choices=2), Asked(10, 10), "short"),
        (stream(20, reason="stop", choices=2), Asked(10, 10), ""),
        (stream(10, ids=10), Asked(10, 10), ""),
        (stream(10, ids=9), Asked(10, 10), "miscounted"),
        (stream(None, ids=9), Asked(10, 10), "short"),
        (stream(None), Asked(10, 10), ""),  # at the limit, it says
        (stream(None, reason="stop"), Asked(10, 10), "stream"),
    ],
)
def test_lengths(answer: bytes, asked: Asked, code: str) -> None:
    ending = read(answer).ending(asked)
    assert (ending.code, ending.error is None) == (code, not code)
    assert (ending.missing > 0) == (code == "short")


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, ANY_LENGTH),
        ({"max_tokens": 7}, Asked(0, 7)),
        ({"max_completion_tokens": 7, "min_tokens": 3}, Asked(3, 7)),
        ({"max_tokens": 7, "ignore_eos": True}, Asked(7, 7)),
        ({"max_tokens": 7, "ignore_eos": True, "stop": ["x"]}, Asked(0, 7)),
        ({"max_tokens": None, "min_tokens": "3"}, Asked(3)),
        ({"n": 3}, Asked(choices=3)),
        ({"n": 2, "prompt": ["a", "b"]}, Asked(choices=4)),
        ({"prompt": [1, 2]}, ANY_LENGTH),
        ({"prompt": [[1, 2], [3]]}, Asked(choices=2)),
    ],
)
def test_the_length_that_a_request_asks_for(body: dict[str, Any], asked: Asked) -> None:
    assert asked_in(body) == asked
