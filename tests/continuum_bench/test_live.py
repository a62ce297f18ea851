"""Replay against servers: a real one (emulated GPU), and a local one that answers as a test wants."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from bench_cli import succeeded
from continuum_analysis.metrics import analyze_run
from continuum_analysis.records.misses import limits_of
from continuum_analysis.records.server_load import server_load
from continuum_analysis.report.page import write_report
from continuum_bench.errors import BenchError
from continuum_bench.figures import play_figure
from continuum_bench.figures.spec import load_figure
from continuum_bench.live.contexts import HIGHEST_ID, LOWEST_ID, SentTokens
from continuum_bench.live.endpoint import Endpoint
from continuum_bench.live.profile import CACHED_ROUNDS, DECODE_TOKENS, decode_grid, measure
from continuum_bench.live.server_metrics import samples
from continuum_server.step_times.profile import read_profile
from continuum_traces.json_io import read_json
from continuum_traces.playing.conversation import open_turn
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_arrivals, read_events, read_turns
from continuum_traces.records.run_dir import SERVER_METRICS, read_manifest
from continuum_traces.schema import Program, ToolCall, Turn
from fake_server import FakeServer, as_event, good, hang_up, streaming
from live_server import Live
from small_replays import replay, replayed, run_of, trace_of


def test_prompts_grow_by_exactly_what_the_trace_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    done = replayed(tmp_path, good)
    assert "vllm-seed0: done; 1 of 1 runs" in done.said
    assert "small (recorded), 1 program at" in done.printed  # the table says what ran
    bodies, records = done.server.bodies, done.turns
    first, second, third = (body["prompt"] for body in bodies)
    assert [len(first), len(second), len(third)] == [400, 520, 574]
    assert second[:420] == [*first, *range(1000, 1020)]
    assert third[:524] == [*second, *range(1006, 1010)]  # only the last four of ten tokens were carried
    assert [(body["max_tokens"], body["ignore_eos"]) for body in bodies] == [(20, True), (10, True), (5, True)]
    xargs = [body["vllm_xargs"] for body in bodies]
    ids = [tags.pop("turn_id") for tags in xargs]
    assert [headers["X-Turn-ID"] for headers in done.server.headers] == ids == [record.turn_id for record in records]
    assert len(set(ids)) == 3
    assert xargs[0] == {"program_id": "p0", "is_last_step": 0, "this_func_call": "ls"}
    assert xargs[2] == {"program_id": "p0", "is_last_step": 1}
    assert {headers["Authorization"] for headers in done.server.headers} == {"Bearer sk-secret"}
    counts = [(record.prompt_tokens, record.output_tokens, record.cached_tokens) for record in records]
    assert counts == [(400, 20, 16), (520, 10, 16), (574, 5, 16)]
    for before, after in pairwise(records):
        assert after.due_s == pytest.approx(before.finish_s + 0.05)
        assert after.sent_s >= after.due_s


def test_two_runs_share_no_prompt_and_a_program_keeps_its_connection(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, 1)
    with FakeServer("vllm", handler=good) as server:
        for name in ("a", "b"):
            assert replay(trace, server.url, tmp_path / name).exit_code == 0
    assert server.bodies[0]["prompt"][:16] != server.bodies[3]["prompt"][:16]
    assert len({seen.connection for seen in server.asked[:3]}) == 1


@pytest.mark.slow
def test_the_rate_that_a_running_server_sustains_is_searched(
    server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's KV pool has room for two of the programs. Ten arrive faster than they are served. The
    search ends when the rates on both sides differ by less than two times: at low rates ten arrivals take a minute."""
    rough = replace(load_figure("goodput"), goodput={"tolerance": 1.0, "live_limits": [inf]})
    monkeypatch.setattr(play_figure, "load_figure", lambda name: rough)
    write_programs(tmp_path / "large.jsonl", [Program("p", (Turn(14_000, 20), Turn(200, 20)))])
    sizes = "--set num_programs=10 --set warm_up=0 --set cool_down=0 --set seeds=1 --set jps=1.35"
    where = ("--set", f"engine={server.server.url}/v1", "--set", "policy=static-ttl", "--out", tmp_path / "out")
    succeeded(f"figure goodput {sizes}", "--traces", tmp_path / "large.jsonl", *where)
    (row,) = json.loads((tmp_path / "out" / "goodput.json").read_text())
    groups = read_json(tmp_path / "out" / "summary.json")["groups"]
    tried = {group["axes"]["jps"]: group["policies"]["static-ttl"] for group in groups}
    assert max(tried) == 1.35
    assert 0 < row["by_seed"][0] < 1.35
    assert row["by_seed"][0] in tried
    assert {arm["programs_finished"] for arm in tried.values()} == {10}


