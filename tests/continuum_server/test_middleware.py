"""The HTTP side without a server: a fake application behind it, a fake engine core beside it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.vllm_plugin import middleware as middleware_module
from continuum_server.vllm_plugin.metrics import Metrics, prometheus_text
from continuum_server.vllm_plugin.middleware import ContinuumMiddleware
from continuum_server.vllm_plugin.online import AnchoredClock
from continuum_server.vllm_plugin.request_tags import BODY_FIELDS, CLIENT_KEY, NAMESPACE_KEY
from continuum_traces.schema import SchedulerEvent
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

STATE = {
    "pins": [{"program_id": "p"}],
    "pinned_tokens": 160,
    "pinned_blocks": 10,
    "pinned_share": 0.25,
    "longest_wait_s": 1.5,
    "programs": 2,
    "gauges": {
        "delay_estimate_seconds": {"value": 1.5, "help": "T"},
        "programs_inside": {"value": 4, "help": "Admitted"},
    },
    "metrics": Metrics().to_json(),
    "tags_rejected": 3,
    "plugin_errors": 1,
    "record_events_dropped": 0,
}


class EngineCore:
    """Answers utility calls as two data-parallel engines would."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, str]] = []
        self.error = error

    async def call_utility_all_async(self, name: str, operation: str, argument: str) -> list[str]:
        assert name == "continuum"
        self.calls.append((operation, argument))
        if self.error is not None:
            raise self.error
        if operation == "state":
            return [json.dumps(STATE)] * 2
        return [json.dumps({"released": json.loads(argument).get("program_id") == name}) for name in ("", "p/1")]


class StoppedEngine(EngineCore):
    """Takes questions and answers none."""

    async def call_utility_all_async(self, name: str, operation: str, argument: str) -> list[str]:
        self.calls.append((operation, argument))
        await asyncio.Event().wait()
        raise AssertionError


class Body(BaseModel):
    vllm_xargs: dict[str, Any] | None = None


class Parameters(BaseModel):
    sampling_params: dict[str, Any]


class NoRoom(BaseModel):
    temperature: float = 1.0


ROUTER = FastAPI()


@ROUTER.post("/v1/chat/completions")
@ROUTER.post("/invocations")
async def chat(body: Body) -> None: ...


@ROUTER.post("/inference/v1/generate")
async def generate(body: Parameters) -> None: ...


@ROUTER.post("/cohere/v2/chat")
async def cohere(body: NoRoom) -> None: ...


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
    session = dict(scope["headers"]).get(b"x-session-id", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body + b"|" + (session or length)})


def ask(
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    core: EngineCore | None = None,
    api_key: list[str] | None = None,
    scheduler_cls: str | None = "continuum_server.vllm_plugin.scheduler.make",
    times: int = 1,
) -> tuple[int, bytes]:
    """(status, body) of the last of equal requests through one middleware."""
    engine_client = SimpleNamespace(engine_core=core or EngineCore())
    vllm_config = SimpleNamespace(additional_config={}, scheduler_config=SimpleNamespace(scheduler_cls=scheduler_cls))
    args = SimpleNamespace(api_key=api_key)
    app = SimpleNamespace(
        state=SimpleNamespace(engine_client=engine_client, args=args, vllm_config=vllm_config), routes=ROUTER.routes
    )
    pairs = headers.items() if isinstance(headers, dict) else headers or []
    raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in pairs]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "app": app}
    middleware = ContinuumMiddleware(vllm)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    messages: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def run() -> None:
        for _ in range(times):
            sent.clear()
            messages[:] = [{"type": "http.request", "body": body[:5], "more_body": True}]
            messages.append({"type": "http.request", "body": body[5:]})
            await middleware(scope, receive, send)

    asyncio.run(run())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def received(answer: bytes) -> Any:
    """The members of the body that reached vLLM and are not null."""
    return {name: value for name, value in json.loads(answer.rpartition(b"|")[0]).items() if value is not None}


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def test_a_tagged_request_reaches_vllm_clean_and_with_its_length() -> None:
    core = EngineCore()
    body = json.dumps({"job_id": "j", "vllm_xargs": {"kv_ttl_s": "x"}}).encode()
    status, answer = ask("POST", "/v1/chat/completions", body, {"Content-Length": str(len(body))}, core)
    received, _, length = answer.partition(b"|")
    assert status == 200
    assert json.loads(received) == {"job_id": "j", "vllm_xargs": {"program_id": "j"}}
    assert int(length) == len(received)
    assert core.calls == [("reject", '{"count": 1, "names": ["kv_ttl_s"]}')]


def test_nothing_is_done_for_a_request_that_vllm_refuses() -> None:
    core = EngineCore()
    body = b'{"job_id": 1.5, "vllm_xargs": {"kv_ttl_s": null}}'
    for headers in ({}, {"Authorization": "Bearer c"}, {"Authorization": "a"}):
        status, answer = ask("POST", "/v1/chat/completions", body, headers, core, ["a", "b"])
        assert (status, answer) == (200, body + b"|")  # the very bytes; vLLM's own part is behind this middleware
    assert core.calls == []


