"""The HTTP side without a server: a fake application behind it, a fake engine core beside it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.defaults import KEY_WEIGHTS, TENANT_HEADER
from continuum_server.vllm_plugin import middleware as middleware_module
from continuum_server.vllm_plugin.metrics import ROWS, Metrics, prometheus_text
from continuum_server.vllm_plugin.middleware import ContinuumMiddleware
from continuum_server.vllm_plugin.online import AnchoredClock
from continuum_server.vllm_plugin.request_tags import BODY_FIELDS, CLIENT_KEY, NAMESPACE_KEY, WEIGHT_KEY, normalize_tags
from continuum_server.vllm_plugin.state import KEPT_S, LISTED, StateCache, engine_state
from continuum_server.vllm_plugin.tool_events import MOST_BYTES
from continuum_traces.schema import SchedulerEvent
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

STATE: dict[str, Any] = {
    **{row.path[0]: number for number, row in enumerate(ROWS)},
    "gauges": {
        "delay_estimate_seconds": {"value": 1.5, "help": "T"},
        "programs_window": {"value": 4, "help": "Admitted"},
    },
    "metrics": Metrics().to_json(),
    "keys": [],
    "hints_ignored": {"nvext.agent_hints": 2},
    **{"now_s": 100.0, "pool_blocks": 50, "pinned_tokens": 160, "pinned_blocks": 10, "soft_holds": []},
    "pins": [[f"held-{number}", 0, 16, 99.0, 105.0] for number in range(LISTED)],
    "program_list": [
        ["p", "tag", 2, 40, "held", 98.0, 105.0, 0.5, "q", [1, 16, 32, 1]],
        ["q", "tag", 1, 4, "idle", None, None, None, None, None],
    ]
    * 100,
}


class EngineCore:
    """Answers utility calls as two data-parallel engines would, fails, or never answers."""

    def __init__(self, error: Exception | None = None, stopped: bool = False) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.error, self.stopped = error, stopped
        self.core_engines = [b"0", b"1"]

    async def _call_utility_async(self, name: str, operation: str, argument: str, engine: bytes) -> str:
        assert name == "continuum"
        if engine == self.core_engines[0]:
            self.calls.append((operation, json.loads(argument)))
        if self.stopped:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        released = engine == b"1" and json.loads(argument).get("program_id") == "p/1"
        held = {b"0": None, b"1": True}[engine] if json.loads(argument).get("program_id") == "p/1" else None
        answers = {"state": STATE, "event": {"held": held}}
        return json.dumps(answers.get(operation, {"released": released}))


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


def bodies(body: bytes) -> list[Any]:
    """A request's body, as it comes from the network: in two pieces."""
    return [
        {"type": "http.request", "body": body[:5], "more_body": True},
        {"type": "http.request", "body": body[5:]},
    ]