@pytest.mark.parametrize(
    ("limit", "kv_tokens"), [(32768, 400_000), (4095, 12_800), (2000, 4000), (2000, 400_000), (131072, 2**20)]
)
def test_every_server_has_decode_points_that_fit(limit: int, kv_tokens: int) -> None:
    grid = decode_grid(limit, kv_tokens)
    assert len(grid) >= 4
    assert len({batch for batch, _ in grid}) > 1
    assert len({context for _, context in grid}) > 1
    assert all(batch * (context + 64) <= kv_tokens // 2 and context + 64 < limit for batch, context in grid)
    with pytest.raises(BenchError, match="too small to profile: 500 tokens of KV"):
        decode_grid(400, 500)


@pytest.mark.slow
def test_a_real_server_and_its_own_record(server: Live, tmp_path: Path) -> None:
    url = f"{server.server.url}/v1"
    done = replay(trace_of(tmp_path), url, tmp_path / "out", "--scheduler-records", server.record)
    assert done.exit_code == 0, done.output
    succeeded("profile", "--base-url", url, "--out", tmp_path / "profile.json", "--repeats", 1)
    summary, folder = read_json(tmp_path / "out" / "summary.json"), run_of(tmp_path / "out")
    assert "emulated" in summary["manifest"]["modelled"][0]
    row = summary["policies"]["static-ttl"]
    assert (row["programs_finished"], row["pin_hit_ratio"]) == (3, 1.0)
    cached = {(r.program_id, r.turn): r.cached_tokens for r in read_turns(folder)}
    assert all(cached["p0", turn] == hit for turn, hit in ((1, 416), (2, 512)))  # whole blocks of the context before
    starts = {(e.program_id, e.turn): e.hit_tokens for e in read_events(folder) if e.event == "start"}
    assert starts == cached
    assert limits_of(read_manifest(folder)).block_tokens == 16
    assert {found.cause for found in analyze_run(folder).facts.returns} == {"pinned"}
    series = [json.loads(line) for line in (folder / SERVER_METRICS).read_text(encoding="utf-8").splitlines()]
    assert 0.0 <= series[0]["t_s"] < 5.0
    assert {"vllm:num_requests_waiting", "vllm:prompt_tokens_total", "continuum:up"} <= set(series[0])
    profile = read_profile(tmp_path / "profile.json")
    assert profile.kv_tokens == 32_000
    assert len(profile.decode_points) >= 4
    assert profile.decode is not None
    assert profile.decode.base + profile.decode.per_request > 0
    assert profile.request is not None
    assert 0 < profile.request.each < 1


def test_numbers_of_metrics_are_summed_over_engines() -> None:
    page = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="a b"} 4.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 9.0
vllm:e2e_request_latency_seconds_sum{engine="0"} 1.5e+02
vllm:prompt_tokens_created{engine="0"} 1.7e9
vllm:cache_config_info{block_size="16"} 1.0
sglang:cache_hit_rate{engine="0"} 0.5
sglang:cache_hit_rate{engine="1"} 0.75
trtllm_kv_cache_utilization{engine="0"} 0.25
trtllm_kv_cache_utilization{engine="1"} 0.5
process_resident_memory_bytes 1.0
"""
    sums = {"vllm:num_requests_running": 7.0, "vllm:e2e_request_latency_seconds_sum": 150.0}
    assert samples(page) == {**sums, "sglang:cache_hit_rate": 0.625, "trtllm_kv_cache_utilization": 0.375}


PAGES = {
    "vllm": (
        "/metrics",
        """vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_waiting{engine="0"} 2.0
vllm:num_preemptions_total{engine="0"} NOW
vllm:prefix_cache_queries_total{engine="0"} NOW0
vllm:prefix_cache_hits_total{engine="0"} NOW
""",
        (0.625, 3.0, 2.0, 0.1),
    ),
    "sglang": (
        "/metrics",
        """sglang:token_usage{model_name="m"} 0.25
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:num_retracted_reqs_total{model_name="m"} NOW
sglang:prompt_tokens_total{model_name="m"} NOW0
sglang:cached_tokens_total{cache_source="device",model_name="m"} NOW
sglang:cached_tokens_total{cache_source="host",model_name="m"} NOW
sglang:cache_hit_rate{model_name="m"} 0.9
""",
        (0.25, 4.0, 1.0, 0.2),
    ),
    "tensorrt_llm": (
        "/prometheus/metrics",
        """trtllm_kv_cache_utilization{model_name="m"} 0.75