def test_an_unguarded_route_takes_no_tags_from_a_stranger() -> None:
    core = EngineCore()
    body = json.dumps({"session_id": "s", "vllm_xargs": {"program_id": "p", "kv_ttl_s": None, "other": 1}}).encode()
    answer = ask("POST", "/invocations", body, {"X-Session-ID": "p"}, core, ["a"])[1]
    assert received(answer) == {"vllm_xargs": {"other": 1}}
    assert answer.endswith(b"|" + str(len(answer.rpartition(b"|")[0])).encode())  # the session header is gone
    assert core.calls == []


@pytest.mark.parametrize(
    ("keys", "header", "client", "namespace"),
    [
        (None, None, None, None),
        (None, "Bearer x", digest("x"), None),
        (None, "bEaReR x", digest("x"), None),
        (None, "Bearer   x ", digest("x"), None),
        (None, "Basic x", None, None),
        (None, "Bearer", None, None),
        (["a"], "Bearer a", digest("a"), None),
        (["a", "a"], "Bearer a", digest("a"), None),
        (["a", "b"], "Bearer a", digest("a"), digest("a")),
        (["a", "b"], "bearer b", digest("b"), digest("b")),
    ],
)
def test_a_request_carries_a_digest_of_its_key(
    keys: list[str] | None, header: str | None, client: str | None, namespace: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    forged = {CLIENT_KEY: "f" * 16, NAMESPACE_KEY: "f" * 16, "x": 1}
    expected = {"x": 1, CLIENT_KEY: client, NAMESPACE_KEY: namespace}
    expected = {name: value for name, value in expected.items() if value is not None}
    body = json.dumps({"vllm_xargs": forged}).encode()
    answer = ask("POST", "/v1/chat/completions", body, headers, api_key=keys)[1]
    assert received(answer) == {"vllm_xargs": expected}
    body = json.dumps({"sampling_params": {"extra_args": forged}}).encode()
    answer = ask("POST", "/inference/v1/generate", body, headers, api_key=keys)[1]
    assert received(answer) == {"sampling_params": {"extra_args": expected}}


def test_of_two_keys_the_first_counts_as_for_vllm() -> None:
    pairs = [("Authorization", "Bearer c"), ("Authorization", "Bearer a")]
    assert ask("GET", "/continuum/state", headers=pairs, api_key=["a", "b"])[0] == 401


def test_a_route_with_no_place_for_a_namespace_has_no_programs() -> None:
    headers = {"Authorization": "Bearer a", "X-Session-ID": "p"}
    assert ask("POST", "/cohere/v2/chat", b"{}", headers, api_key=["a", "b"])[1] == b"{}|"
    assert ask("POST", "/cohere/v2/chat", b"{}", headers, api_key=["a"])[1] == b"{}|p"


def test_what_is_told_of_malformed_tags_are_names_of_tags() -> None:
    core = EngineCore()
    xargs = {"\ud800" + "k" * 40_000: None, **{f"name{number}\n": None for number in range(200)}, "kv_ttl_s": None}
    body = {"vllm_xargs": xargs, **{name: [] for name in BODY_FIELDS}}
    ask("POST", "/v1/chat/completions", json.dumps(body).encode(), core=core)
    [(operation, argument)] = core.calls
    told = json.loads(argument)
    assert (operation, told["count"], set(told["names"])) == ("reject", 7, {*BODY_FIELDS, "kv_ttl_s"})


@pytest.mark.parametrize("text", ['{"vllm_xargs": {"program_id": VALUE}}', '{"other": VALUE, "job_id": "j"}'])
@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "9" * 5000], ids=["deep", "huge"])
def test_a_body_that_cannot_be_read_is_refused(text: str, value: str) -> None:
    status, answer = ask("POST", "/v1/chat/completions", text.replace("VALUE", value).encode())
    assert status == 400
    assert "the body" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("core", [EngineCore(RuntimeError("engine is dead")), StoppedEngine()])
def test_a_malformed_tag_does_not_need_the_engine(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_module, "METRICS_LIMIT_S", 0.01)
    body = b'{"vllm_xargs": {"kv_ttl_s": null}}'
    assert received(ask("POST", "/v1/chat/completions", body, core=core)[1]) == {}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b"\xff\xfe", '{"job_id": "j"}'.encode("utf-16"), b'\xef\xbb\xbf{"job_id": "j"}']
)
def test_odd_bodies_reach_vllm(body: bytes) -> None:
    status, answer = ask("POST", "/v1/chat/completions", body, {"Transfer-Encoding": "chunked"})
    assert status == 200
    if b"j" in body:
        assert received(answer) == {"job_id": "j", "vllm_xargs": {"program_id": "j"}}
    else:
        assert answer.rpartition(b"|")[0] == body


@pytest.mark.parametrize("value", ["\xe9\xff", "x" * 500_000, "\x85", ""])
def test_odd_headers_reach_vllm(value: str) -> None:
    assert ask("POST", "/v1/chat/completions", b"{}", {"X-Session-ID": value, "Authorization": value})[0] == 200


