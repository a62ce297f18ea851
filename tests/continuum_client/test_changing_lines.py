"""The proxy moves lines of a system prompt that change with each request. It changes nothing else of the request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from any_values import json_values
from fake_server import FakeServer
from hypothesis import given
from hypothesis import strategies as st
from test_proxy import CHAT, through

from continuum_client.changing_lines import KNOWN, ChangingLines, appended

CLOCK = "Current time: 12:03:11"
SYSTEM = f"You code.\n{CLOCK}\nBe brief."
STABLE = "You code.\nBe brief."
USER = {"role": "user", "content": "hello"}
TOOL = {"role": "tool", "tool_call_id": "c", "content": "a.py"}
PART = {"type": "text", "text": "hello"}


def moved(body: Any) -> Any:
    without, lines = ChangingLines(KNOWN).taken(body)
    return appended(without, lines) if lines else without


def messages(*all_of_them: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [*all_of_them]}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            messages(system(SYSTEM), USER),
            messages(system(STABLE), {"role": "user", "content": f"hello\n\n{CLOCK}"}),
        ),
        (
            messages(system(SYSTEM, "developer"), USER, system("ok", "assistant"), TOOL),
            messages(
                system(STABLE, "developer"),
                USER,
                system("ok", "assistant"),
                {**TOOL, "content": f"a.py\n\n{CLOCK}"},
            ),
        ),
        (
            {"system": [{"type": "text", "text": CLOCK}, PART], **messages({"role": "user", "content": [PART]})},
            {"system": [PART], **messages({"role": "user", "content": [PART, {"type": "text", "text": CLOCK}]})},
        ),
        (
            {"system": SYSTEM, **messages(USER)},
            {"system": STABLE, **messages({"role": "user", "content": f"hello\n\n{CLOCK}"})},
        ),
        ({"instructions": SYSTEM, "input": "hello"}, {"instructions": STABLE, "input": f"hello\n\n{CLOCK}"}),
        (
            {"instructions": SYSTEM, "input": [{"type": "function_call_output", "call_id": "c", "output": "a.py"}]},
            {
                "instructions": STABLE,
                "input": [{"type": "function_call_output", "call_id": "c", "output": f"a.py\n\n{CLOCK}"}],
            },
        ),
        (
            {"input": [system(SYSTEM), {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
            {
                "input": [
                    system(STABLE),
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "hello"},
                            {"type": "input_text", "text": CLOCK},
                        ],
                    },
                ]
            },
        ),
    ],
)
def test_lines_go_behind_the_last_message(body: Any, expected: Any) -> None:
    assert moved(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        messages(system(STABLE), USER),  # no such line
        messages(system(SYSTEM), USER, system("I", "assistant")),  # the model is to continue its answer
        messages(system(STABLE), {"role": "user", "content": SYSTEM}),  # not in the system prompt
        messages(USER, system(SYSTEM), USER),  # part of the history
        messages(),
        {"system": SYSTEM, "messages": "hello"},
        {"prompt": SYSTEM},
        {"instructions": SYSTEM, "input": [{"type": "reasoning", "summary": []}]},
    ],
)
def test_other_requests_stay_as_they_are(body: Any) -> None:
    assert moved(body) == body


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x-anthropic-billing-header: cc_version=2.1; cch=01a2b;", False),
        ("<total_tokens>912345 tokens left</total_tokens>", True),
        ("- The current date and time: 2026-11-30 12:03", True),
        ("Current time is 12:03.", True),
        ("current datetime = 2026-11-30T12:03:11Z", True),
        ("Keep the current time in mind.", False),
        ("Current timeouts are 30 s.", False),
        ("Write <total_tokens>5</total_tokens> if asked.", False),
        ("Today's lesson: 12 rules.", False),
    ],
)
def test_known_lines(line: str, changes: bool) -> None:
    assert bool(ChangingLines(KNOWN).taken(messages(system(f"You code.\n{line}"), USER))[1]) is changes


@given(body=st.dictionaries(st.sampled_from(["messages", "input", "system", "instructions", "model"]), json_values()))
def test_any_body_is_taken(body: dict[str, Any]) -> None:
    json.dumps(moved(body))


@given(lines=st.lists(st.sampled_from([CLOCK, "one", "", "Current time: 3"]), max_size=6))
def test_no_line_is_lost(lines: list[str]) -> None:
    head, last = moved(messages(system("\n".join(lines)), USER))["messages"]
    assert sorted(filter(None, f"{head['content']}\n{last['content']}".split("\n"))) == sorted(
        filter(None, [*lines, "hello"])
    )


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        ChangingLines(["("])


def test_a_conversation_whose_clock_moves_is_one_program_with_one_head(vllm: FakeServer) -> None:
    """Without the option each request begins a new program, because its first message is another."""
    for changing, ids in ((None, ["p", "p/2", "p/3"]), (ChangingLines(KNOWN), ["p", "p", "p"])):
        history, before = list[dict[str, Any]](), len(vllm.bodies)
        with through(vllm, changing=changing) as client:
            for turn in range(3):
                history.append({"role": "user", "content": f"step {turn}"})
                body = messages(system(f"You code.\nCurrent time: 12:03:{turn:02}"), *history)
                history.append(client.post(CHAT, json=body).json()["choices"][0]["message"])
        assert [tags["program_id"] for tags in vllm.xargs[before:]] == ids
        sent = [body["messages"] for body in vllm.bodies[before:]]
        assert len({each[0]["content"] for each in sent}) == (3 if changing is None else 1)
        assert all(f":{turn:02}" in json.dumps(each) for turn, each in enumerate(sent))