trtllm_num_requests_running{model_name="m"} 5.0
trtllm_num_requests_waiting{model_name="m"} 0.0
trtllm_kv_cache_hit_rate{model_name="m"} 0.4
""",
        (0.75, 5.0, 0.0, 0.4),
    ),
}
"""By kind of server: where its metrics are, lines of them (``NOW`` grows), and what is to be read."""


@pytest.mark.parametrize("kind", PAGES)
def test_what_a_server_reports_is_drawn_beside_first_tokens(kind: str, tmp_path: Path) -> None:
    """TensorRT-LLM's ``/metrics`` is JSON of its last steps; it counts no preemptions."""
    path, page, (kv, running, waiting, hits) = PAGES[kind]
    with FakeServer(kind, handler=good) as server:

        async def handler(request: web.BaseRequest, number: int) -> web.StreamResponse:
            server.pages[path] = 200, page.replace("NOW", str(number))
            return await good(request, number)

        server.pages["/metrics"] = 200, [{"iter": 1}]
        server.pages[path], server.handler = (200, page.replace("NOW", "1")), handler
        call = (ToolCall("sleep", 0.6),)
        turns = (Turn(40, 2, tool_calls=call), Turn(10, 2, tool_calls=call), Turn(10, 2, tool_calls=call), Turn(10, 2))
        write_programs(tmp_path / "t.jsonl", [Program("p", turns)])
        assert replay(tmp_path / "t.jsonl", server.url, tmp_path / "out").exit_code == 0
    load = server_load(run_of(tmp_path / "out"))
    assert load is not None
    means = [set(load.series[name][1]) for name in ("kv_used", "running", "waiting")]
    assert means == [{kv}, {running}, {waiting}]
    assert load.hit_ratio == pytest.approx(hits)
    assert ("preemptions" in load.series) == (kind != "tensorrt_llm")
    if kind != "tensorrt_llm":
        assert load.series["preemptions"][1][0] == 0 < load.series["preemptions"][1][-1]
    html = write_report(tmp_path / "out").read_text(encoding="utf-8")
    figure = html.partition('id="server-metrics"')[2].partition("</section>")[0]
    assert all(title in figure for title in ("time to first token, s", "KV in use", "running requests", f"{hits:.1%}"))
    assert ("preemptions so far" in figure) == (kind != "tensorrt_llm")


def test_a_server_without_metrics_has_no_figure_of_them(tmp_path: Path) -> None:
    done = replayed(tmp_path, good)
    assert not (done.run / SERVER_METRICS).exists()
    assert 'id="server-metrics"' not in write_report(done.out).read_text(encoding="utf-8")


def prompt_of(context: SentTokens, program: Program, index: int) -> list[int]:
    open_turn(context, program, index)
    return list(json.loads(bytes(context.body(program.turns[index])["prompt"])))


def test_token_prompts_are_kept_cut_and_shared_as_the_trace_says() -> None:
    turns = (Turn(50, 4), Turn(20, 4, kept_tokens=30), Turn(10, 4))
    program = Program("p", turns, shared_prefix_id="s", shared_prefix_tokens=32)
    one, other = (SentTokens(program, key, "run") for key in ("a", "b"))
    first, theirs = prompt_of(one, program, 0), prompt_of(other, program, 0)
    assert len(first) == 50
    assert first[:32] == theirs[:32]
    assert not set(zip(first[32:], theirs[32:], strict=True)) & {(x, x) for x in first[32:]}
    second = prompt_of(one, program, 1)
    assert (len(second), second[:30]) == (50, first[:30])
    assert all(LOWEST_ID <= token < HIGHEST_ID for token in second)
    assert len(prompt_of(one, program, 2)) == 60


