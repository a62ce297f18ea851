"""What reaches the engine's process: tags of any type on a request, questions of any kind from the HTTP side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.facts import Hold, TurnFinish
from continuum_server.vllm_plugin.metrics import Metrics
from continuum_server.vllm_plugin.online import Online
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, NAMESPACE_KEY, WEIGHT_KEY
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.state import LISTED, engine_state
from continuum_traces.schema import SchedulerEvent
from nano import build
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

ODD: list[Any] = [["a"], {"a": ["b"]}, None, 5, -(2**63), "", "\ud800", float("nan"), True, b"x", object()]


@pytest.fixture
def scheduler() -> Any:
    return build([], "static-ttl", {"ttl_s": 60.0}, scheduler_type=ProgramScheduler)[0]


@pytest.fixture
def online(scheduler: Any) -> Iterator[Online]:
    made = Online(scheduler, Settings("static-ttl", {"ttl_s": 60.0}))
    yield made
    made.close()


def request(name: str, **xargs: Any) -> Request:
    sampling = SamplingParams(max_tokens=1, extra_args=xargs)
    return Request(name, prompt_token_ids=[1, 2, 3], sampling_params=sampling, pooling_params=None)


def test_a_tag_of_any_type_leaves_the_engine_alive(caplog: pytest.LogCaptureFixture) -> None:
    """The scheduler alone, with no HTTP side before it: one list as the client once ended the engine. Each name is
    logged once."""
    names = ("program_id", "parent_id", "kv_ttl_s", "is_last_step", "pred_tool", CLIENT_KEY, NAMESPACE_KEY)
    logged = set()
    for value in ODD:
        scheduler = build([], "static-ttl", {"ttl_s": 60.0}, scheduler_type=ProgramScheduler)[0]
        for number, name in enumerate(names):
            scheduler.add_request(request(f"r{number}", **{"program_id": "p", "kv_ttl_s": 60, name: value}))
        scheduler.add_request(request("all", **dict.fromkeys(names, value)))
        assert scheduler.tags.rejected >= len(names) - 2
        logged.add(caplog.text.count("tag 'kv_ttl_s' could not be read"))
        caplog.clear()
        assert scheduler.table.turn("r5").client is None
    assert logged == {0, 1}


def test_no_question_raises_into_the_engine(online: Online) -> None:
    arguments = ["", "[]", "{}", '{"names": 5}', '{"namespace": [1]}', None, 5, "[" * 9999]
    for operation in ("state", "release", "event", "reject", "else", None, ["state"]):
        for argument in arguments:
            assert isinstance(json.loads(online.call(operation, argument)), dict)  # type: ignore[arg-type]


def test_malformed_tags_are_counted_and_few_are_named(online: Online, scheduler: Any) -> None:
    told = {"count": 200_000, "names": ["a", "b\n\x1b[31m"]}
    assert json.loads(online.call("reject", json.dumps(told))) == {}
    assert json.loads(online.call("state", ""))["tags_rejected"] == 200_000


def test_the_state_lists_programs_by_what_they_do(online: Online, scheduler: Any) -> None:
    """Whole life of seven programs: one runs, one waits, three finished a turn, two ended. And one of another key."""
    table, now_s = scheduler.table, scheduler.clock()
    for name in ("runs", "waits", "held", "soft", "idle", "ended", "released"):
        scheduler.add_request(request(name, program_id=f"p-{name}"))
    scheduler.add_request(request("other", program_id="theirs", **{NAMESPACE_KEY: "1" * 16, CLIENT_KEY: "1" * 16}))
    for name in ("runs", "held", "soft", "idle", "ended", "released"):
        turn = table.turn(name)
        table.start(turn, now_s, hit_tokens=2, block_size=16)
        turn.tags.is_last_step = name == "ended"
        if name != "runs":
            table.finish(TurnFinish(turn, now_s, context_tokens=20, output_tokens=17, tool="ls"))
        if name in ("held", "soft"):
            hold = Hold(60.0) if name == "held" else Hold(0.0, soft_s=30.0)
            table.pins.add(turn, now_s, hold, [1])
    scheduler.release_program("p-released")
    rows = engine_state(online.snapshot())["program_list"]
    said = [(row["program_id"], row["state"]) for row in rows if row["program_id"] != "1" * 16 + ":theirs"]
    assert said == [
        *(("p-runs", "running"), ("p-waits", "waiting"), ("p-held", "held"), ("p-soft", "soft")),
        *(("p-idle", "idle"), ("p-released", "ended"), ("p-ended", "ended")),
    ]
    of = {row["program_id"]: row for row in rows}
    assert [of["p-waits"][name] for name in ("hit_share", "expires_in_s", "context_tokens")] == [None, None, 3]
    facts = ("hit_share", "context_tokens", "turns", "recognised_by")
    assert [of["p-held"][name] for name in facts] == [pytest.approx(2 / 3), 20, 1, "tag"]
    assert 29.0 < of["p-soft"]["expires_in_s"] <= 30.0 < of["p-held"]["expires_in_s"] <= 60.0
    assert [row["program_id"] for row in engine_state(online.snapshot("1" * 16))["program_list"]] == ["theirs"]
    cut = engine_state(online.snapshot(), 1)
    assert [len(cut[name]) for name in ("program_list", "pins", "soft_holds")] == [1, 1, 1]
    assert (cut["pins_held"], cut["programs"], engine_state(online.snapshot(), 0)["pins"]) == (1, 6, [])
    for name in ("p-held", "p-soft"):
        table.pins.end(name)


def test_the_state_shows_what_each_key_has(online: Online, scheduler: Any) -> None:
    key = {NAMESPACE_KEY: "1" * 16, CLIENT_KEY: "1" * 16}
    scheduler.add_request(request("first", program_id="p", **key, **{WEIGHT_KEY: 3.0}))
    assert online.snapshot()["keys"] == []  # all requests have one key
    scheduler.add_request(request("second", program_id="p", **{NAMESPACE_KEY: "2" * 16}))
    turn = scheduler.table.turn("first")
    scheduler.table.start(turn, scheduler.clock(), hit_tokens=2, block_size=16)
    one, other = engine_state(online.snapshot())["keys"]
    assert (one["key"], one["weight"], one["fair_share"], one["running"], one["waiting"]) == ("1" * 16, 3.0, 1.0, 1, 0)
    assert one["share"] > other["share"] == 0.0
    assert (other["key"], other["running"], other["waiting"]) == ("2" * 16, 0, 1)
    assert other["longest_wait_s"] >= one["longest_wait_s"] == 0.0


@pytest.mark.parametrize("programs", [LISTED - 1, LISTED, LISTED + 1])
def test_an_engine_lists_a_limited_number_of_programs(online: Online, scheduler: Any, programs: int) -> None:
    for number in range(programs):
        scheduler.add_request(request(f"r{number}", program_id=f"p{number}"))
    assert len(online.snapshot()["program_list"]) == min(programs, LISTED)


def test_the_state_shows_a_key_its_own_tools() -> None:
    scheduler = build([], "continuum", {}, scheduler_type=ProgramScheduler)[0]
    made, one, two = Online(scheduler, Settings("continuum")), "1" * 16, "2" * 16
    for key, tool in ((one, "mine"), (two, "theirs"), (two, "more")):
        scheduler.table.policy.tools.add(tool, 1.0, key=key)
    state = made.call("state", json.dumps({"namespace": one}))
    made.close()
    assert json.loads(state)["tools"] == {"mine": 1}
    assert two not in state
    assert "theirs" not in state


def test_an_event_of_another_version_is_counted() -> None:
    metrics = Metrics()
    for kind, facts in (("finish", {"status": "new"}), ("unpin", {"reason": "new"}), ("new", {})):
        metrics.count(SchedulerEvent(0.0, kind, "p", 0, **facts))  # type: ignore[arg-type]
    assert (metrics.turns["new"], metrics.unpins["new"]) == (1, 1)


def test_after_a_start_over_the_live_policy_s_statistics_are_saved(tmp_path: Path) -> None:
    """The new policy goes on from what was saved last."""
    scheduler, _ = build([], "continuum", {}, scheduler_type=ProgramScheduler)
    scheduler.online = online = Online(scheduler, Settings("continuum", statistics_path=str(tmp_path / "tools.json")))

    def times_saved() -> int:
        file = online._statistics
        file.save_when_due(file._due_s)
        file.wait()
        read = build([], "continuum", {"statistics": str(tmp_path / "tools.json")}, scheduler_type=ProgramScheduler)[0]
        return int(read.table.policy.tools.counts()["ls"])

    def learn(tool_s: float) -> None:
        scheduler.table.policy.tools.add("ls", tool_s)

    learn(1.0)
    assert times_saved() == 1
    scheduler.wall.run("any hook", None, int, "no number")
    learn(2.0)
    assert times_saved() == 2
