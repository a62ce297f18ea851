"""The HTTP side without a server: a fake application behind it, a fake engine core beside it."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from continuum_server.vllm_plugin.middleware import ContinuumMiddleware
from continuum_server.vllm_plugin.online import AnchoredClock
from continuum_traces.schema import SchedulerEvent
from prometheus_client.parser import text_string_to_metric_families

STATE = {
    "pins": [{"program_id": "p"}],
    "pinned_tokens": 160,
    "pinned_blocks": 10,
    "programs": 2,
    "delay_s": 1.5,
    "eta": None,
    "programs_inside": 4,
    "programs_outside": None,
    "metrics": Metrics().to_json(),
    "tags_rejected": 3,
    "record_events_dropped": 0,
}


class EngineCore:
    """Answers utility calls as two data-parallel engines would."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error = error

    async def call_utility_all_async(self, name: str, operation: str, argument: str) -> list[str]:
        if self.error is not None:
            raise self.error
        assert name == "continuum"
        self.calls.append((operation, argument))
        first = STATE if operation == "state" else {"released": False}
        return [json.dumps(first), json.dumps(STATE if operation == "state" else {"released": argument == "p/1"})]


async def vllm(scope: Any, receive: Any, send: Any) -> None:
    """vLLM's part: says what it was asked, or shows its metrics in two pieces."""
    if scope["path"] == "/metrics":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"16")]})
        await send({"type": "http.response.body", "body": b"vllm:x 1\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"vllm:y 2\n"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message.get("more_body", False)
    length = dict(scope["headers"]).get(b"content-length", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body + b"|" + length})


def ask(
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    core: EngineCore | None = None,
    api_key: list[str] | None = None,
) -> tuple[int, bytes]:
    """(status, body) of one request through the middleware."""
    engine_client = SimpleNamespace(engine_core=core or EngineCore())
    state = SimpleNamespace(engine_client=engine_client, args=SimpleNamespace(api_key=api_key), vllm_config=None)
    raw = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "app": SimpleNamespace(state=state)}
    sent: list[Any] = []
    halves = [{"type": "http.request", "body": body[:5], "more_body": True}, {"type": "http.request", "body": body[5:]}]

    async def receive() -> Any:
        return halves.pop(0) if halves else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(ContinuumMiddleware(vllm)(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def test_a_tagged_request_reaches_vllm_clean_and_with_its_length() -> None:
    core = EngineCore()
    body = json.dumps({"job_id": "j", "vllm_xargs": {"odd": None}}).encode()
    status, answer = ask("POST", "/v1/chat/completions", body, {"Content-Length": str(len(body))}, core)
    received, _, length = answer.partition(b"|")
    assert status == 200
    assert json.loads(received) == {"job_id": "j", "vllm_xargs": {"program_id": "j"}}
    assert int(length) == len(received)
    assert core.calls == [("reject", '["odd"]')]


def test_other_paths_are_left_alone() -> None:
    assert ask("POST", "/v1/embeddings", b'{"job_id": 1}', {"Content-Length": "13"})[1] == b'{"job_id": 1}|13'


def test_every_engine_is_asked() -> None:
    assert len(json.loads(ask("GET", "/continuum/state")[1])["engines"]) == 2
    status, answer = ask("POST", "/continuum/programs/p/1/release")
    assert (status, json.loads(answer)) == (200, {"program_id": "p/1", "released": True})


def test_a_stock_scheduler_holds_nothing() -> None:
    core = EngineCore(RuntimeError("Call failed: 'EngineCoreProc' object has no attribute 'continuum'"))
    assert ask("GET", "/continuum/state", core=core)[0] == 503
    assert json.loads(ask("POST", "/continuum/programs/p/release", core=core)[1])["released"] is False
    assert ask("GET", "/metrics", core=core)[1] == b"vllm:x 1\nvllm:y 2\n"


def test_other_errors_of_the_engine_are_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="engine is dead"):
        ask("GET", "/continuum/state", core=EngineCore(RuntimeError("engine is dead")))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer b"}, 200),
        ({"Authorization": "Bearer c"}, 401),
        ({"Authorization": "b"}, 401),
    ],
)
def test_keys(headers: dict[str, str], status: int) -> None:
    assert ask("GET", "/continuum/state", headers=headers, api_key=["a", "b"])[0] == status


def test_metrics_follow_vllms_own() -> None:
    families = {f.name: f for f in text_string_to_metric_families(ask("GET", "/metrics")[1].decode())}
    assert [sample.value for sample in families["vllm:y"].samples] == [2]
    assert [sample.labels["engine"] for sample in families["continuum:pinned_blocks"].samples] == ["0", "1"]
    assert families["continuum:tags_rejected"].samples[0].value == 3
    assert families["continuum:programs_inside"].samples[0].value == 4
    assert not {"continuum:eta", "continuum:programs_outside"} & set(families)  # not known


def test_counting() -> None:
    metrics = Metrics()
    facts: list[tuple[float, str, dict[str, Any]]] = [
        (0.0, "arrive", {}),
        (2.0, "start", {"prompt_tokens": 100, "hit_tokens": 80}),
        (2.5, "preempt", {}),
        (3.0, "finish", {"status": "stop"}),
        (3.0, "pin", {"ttl_s": 4.0}),
        (9.0, "unpin", {"reason": "expired"}),
    ]
    for t, kind, more in facts:
        metrics.count(SchedulerEvent(t, kind, "p", 0, "r", **more))  # type: ignore[arg-type]
    found = {
        f.name: f for f in text_string_to_metric_families(prometheus_text([{**STATE, "metrics": metrics.to_json()}]))
    }
    by_reason = {sample.labels["reason"]: sample.value for sample in found["continuum:unpins"].samples}
    assert by_reason["expired"] == 1
    assert sum(by_reason.values()) == 1
    buckets = {s.labels["le"]: s.value for s in found["continuum:queue_delay_seconds"].samples if "le" in s.labels}
    assert (buckets["1.0"], buckets["2.5"], buckets["+Inf"]) == (0, 1, 1)
    assert found["continuum:hit_tokens"].samples[0].value == 80
    assert found["continuum:preemptions"].samples[0].value == 1


def test_the_clock_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = AnchoredClock()
    before = clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # somebody sets the machine's clock back by fifty years
    assert 0 <= clock() - before < 10