@pytest.mark.parametrize(("disturbed", "enough"), [(1, True), (1000, False)])
def test_a_disturbed_decode_point_is_measured_again(
    disturbed: int, enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only the server moves. The server closes each connection when its third request comes."""
    seen, uses, short, now_s = Counter[str](), Counter[Any](), iter(range(10_000)), [0.0]
    monkeypatch.setattr("continuum_bench.live.profile.time", SimpleNamespace(perf_counter=lambda: now_s[0]))

    async def short_takes_longer(request: web.Request, number: int) -> Any:
        uses[request.transport] += 1
        if uses[request.transport] == 3:
            return hang_up(request)
        body = await request.json()
        seen[str(body["prompt"])] += 1
        now_s[0] += 0.01
        if seen[str(body["prompt"])] > 1 and body["max_tokens"] == 1 and next(short) < disturbed:
            now_s[0] += 0.2
        if body["max_tokens"] == DECODE_TOKENS:
            now_s[0] += 0.05
        return await good(request, number)

    said: list[str] = []
    error = nullcontext() if enough else pytest.raises(BenchError, match="64 tokens took no longer than one")
    with FakeServer("vllm", handler=short_takes_longer) as server, error:
        found = measure(Endpoint(server.url, ("m",), max_model_len=2048), "m", None, 1, said.append)
        assert len(found.decode_points) >= 4
        assert all(point.seconds > 0 for point in found.decode_points)
    assert any(line.startswith("decode of 1 request ") for line in said) == enough


@pytest.mark.parametrize(("least", "known"), [(512, True), (511, False)])
def test_a_prompt_is_cached_if_each_try_found_it(least: int, known: bool) -> None:
    """At least half of it; the last try finds the least, in thousand and twenty-fourths."""

    async def caches(request: web.Request, number: int) -> Any:
        body = await request.json()
        seen[str(body["prompt"])] += 1
        count = 1024 if seen[str(body["prompt"])] < last else least
        stream = await streaming(request)
        choice = {"text": "x", "token_ids": [1] * body["max_tokens"], "finish_reason": "length"}
        counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        usage = {**counts, "prompt_tokens_details": {"cached_tokens": count * len(body["prompt"]) // 1024}}
        for event in ({"choices": [choice]}, {"choices": [], "usage": usage}, "[DONE]"):
            await stream.write(as_event(event))
        return stream

    last = 1 + CACHED_ROUNDS
    seen, said = Counter[str](), list[str]()
    with FakeServer("vllm", handler=caches) as server, suppress(BenchError):
        measure(Endpoint(server.url, ("m",), max_model_len=1500), "m", None, 1, said.append)
    assert any(line.startswith("the same from the cache") for line in said) == known


@pytest.mark.parametrize(
    ("window", "counted"),
    [
        (["--warm-up", 2, "--cool-down", 1], [False, False, True, True, True, False]),
        (["--warm-up", "0.06s", "--cool-down", "0.08s"], [False, True, True, True, False, False]),
    ],
)
def test_warm_up_and_cool_down_are_load_only(tmp_path: Path, window: list[object], counted: list[bool]) -> None:
    done = replayed(tmp_path, good, "--arrivals", "constant", *window, programs=6)  # at 0.05, 0.10 ... 0.30 s
    assert [arrival.counted for arrival in read_arrivals(done.run)] == counted
    assert len(done.server.bodies) == 18  # all were played
    assert done.summary["policies"]["vllm"]["programs_finished"] == sum(counted)
    assert done.summary["manifest"]["workload"]["warm_up"] == str(window[1])


def test_a_time_limit_leaves_the_rest_unfinished(tmp_path: Path) -> None:
    """The last arrives after 2 s."""
    done = replayed(tmp_path, good, "--arrivals", "constant", "--time-limit-s", 0.6, programs=40)
    row, counted = done.summary["policies"]["vllm"], read_json(done.run / "engine.json")
    assert row["programs_finished"] + len(row["unfinished"]) == row["programs"] < 40
    assert counted["programs_stopped"] == len(row["unfinished"]) == counted["errors"]["time-limit"] > 0


DIALECTS = [
    ("sglang", "sglang", {"session_id": "p0", "min_tokens": 20, "ignore_eos": True, "max_tokens": 20}),
    ("openai", "openai", {"prompt_cache_key": "p0", "max_completion_tokens": 20}),
    ("someone", "headers", {"max_tokens": 20}),
]


@pytest.mark.parametrize(("kind", "dialect", "fields"), DIALECTS)
def test_other_servers_are_spoken_to_in_their_dialect_and_in_text(
    tmp_path: Path, kind: str, dialect: str, fields: dict[str, Any]
) -> None:
    chosen = ["--dialect", "openai"] if kind == "openai" else []
    done = replayed(tmp_path, good, *chosen, kind=kind)
    assert read_manifest(done.run).engine_options.more["dialect"] == dialect
    assert [len(body["messages"]) for body in done.server.bodies] == [1, 3, 5]
    plain = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    assert {k: v for k, v in done.server.bodies[0].items() if k != "messages"} == {**plain, **fields}
    assert done.server.headers[0]["X-Session-ID"] == "p0"


async def repeats_the_key(request: web.Request, number: int) -> Any:
    return web.Response(status=401, text=f"Incorrect API key provided: {request.headers['Authorization']}")


def test_keys_come_from_the_environment_and_are_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    done = replayed(tmp_path, repeats_the_key, "--api-key-env", "MY_KEY", code=1)
    assert done.server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert done.turns[0].error == "http-401: Incorrect API key provided: Bearer ***"
    written = [path for path in done.out.rglob("*") if path.is_file()]
    assert not [path for path in written if b"sk-secret" in path.read_bytes()]
    assert "sk-secret" not in done.said + done.printed