class Http:
    """One middleware before vLLM's part, beside an engine core."""

    def __init__(
        self,
        core: EngineCore | None = None,
        api_key: list[str] | None = None,
        scheduler_cls: str | None = "continuum_server.vllm_plugin.scheduler.make",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.core = core or EngineCore()
        self.client = SimpleNamespace(engine_core=self.core, generate=None, shutdown=lambda timeout: timeout)
        scheduler = SimpleNamespace(scheduler_cls=scheduler_cls)
        config = SimpleNamespace(additional_config={"continuum": settings or {}}, scheduler_config=scheduler)
        args = SimpleNamespace(api_key=api_key)
        state = SimpleNamespace(engine_client=self.client, args=args, vllm_config=config)
        self.app = SimpleNamespace(state=state, routes=ROUTER.routes)
        self.middleware = ContinuumMiddleware(vllm)

    def send(self, method: str, path: str, messages: list[Any], headers: Any = ()) -> list[Any]:
        """What is answered to these messages."""
        pairs = headers.items() if isinstance(headers, dict) else headers
        raw = [(k.lower().encode(), v.encode("latin-1")) for k, v in pairs]
        path, _, query = path.partition("?")
        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
        scope |= {"headers": raw, "app": self.app}
        sent: list[Any] = []

        async def run() -> None:
            await self.middleware(
                scope, lambda: asyncio.sleep(0, messages.pop(0)), lambda message: asyncio.sleep(0, sent.append(message))
            )

        asyncio.run(run())
        return sent

    def ask(self, method: str, path: str, body: bytes = b"", headers: Any = ()) -> tuple[int, bytes]:
        """(status, body)"""
        sent = self.send(method, path, bodies(body), headers)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


CHAT = "POST", "/v1/chat/completions"
STATE_PAGE = "GET", "/continuum/state"
RELEASE = "POST", "/continuum/programs/p/1/release"
EVENTS = "/continuum/programs/p/1/events"


def received(answer: bytes) -> Any:
    """The members of the body that reached vLLM and are not null."""
    return {name: value for name, value in json.loads(answer.rpartition(b"|")[0]).items() if value is not None}


def digest(name: str, keys: str = "") -> str:
    """Of a key or a tenant on a server with these keys, sorted, one a line."""
    return hmac.new(hashlib.sha256(keys.encode()).digest(), name.encode(), hashlib.sha256).hexdigest()[:16]


def test_a_tagged_request_reaches_vllm_clean_and_with_its_length() -> None:
    http = Http()
    body = json.dumps({"job_id": "j", "vllm_xargs": {"kv_ttl_s": "x"}}).encode()
    status, answer = http.ask(*CHAT, body, {"Content-Length": str(len(body))})
    assert (status, received(answer)) == (200, {"job_id": "j", "vllm_xargs": {"program_id": "j"}})
    assert answer.endswith(b"|" + str(len(answer.rpartition(b"|")[0])).encode())
    assert http.core.calls == [("reject", {"count": 1, "names": ["kv_ttl_s"]})]


@pytest.mark.parametrize(("recognise", "program_id"), [("ids,prompts", "t"), ("ids", "t"), ("none", None)])
def test_ids_of_other_agents_are_read_unless_switched_off(recognise: str, program_id: str | None) -> None:
    http = Http(settings={"recognise": recognise})
    found = received(http.ask(*CHAT, b"{}", {"thread-id": "t"})[1])
    assert found.get("vllm_xargs", {}).get("program_id") == program_id
    assert received(http.ask(*CHAT, b"{}", {"X-Session-ID": "p"})[1])["vllm_xargs"]["program_id"] == "p"


@pytest.mark.parametrize(
    ("keys", "header", "client", "namespace"),
    [
        (None, None, None, None),
        (None, "bEaReR   x ", digest("x"), None),
        (None, "Basic x", None, None),
        (None, "Bearer", None, None),
        (["a", "a"], "Bearer a", digest("a", "a"), None),
        (["a", "b"], "Bearer a", digest("a", "a\nb"), digest("a", "a\nb")),
        (["b", "a"], "bearer b", digest("b", "a\nb"), digest("b", "a\nb")),
    ],
)
def test_a_request_carries_a_digest_of_its_key(
    keys: list[str] | None, header: str | None, client: str | None, namespace: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    forged = {CLIENT_KEY: "f" * 16, NAMESPACE_KEY: "f" * 16, "x": 1}
    expected = {"x": 1, CLIENT_KEY: client, NAMESPACE_KEY: namespace}
    expected = {name: value for name, value in expected.items() if value is not None}
    for path, carried in (
        (CHAT[1], lambda xargs: {"vllm_xargs": xargs}),
        ("/inference/v1/generate", lambda xargs: {"sampling_params": {"extra_args": xargs}}),
    ):
        answer = Http(api_key=keys).ask("POST", path, json.dumps(carried(forged)).encode(), headers)[1]
        assert received(answer) == carried(expected)


TENANT = {"X-Tenant-Id": " team-a "}
KEYED = {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("keys", "headers", "namespace", "weight"),
    [
        ("k", {**KEYED, **TENANT}, digest("tenant team-a", "k"), 3.0),
        ("k", KEYED, None, None),  # no tenant, and the only key
        (None, TENANT, None, None),  # anybody could send the header
        (["k", "l"], {**KEYED, "x-tenant-id": ""}, digest("k", "k\nl"), 0.5),
    ],
)
def test_a_gateway_with_a_key_names_the_tenant(
    monkeypatch: pytest.MonkeyPatch, keys: Any, headers: Any, namespace: str | None, weight: float | None
) -> None:
    monkeypatch.setenv(TENANT_HEADER, "X-Tenant-ID")
    monkeypatch.setenv(KEY_WEIGHTS, '{"team-a": 3, "k": 0.5}' if namespace else "{}")
    forged = json.dumps({"vllm_xargs": {WEIGHT_KEY: 99.0}}).encode()
    xargs = received(Http(api_key=keys).ask(*CHAT, forged, headers)[1]).get("vllm_xargs", {})
    assert (xargs.get(NAMESPACE_KEY), xargs.get(WEIGHT_KEY)) == (namespace, weight)


def test_without_the_option_no_header_names_a_tenant() -> None:
    xargs = received(Http(api_key="k").ask(*CHAT, b"{}", {**KEYED, **TENANT})[1])["vllm_xargs"]
    assert NAMESPACE_KEY not in xargs


def test_metrics_have_the_numbers_of_each_key() -> None:
    keys = [{"key": name, "share": 0.5, "virtual_s": 2.0, "waiting": 3, "longest_wait_s": 4.0} for name in "ab"]
    text = prometheus_text([engine_state({**STATE, "keys": keys}, 0)])
    found = {
        (family.name, sample.labels["key"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "key" in sample.labels
    }
    names = {"key_share": 0.5, "key_virtual_seconds": 2.0, "key_waiting": 3.0, "key_longest_wait_seconds": 4.0}
    assert found == {(f"continuum:{name}", key): value for name, value in names.items() for key in "ab"}


def test_what_is_told_of_malformed_tags_are_names_of_tags() -> None:
    http = Http()
    xargs = {"\ud800" + "k" * 40_000: None, **{f"name{number}\n": None for number in range(200)}, "kv_ttl_s": None}
    http.ask(*CHAT, json.dumps({"vllm_xargs": xargs, "session_id": [], **{name: [] for name in BODY_FIELDS}}).encode())
    [(operation, told)] = http.core.calls
    assert (operation, told["count"], set(told["names"])) == ("reject", 7, {*BODY_FIELDS, "session_id", "kv_ttl_s"})


def test_a_body_that_cannot_be_read_is_refused() -> None:
    status, answer = Http().ask(*CHAT, b'{"job_id": "j", "other": ' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert status == 400
    assert "the body" in json.loads(answer)["error"]["message"]


def test_a_client_that_hangs_up_while_it_sends_is_not_answered() -> None:
    assert Http().send(*CHAT, [bodies(b"{}")[0], {"type": "http.disconnect"}]) == []


# ------------------------------------------------------------------------------------------- our own routes


@pytest.mark.parametrize(
    ("path", "status"),  # an id may hold anything printable
    [("/", 200), ("release", 200), ("a%20b", 200), ("", 400), ("x" * 257, 400), ("a\nb", 400)],
)
def test_a_program_id_that_cannot_be_is_refused(path: str, status: int) -> None:
    http = Http()
    got, answer = http.ask("POST", f"/continuum/programs/{path}/release")
    assert (got, json.loads(answer).get("program_id")) == (status, path if status == 200 else None)
    assert len(http.core.calls) == (status == 200)
    assert http.ask("POST", "/continuum/programs/release")[0] == 404


STARTED = {"event": "started", "pred_tool_s": 4, "pred_tool_p90_s": 9.5}


def test_an_event_reaches_the_engines_with_its_key() -> None:
    http = Http(api_key=["a", "b"])
    status, answer = http.ask("POST", EVENTS, json.dumps(STARTED).encode(), {"Authorization": "Bearer a"})
    assert (status, json.loads(answer)) == (200, {"program_id": "p/1", "held": True})
    told = {"predicted_s": 4.0, "p90_s": 9.5}
    assert http.core.calls == [
        ("event", {"program_id": "p/1", "namespace": digest("a", "a\nb"), "event": told}),
    ]
    ended = Http()
    assert ended.ask("POST", EVENTS, b'{"event": "finished"}')[0] == 200
    assert ended.core.calls[0][1]["event"] == {"predicted_s": None, "p90_s": None}


@pytest.mark.parametrize(
    ("path", "body", "key", "status", "word"),
    [
        ("q", STARTED, "a", 404, "no program of yours"),
        ("", STARTED, "a", 400, "a program id has"),
        ("p/1", STARTED, "c", 401, "Unauthorized"),
        ("p/1", {**STARTED, "pred_tool_s": 86_400}, "a", 200, ""),
        ("p/1", {**STARTED, "pred_tool_s": 86_400.1}, "a", 400, "$.pred_tool_s"),
        ("p/1", {**STARTED, "pred_tool_s": -0.1}, "a", 400, "$.pred_tool_s"),
        ("p/1", {**STARTED, "pred_tool_p90_s": [1]}, "a", 400, "$.pred_tool_p90_s"),
        ("p/1", {"event": "started"}, "a", 400, "pred_tool_s: missing"),
        ("p/1", {"event": "finished", "pred_tool_p90_s": 1}, "a", 400, "pred_tool_p90_s"),
        ("p/1", {**STARTED, "x": 1}, "a", 400, "`x`"),
        ("p/1", {"event": "finished", "x": "y" * MOST_BYTES}, "a", 413, "4096 bytes"),
    ],
)
def test_an_event_that_is_none_costs_the_engine_nothing(path: str, body: Any, key: str, status: int, word: str) -> None:
    http = Http(api_key=["a", "b"])
    where, sent = f"/continuum/programs/{path}/events", json.dumps(body).encode()
    got, answer = http.ask("POST", where, sent, {"Authorization": f"Bearer {key}"})
    assert (got, word in json.loads(answer).get("error", "")) == (status, True), answer
    assert bool(http.core.calls) == (status in (200, 404))


def test_a_body_may_be_as_long_as_the_longest() -> None:
    for spaces, status in ((0, 200), (1, 413)):
        body = b'{"event": "finished"}'
        assert Http().ask("POST", EVENTS, body + b" " * (MOST_BYTES - len(body) + spaces))[0] == status


@pytest.mark.parametrize(
    ("query", "limit"),
    [("", LISTED), ("?limit=0", 0), (f"?other=1&limit={LISTED - 1}", LISTED - 1), (f"?limit={LISTED}", LISTED)]
    + [(f"?limit={text}", None) for text in ("", "-1", "1.5", LISTED + 1, "9999", "9" * 5000, "%C2%B2")],
)
def test_the_asker_says_how_long_the_lists_are(query: str, limit: int | None) -> None:
    http = Http()
    status, answer = http.ask("GET", STATE_PAGE[1] + query)
    assert status == (400 if limit is None else 200), answer
    if limit is None:
        assert http.core.calls == []
        return
    for engine in json.loads(answer)["engines"]:
        assert [len(engine[name]) for name in ("program_list", "pins")] == [limit, limit]


@pytest.mark.parametrize("page", ["/continuum/state", "/continuum/engine"])
def test_a_head_is_answered_as_a_get(page: str) -> None:
    assert Http().ask("HEAD", page)[0] == 200


def test_ages_and_shares_are_added_to_the_engine_s_rows() -> None:
    engine = json.loads(Http().ask(*STATE_PAGE)[1])["engines"][0]
    held, idle = engine["program_list"][:2]
    assert held == {
        **{"program_id": "p", "recognised_by": "tag", "turns": 2, "context_tokens": 40, "state": "held"},
        **{"for_s": 2.0, "expires_in_s": 5.0, "hit_share": 0.5, "parent_id": "q"},
        **{"left": {"turn": 1, "token": 16, "of": 32, "times": 1}},
    }
    assert (idle["for_s"], idle["expires_in_s"]) == (None, None)
    pin = {"program_id": "held-0", "turn": 0, "tokens": 16, "since_s": 99.0, "expires_in_s": 5.0}
    assert engine["pins"][0] == pin
    assert (engine["pinned_blocks"], engine["pinned_share"]) == (10, 0.2)


# ------------------------------------------------------------------------------------- how often an engine is asked


class Engines:
    """Engines that answer when they are told to, and a clock."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.now_s = 0.0
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None
        self.cache = StateCache(self.ask, lambda: self.now_s)

    async def ask(self, namespace: str | None) -> list[dict[str, Any]]:
        self.asked.append(namespace)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [{"of": namespace, "number": len(self.asked)}]

    async def number(self) -> int:
        return int((await self.cache.get(None, 5.0) or [])[0]["number"])


def test_twenty_pollers_ask_the_engine_once() -> None:
    """One question whoever asks, also for its metrics, and none for a second after the answer."""

    async def polled() -> None:
        engines = Engines()
        pollers = [asyncio.ensure_future(engines.number()) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engines.may_answer.set()
        assert await asyncio.gather(*pollers) == [1] * 20
        for now_s, number in ((0.0, 1), (KEPT_S - 1e-9, 1), (KEPT_S, 2), (KEPT_S, 2)):
            engines.now_s = now_s
            assert await engines.number() == number
        engines.cache.forget()
        assert await engines.number() == 3

    asyncio.run(polled())


def test_abandoned_calls_and_other_keys_wait_for_the_one_question() -> None:
    async def abandoned() -> None:
        engines = Engines()
        for _ in range(100):
            with pytest.raises(asyncio.TimeoutError):
                await engines.cache.get(None, 0.0)
        other = asyncio.ensure_future(engines.cache.get("k", 5.0))
        for _ in range(10):
            await asyncio.sleep(0)
        assert engines.asked == [None]
        engines.may_answer.set()
        assert await other == [{"of": "k", "number": 2}]
        assert engines.asked == [None, "k"]

    asyncio.run(abandoned())


def test_a_failed_answer_is_not_kept() -> None:
    async def failing() -> None:
        engines = Engines()
        engines.may_answer.set()
        engines.error = RuntimeError("no")
        with pytest.raises(RuntimeError):
            await engines.number()
        engines.error = None
        assert await engines.number() == 2

    asyncio.run(failing())


def test_a_release_is_seen_at_once_and_pages_share_their_answers() -> None:
    http = Http()
    for method, path in (STATE_PAGE, STATE_PAGE, ("GET", "/metrics"), RELEASE, STATE_PAGE):
        assert http.ask(method, path)[0] == 200
    assert [operation for operation, _ in http.core.calls] == ["state", "release", "state"]


@pytest.mark.parametrize("name", [None, "vllm.v1.core.sched.scheduler.Scheduler"])
def test_a_stock_scheduler_holds_nothing_and_is_not_asked(name: str | None) -> None:
    http = Http(scheduler_cls=name)
    assert http.ask(*STATE_PAGE)[0] == 503
    assert json.loads(http.ask(*RELEASE)[1])["released"] is False
    assert http.ask("GET", "/metrics")[1] == b"vllm:x 1\nvllm:y 2\n"
    assert http.core.calls == []


def test_somebody_else_s_scheduler_is_asked_once() -> None:
    core = EngineCore(RuntimeError("Call failed: 'EngineCoreProc' object has no attribute 'continuum'"))
    http = Http(core, scheduler_cls="their.Scheduler")
    assert [http.ask("GET", "/metrics")[1] for _ in range(3)] == [b"vllm:x 1\nvllm:y 2\n"] * 3
    assert len(core.calls) == 1


@pytest.mark.parametrize(
    ("core", "why"),
    [
        (EngineCore(RuntimeError("engine\nis dead")), "engine is dead"),
        (EngineCore(stopped=True), "did not answer within"),
    ],
)
def test_an_engine_that_does_not_answer_is_named_and_delays_nobody(
    core: EngineCore, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware_module, "ANSWER_LIMIT_S", 0.01)
    monkeypatch.setattr(middleware_module, "METRICS_LIMIT_S", 0.01)
    http = Http(core)
    assert received(http.ask(*CHAT, b'{"vllm_xargs": {"kv_ttl_s": null}}')[1]) == {}  # which it would count
    for method, path in (STATE_PAGE, RELEASE):
        status, answer = http.ask(method, path)
        assert status == 503
        assert why in json.loads(answer)["error"]
    page = http.ask("GET", "/metrics")[1].decode()
    assert why in page
    families = {f.name: f for f in text_string_to_metric_families(page)}
    assert [f.samples[0].value for f in (families["vllm:y"], families["continuum:up"])] == [2, 0]
    assert "continuum:pins" not in families


def test_requests_that_arrive_while_the_server_stops_get_503() -> None:
    """vLLM's engine would answer them with 200 and an empty text. Earlier requests and other routes are served."""
    http = Http()
    assert http.ask("POST", "/invocations", b"{}")[0] == 200
    assert http.client.shutdown(timeout=30) == 30
    assert http.ask("POST", "/invocations", b"{}")[0] == 503
    assert http.ask("GET", "/health")[0] == 200


# ------------------------------------------------------------------------------------------- metrics


def test_counting() -> None:
    """vLLM's own page, then ours: of two engines."""
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
    page = Http().ask("GET", "/metrics")[1].decode() + prometheus_text([{**STATE, "metrics": metrics.to_json()}])
    found = {f.name: f.samples for f in text_string_to_metric_families(page)}
    assert [sample.value for sample in found["vllm:y"]] == [2]
    assert 'continuum:pinned_blocks{engine="1"} 10.0' in page
    assert not {"continuum:eta", "continuum:programs_alive"} & set(found)  # not known
    ours = {name.removeprefix("continuum:"): samples for name, samples in found.items()}
    values = {name: ours[name][0].value for name in ("up", "tags_rejected", "programs_window", "hit_tokens")}
    assert values == {"up": 1, "tags_rejected": STATE["tags_rejected"], "programs_window": 4, "hit_tokens": 80}
    assert {s.labels["reason"]: s.value for s in ours["unpins"] if s.value} == {"expired": 1}
    buckets = {s.labels["le"]: s.value for s in ours["queue_delay_seconds"] if "le" in s.labels}
    assert (buckets["1.0"], buckets["2.5"], buckets["+Inf"], ours["preemptions"][0].value) == (0, 1, 1, 1)


def test_the_clock_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = AnchoredClock()
    before = clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # somebody sets the machine's clock back by fifty years
    assert 0 <= clock() - before < 10


MALFORMED = b'{"job_id": 1.5, "vllm_xargs": {"kv_ttl_s": null}}'
STRANGE = b'{"session_id": "s", "vllm_xargs": {"program_id": "p", "kv_ttl_s": null, "other": 1}}'


@pytest.mark.parametrize(
    ("keys", "path", "body", "headers", "reaches"),
    [
        # vLLM refuses these itself, so it gets the bytes unchanged
        *((["a", "b"], CHAT[1], MALFORMED, head, MALFORMED + b"|") for head in ({}, {"Authorization": "Bearer c"})),
        (["a", "b"], CHAT[1], MALFORMED, {"Authorization": "a"}, MALFORMED + b"|"),
        (None, "/v1/embeddings", MALFORMED, {"Content-Length": "49"}, MALFORMED + b"|49"),
        # an unguarded route takes no tags from a stranger: neither those of the body nor a session header
        (["a"], "/invocations", STRANGE, {"X-Session-ID": "p"}, b'{"vllm_xargs": {"other": 1}}|'),
        # a route with no place for a namespace has programs only where there is one key
        (["a", "b"], "/cohere/v2/chat", b"{}", {"Authorization": "Bearer a", "X-Session-ID": "p"}, b"{}|"),
        (["a"], "/cohere/v2/chat", b"{}", {"Authorization": "Bearer a", "X-Session-ID": "p"}, b"{}|p"),
    ],
)
def test_what_costs_the_engine_nothing(
    keys: list[str] | None, path: str, body: bytes, headers: dict[str, str], reaches: bytes
) -> None:
    http = Http(api_key=keys)
    status, answer = http.ask("POST", path, body, headers)
    if path == "/invocations":
        answer = json.dumps(received(answer)).encode() + b"|"
    assert (status, answer, http.core.calls) == (200, reaches, [])


@pytest.mark.parametrize(
    ("keys", "tokens", "namespace"),
    [
        (["a"], ["Bearer a"], None),
        (["a", "b"], ["Bearer b"], digest("b", "a\nb")),
        *((["a", "b"], tokens, "401") for tokens in ([], ["Bearer c"], ["b"], ["Bearer c", "Bearer a"])),
    ],
)
def test_every_engine_is_asked_within_the_key(keys: list[str], tokens: list[str], namespace: str | None) -> None:
    """Of two keys in a request, the first counts, as for vLLM."""
    http = Http(api_key=keys)
    headers = [("Authorization", token) for token in tokens]
    released, state = (http.ask(*page, headers=headers) for page in (RELEASE, STATE_PAGE))
    if namespace == "401":
        assert (released[0], state[0], http.core.calls) == (401, 401, [])
        return
    assert (released[0], json.loads(released[1])) == (200, {"program_id": "p/1", "released": True})
    assert len(json.loads(state[1])["engines"]) == 2
    namespaced = {"namespace": namespace}
    assert http.core.calls == [
        ("release", {"program_id": "p/1", **namespaced}),
        ("state", namespaced),
    ]


@pytest.mark.parametrize(
    ("body", "headers", "nested", "tags"),
    [
        ({"vllm_xargs": {"program_id": "p", "parent_id": "q"}}, {}, False, ("p", "q")),
        ({"sampling_params": {"extra_args": {"program_id": "p"}}}, {}, True, ("p", None)),
        ({"sampling_params": {}}, {"x-session-id": "s"}, True, ("s", None)),
        ({"session_id": "s"}, {}, False, ("s", None)),
        ({"job_id": "j", "messages": []}, {}, False, ("j", None)),
        ({"vllm_xargs": 5, "sampling_params": 5}, {}, False, (None, None)),
        ({"sampling_params": 5}, {"x-session-id": "s"}, True, (None, None)),  # no room for a tag: vLLM refuses it
    ],
)
def test_the_tags_that_the_scheduler_will_read(
    body: dict[str, Any], headers: dict[str, str], nested: bool, tags: tuple[str | None, str | None]
) -> None:
    read = normalize_tags(json.dumps(body).encode(), headers, nested=nested).tags()
    assert (read.program_id, read.parent_id) == tags
