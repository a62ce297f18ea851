"""``predict=``: what is sent, and that a bad function never reaches the agent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from fake_server import FakeServer

from continuum_client import ContinuumWarning, InvalidTag, OpenAI, Prediction
from continuum_client.tool_runs import ToolRun

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def next_tool(runs: Sequence[ToolRun]) -> Prediction | None:
    """After "edit" comes "pytest"."""
    return Prediction("pytest", 12.0, 40.0) if [run.name for run in runs] == ["edit"] else None


def test_each_call_is_predicted_from_the_tools_before_it(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", predict=next_tool)
    with client.program("p") as p:
        for tool in ("edit", "pytest", "edit"):
            with p.tool(tool):
                pass
            client.chat.completions.create(**ASK)
        with p.tool("edit"):
            pass
        p.predict("deploy", 30)  # the agent's own prediction counts more
        client.chat.completions.create(**ASK)
    with client.program("q", predict=lambda runs: None) as p:
        with p.tool("edit"):
            pass
        client.chat.completions.create(**ASK)
    sent = [turn.body["vllm_xargs"] for turn in server.turns]
    assert [tags.get("pred_tool") for tags in sent] == ["pytest", None, "pytest", "deploy", None]
    assert (sent[0]["pred_tool_s"], sent[0]["pred_tool_p90_s"]) == (12.0, 40.0)


@pytest.mark.parametrize("broken", [lambda runs: 1 / 0, lambda runs: "pytest", lambda runs: Prediction("x", -1.0)])
def test_a_broken_function_is_one_warning(serve: Callable[..., FakeServer], broken: Any) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with client.program("p", predict=broken):
            for _ in range(3):
                client.chat.completions.create(**ASK)
    (ours,) = [one for one in caught if issubclass(one.category, ContinuumWarning)]
    assert "predict= failed" in str(ours.message)
    assert all("pred_tool" not in turn.body["vllm_xargs"] for turn in server.turns)


def test_what_is_no_function_or_no_prediction() -> None:
    with pytest.raises(InvalidTag, match="predict True"):
        OpenAI(predict=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidTag, match="predict True"):
        OpenAI().program(predict=True)  # type: ignore[call-overload]
    for wrong in (("", 1.0, None), ("t", -1.0, None), ("t", 1.0, float("nan"))):
        with pytest.raises(InvalidTag):
            Prediction(*wrong)