def test_a_client_that_hangs_up_while_it_sends_is_not_answered() -> None:
    async def run() -> list[Any]:
        sent: list[Any] = []
        messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
        app = SimpleNamespace(state=SimpleNamespace(), routes=ROUTER.routes)
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "app": app}

        async def send(message: Any) -> None:
            sent.append(message)

        await ContinuumMiddleware(vllm)(scope, lambda: asyncio.sleep(0, messages.pop(0)), send)
        return sent

    assert asyncio.run(run()) == []


def test_other_paths_are_left_alone() -> None:
    assert ask("POST", "/v1/embeddings", b'{"job_id": 1}', {"Content-Length": "13"})[1] == b'{"job_id": 1}|13'


def test_every_engine_is_asked() -> None:
    assert len(json.loads(ask("GET", "/continuum/state")[1])["engines"]) == 2
    status, answer = ask("POST", "/continuum/programs/p/1/release")
    assert (status, json.loads(answer)) == (200, {"program_id": "p/1", "released": True})


@pytest.mark.parametrize("path", ["", "/", "release", "a%20b", "x" * 257, "a\nb"])
def test_a_program_id_that_cannot_be_is_refused(path: str) -> None:
    core = EngineCore()
    status, answer = ask("POST", f"/continuum/programs/{path}/release", core=core)
    if path in ("/", "release", "a%20b"):  # an id may hold anything printable
        assert (status, json.loads(answer)["program_id"]) == (200, path)
    else:
        assert status == 400
        assert core.calls == []
    assert ask("POST", "/continuum/programs/release", core=core)[0] == 404


def test_a_program_is_released_and_shown_within_its_key() -> None:
    for keys, namespace in ((["a"], None), (["a", "b"], digest("a"))):
        core = EngineCore()
        headers = {"Authorization": "Bearer a"}
        ask("POST", "/continuum/programs/p/release", headers=headers, core=core, api_key=keys)
        ask("GET", "/continuum/state", headers=headers, core=core, api_key=keys)
        assert [(name, json.loads(argument)) for name, argument in core.calls] == [
            ("release", {"program_id": "p", "namespace": namespace}),
            ("state", {"namespace": namespace}),
        ]


def test_a_stock_scheduler_holds_nothing_and_is_not_asked() -> None:
    for name in (None, "vllm.v1.core.sched.scheduler.Scheduler"):
        core = EngineCore()
        assert ask("GET", "/continuum/state", core=core, scheduler_cls=name)[0] == 503
        answer = ask("POST", "/continuum/programs/p/release", core=core, scheduler_cls=name)[1]
        assert json.loads(answer)["released"] is False
        assert ask("GET", "/metrics", core=core, scheduler_cls=name)[1] == b"vllm:x 1\nvllm:y 2\n"
        assert core.calls == []


def test_somebody_else_s_scheduler_is_asked_once() -> None:
    core = EngineCore(RuntimeError("Call failed: 'EngineCoreProc' object has no attribute 'continuum'"))
    assert ask("GET", "/metrics", core=core, scheduler_cls="their.Scheduler", times=3)[1] == b"vllm:x 1\nvllm:y 2\n"
    assert len(core.calls) == 1


@pytest.mark.parametrize(
    ("core", "why"),
    [(EngineCore(RuntimeError("engine\nis dead")), "engine is dead"), (StoppedEngine(), "did not answer within")],
)
def test_an_engine_that_does_not_answer_is_said_to(core: EngineCore, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_module, "ANSWER_LIMIT_S", 0.01)
    monkeypatch.setattr(middleware_module, "METRICS_LIMIT_S", 0.01)
    for method, path in (("GET", "/continuum/state"), ("POST", "/continuum/programs/p/release")):
        status, answer = ask(method, path, core=core)
        assert status == 503
        assert why in json.loads(answer)["error"]
    page = ask("GET", "/metrics", core=core)[1].decode()
    assert f"{why}" in page
    families = {f.name: f for f in text_string_to_metric_families(page)}
    assert [f.samples[0].value for f in (families["vllm:y"], families["continuum:up"])] == [2, 0]
    assert "continuum:pins" not in families


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
    assert families["continuum:up"].samples[0].value == 1
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


def test_requests_that_arrive_while_the_server_stops_get_503() -> None:
    """vLLM's engine would answer them with 200 and an empty text. Earlier requests and other routes are served."""
    client = SimpleNamespace(engine_core=EngineCore(), shutdown=lambda timeout: timeout)
    args = SimpleNamespace(api_key=None)
    app = SimpleNamespace(state=SimpleNamespace(engine_client=client, args=args), routes=ROUTER.routes)
    middleware = ContinuumMiddleware(vllm)

    def status(method: str, path: str) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request", "body": b"{}"}

        scope = {"type": "http", "method": method, "path": path, "headers": [], "app": app}
        asyncio.run(middleware(scope, receive, send))
        return int(sent[0]["status"])

    assert status("POST", "/invocations") == 200
    assert client.shutdown(timeout=30) == 30
    assert status("POST", "/invocations") == 503
    assert status("GET", "/health") == 200
