"""``predict=``: what is sent, and that a bad function never reaches the agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_server import FakeServer
from sdk import ask, ours_of, ran

from continuum_client import OpenAI, Prediction
from continuum_client.tools import ToolRun


def next_tool(runs: Sequence[ToolRun]) -> Prediction | None:
    """After "edit" comes "pytest"."""
    return Prediction("pytest", 12.0, 40.0) if [run.name for run in runs] == ["edit"] else None


def test_each_call_is_predicted_from_the_tools_before_it(vllm: FakeServer) -> None:
    client = OpenAI(base_url=vllm.url, dialect="vllm", predict=next_tool)
    with client.program("p") as p:
        for tool in ("edit", "pytest", "edit"):
            ran(p, tool)
            ask(client)
        ran(p, "edit")
        p.predict("deploy", 30)  # the agent's own prediction counts more
        ask(client)
    with client.program("q", predict=lambda runs: None) as p:
        ran(p, "edit")
        ask(client)
    sent = vllm.xargs
    assert [tags.get("pred_tool") for tags in sent] == ["pytest", None, "pytest", "deploy", None]
    assert (sent[0]["pred_tool_s"], sent[0]["pred_tool_p90_s"]) == (12.0, 40.0)


@pytest.mark.parametrize("broken", [lambda runs: 1 / 0, lambda runs: "pytest", lambda runs: Prediction("x", -1.0)])
def test_a_broken_function_is_one_warning(client: OpenAI, vllm: FakeServer, broken: Any) -> None:

    def work() -> None:
        with client.program("p", predict=broken):
            for _ in range(3):
                ask(client)

    assert len(ours_of(work, "predict= failed")) == 1
    assert all("pred_tool" not in tags for tags in vllm.xargs)
