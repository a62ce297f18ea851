"""The clients of public benchmarks as PyPI has them, beside our records, vLLM's metrics and our own replay.

agentx-harness (InferenceX AgentX, an aiperf) plays invented sessions, agentperf-local (AA-AgentPerf) the small task in
its package. ``make endpoints`` installs both. ``SHOW=FILE`` in the environment appends the rows of the tables in
docs/results/trust.md. ``AGENTX_S=900`` plays the scenario as long as its rules say.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from bench_cli import succeeded
from continuum_analysis.metrics import analyze_run
from continuum_bench.live.endpoint import metrics_page
from continuum_bench.live.server_metrics import samples
from continuum_traces.records import read_events, read_turns
from continuum_traces.records.run_dir import TURNS
from continuum_traces.schema import SchedulerEvent, TurnRecord
from endpoints import environment
from live_server import Live, live
from waiting import until

pytestmark = pytest.mark.slow

POLICIES = ("stock", "working-set")
SESSIONS = 4
HASHED = 64
"""Tokens of a block in the invented sessions."""
WITH_PARENTS = {"AIPERF_HTTP_X_DYNAMO_SESSION_ID_FROM_CORRELATION_ID": "1"}
"""With this, aiperf names a sub-agent's parent."""
BUSY_S = 0.25
AGENTX_S = float(os.environ.get("AGENTX_S", 0))
TASK = "agentperf_local/data/replays/aa-mini-v1/traces"


@pytest.fixture(scope="module", params=POLICIES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("server"), policy=request.param) as found:
        yield found


@dataclass(frozen=True)
class Reported:
    """What somebody reports of the requests of one play."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    first_s: float
    """Mean time to the first token."""
    itl_s: float
    """Mean time between tokens: the first mean of each request, then their mean."""

    def row(self, name: str) -> str:
        hits = self.cached_tokens / self.prompt_tokens
        return f"| {name} | {1e3 * self.first_s:.0f} | {1e3 * self.itl_s:.2f} | {self.prompt_tokens} | {hits:.1%} |"


NOTHING = Reported(0, 0, 0, 0, 0.0, 0.0)

# ------------------------------------------------------------------------------------- what plays, what it reports


def _call(at_s: float, blocks: Sequence[int], output: int = 64) -> dict[str, Any]:
    counts = {"in": HASHED * len(blocks), "out": output, "hash_ids": list(blocks)}
    return {"t": at_s, "type": "s", "model": "m", "api_time": 0.5, "stop": "tool_use", **counts}


def _calls(at_s: float, first: int, blocks: int, number: int, step_s: float = 1.25) -> Iterator[dict[str, Any]]:
    """Yield requests a second and more apart, each of which continues the one before it by six blocks."""
    for turn in range(number):
        yield _call(at_s + step_s * turn, range(first, first + blocks + 6 * turn))


def invented(folder: Path, requests: int = 4, step_s: float = 1.25) -> Path:
    """Four sessions in Weka's format; the second has a sub-agent of two requests behind its second request."""
    folder.mkdir()
    for n in range(SESSIONS):
        calls = [*_calls(0.0, 10_000 * n, 24 + 4 * n, requests, step_s)]
        if n == 1:
            at_s, later = step_s + 0.75, [{**call, "t": call["t"] + 2.5} for call in calls[2:]]
            inner, times = [*_calls(at_s, 15_000, 20, 2)], {"t": at_s, "duration_ms": 1750, "status": "completed"}
            agent = {"agent_id": "agent_001", "subagent_type": "Explore", "requests": inner, "models": ["m"]}
            calls = [*calls[:2], {"type": "subagent", **times, **agent}, *later]
        session = {"id": f"session-{n}", "models": ["m"], "block_size": HASHED, "hash_id_scope": "local"}
        (folder / f"session-{n}.json").write_text(json.dumps({**session, "requests": calls}))
    return folder


def _ran(command: Sequence[object], folder: Path, **variables: str) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300 + 2 * AGENTX_S, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def aiperf(words: Sequence[object], server: Live, sessions: Path, folder: Path, **variables: str) -> list[Any]:
    """Run a command of agentx-harness and return its records of all requests, including those of the warm-up."""
    command, *options = words
    tokenizer = server.client.models.list().data[0].to_dict()["root"]
    model = ["--model", server.model, "--tokenizer", tokenizer]
    load = ["--custom-dataset-type", "weka_trace", "--input-file", sessions, "--streaming"]
    load += [] if "--concurrency" in options else ["--concurrency", 2]
    quiet = ["--ui", "none", "--no-gpu-telemetry", "--workers-max", 1, "--record-processors", 1]
    where = ["--url", server.server.url, "--endpoint-type", "chat", "--output-artifact-dir", folder / "aiperf"]
    program = environment("agentx-harness") / str(command)
    _ran([program, "profile", *options, *model, *load, *quiet, *where], folder, **variables)
    return [json.loads(line) for line in (folder / "aiperf/profile_export.jsonl").read_text().splitlines()]


def of_aiperf(rows: Iterable[Mapping[str, Any]]) -> Reported:
    def each(name: str) -> list[Any]:
        return [row["metrics"][name]["value"] for row in rows]

    tokens = (sum(each(f"usage_{name}_tokens")) for name in ("prompt", "prompt_cache_read", "completion"))
    first_s, itl_s = (fmean(each(name)) / 1e3 for name in ("time_to_first_token", "inter_token_latency"))
    return Reported(len([*rows]), *tokens, first_s, itl_s)


def of_agentperf(turns: Sequence[Mapping[str, Any]]) -> Reported:
    names = ("server_prompt_tokens", "server_cached_prompt_tokens", "server_output_tokens")
    tokens = (sum(turn["tokens"][name] for turn in turns) for name in names)
    first_s = fmean(turn["timing"]["time_to_first_token_ms"] for turn in turns) / 1e3
    itl_s = fmean(turn["normalization"]["generation_ms_per_token"] for turn in turns) / 1e3
    return Reported(len(turns), *tokens, first_s, itl_s)


class Watched:
    """What a server and its records say of the requests in a ``with`` block."""

    def __init__(self, server: Live) -> None:
        self.server, self.metrics, self.events = server, NOTHING, list[SchedulerEvent]()
        self._records = _policy(server) != "stock"

    def __enter__(self) -> Watched:
        self._before, events = self._settled()
        self._events_before = len(events)
        return self

    def __exit__(self, *_: object) -> None:
        after, events = self._settled()
        more = {name: value - self._before.get(name, 0.0) for name, value in after.items()}
        names = ("prompt_tokens", "prefix_cache_hits", "generation_tokens")
        tokens = (int(more[f"vllm:{name}_total"]) for name in names)
        times = ("time_to_first_token_seconds", "request_time_per_output_token_seconds")
        first_s, itl_s = (more[f"vllm:{name}_sum"] / more[f"vllm:{name}_count"] for name in times)
        self.metrics = Reported(int(more["vllm:time_to_first_token_seconds_count"]), *tokens, first_s, itl_s)
        self.events = events[self._events_before :]

    def _settled(self) -> tuple[dict[str, float], list[SchedulerEvent]]:
        """The metrics and the records once both tell of every request since the server's start. Records are written a
        little after a client has its answer."""
        until(self.server.is_idle if self._records else lambda: self._samples()["vllm:num_requests_running"] == 0)
        if not self._records:
            return self._samples(), []
        until(lambda: self._ended() == self._samples().get("vllm:time_to_first_token_seconds_count", 0.0))
        return self._samples(), self._recorded()

    def _samples(self) -> dict[str, float]:
        return samples(metrics_page(self.server.server.url))

    def _recorded(self) -> list[SchedulerEvent]:
        return [*read_events(self.server.record)] if self.server.record.exists() else []

    def _ended(self) -> int:
        return sum(event.event == "finish" for event in self._recorded())

    @property
    def programs(self) -> dict[str, list[SchedulerEvent]]:
        """The events of the programs of which a turn came."""
        by_program = defaultdict[str, list[SchedulerEvent]](list)
        for event in self.events:
            by_program[event.program_id].append(event)
        return {name: events for name, events in by_program.items() if any(each.event == "arrive" for each in events)}


def replayed(trace: Path, server: Live, folder: Path, concurrency: int) -> tuple[Reported, Reported]:
    """What our load generator reports of the same sessions on a server that knows as little of them, and vLLM of it."""
    where = ["--base-url", f"{server.server.url}/v1", "--out", folder / "replay", "--tags", "none", "--no-report"]
    with Watched(server) as seen:
        succeeded("replay", trace, "--concurrency", concurrency, *where)
    (name,) = (folder / "replay").glob(f"*/{TURNS}")
    return of_replay([*read_turns(name.parent)]), seen.metrics


def of_replay(turns: Sequence[TurnRecord]) -> Reported:
    assert not [turn.error for turn in turns if turn.error]
    tokens = (sum(getattr(turn, f"{name}_tokens") or 0 for turn in turns) for name in ("prompt", "cached", "output"))
    answered: list[Any] = [turn for turn in turns if turn.finish_s is not None]
    first_s = fmean(turn.first_token_s - turn.sent_s for turn in answered)
    itl_s = fmean((turn.finish_s - turn.first_token_s) / (turn.output_tokens - 1) for turn in answered)
    return Reported(len(turns), *tokens, first_s, itl_s)


# ------------------------------------------------------------------------------------------------ the comparisons


def _shown(title: str, **rows: Reported) -> None:
    """Write the rows into the file that ``SHOW`` names."""
    if file := os.environ.get("SHOW"):
        with Path(file).open("a") as lines:
            lines.writelines(each.row(f"{title} | {name}") + "\n" for name, each in rows.items())


def _shown_each(title: str, **rows: Reported) -> None:
    """Write requests, and tokens a request, as ``_shown``."""
    if file := os.environ.get("SHOW"):
        with Path(file).open("a") as lines:
            for name, each in rows.items():
                tokens = (each.prompt_tokens / each.requests, each.output_tokens / each.requests)
                lines.write(f"| {title} | {name} | {each.requests} | {tokens[0]:.0f} | {tokens[1]:.1f} |\n")


def _policy(server: Live) -> str:
    return server.server.config.policy


def _agree(client: Reported, other: Reported) -> None:
    """Assert that the times of one play agree. A client counts its own time too, and its connection's, and a server
    that of reading a text: to the first token, and from it to the last, at most 0.25 s on a busy machine."""
    assert client.first_s == pytest.approx(other.first_s, abs=BUSY_S)
    assert client.itl_s == pytest.approx(other.itl_s, abs=BUSY_S * client.requests / client.output_tokens)


def _counts(reported: Reported) -> tuple[int, ...]:
    return reported.requests, reported.prompt_tokens, reported.cached_tokens, reported.output_tokens


def _recorded(events: Iterable[SchedulerEvent]) -> tuple[int, ...]:
    """The same counts in the server's records."""
    starts = [event for event in events if event.event == "start"]
    output = sum(event.output_tokens or 0 for event in events if event.event == "finish")
    prompt, cached = (sum(getattr(each, name) or 0 for each in starts) for name in ("prompt_tokens", "hit_tokens"))
    return len(starts), prompt, cached, output


def _held(events: Sequence[SchedulerEvent]) -> int:
    """Assert that a program's KV is held from its second turn on until the next turn hits it, unless that came after
    the hold's end, which a busy engine may notice too late. Returns the number of hits."""
    arrivals = {event.turn: event.t for event in events if event.event == "arrive"}
    pins = {event.turn: event for event in events if event.event == "pin"}
    ends = {event.turn: event.reason for event in events if event.event == "unpin"}
    assert {*range(1, max(arrivals))} <= {*pins}
    for turn in range(1, max(arrivals)):
        in_time = arrivals[turn + 1] < pins[turn].t + (pins[turn].ttl_s or 0.0)
        assert ends[turn] == "hit" or (ends[turn] == "expired" and not in_time)
    return sum(reason == "hit" for reason in ends.values())


def test_aiperf_reports_what_is_recorded_and_what_our_replay_reports(server: Live, tmp_path: Path) -> None:
    sessions, trace = invented(tmp_path / "sessions"), tmp_path / "trace.jsonl"
    succeeded("traces import", sessions, trace)
    whole = ["--num-sessions", SESSIONS, "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    with Watched(server) as seen:
        rows = aiperf(["aiperf", *whole], server, sessions, tmp_path)
    (ours, seen_of_ours), client = replayed(trace, server, tmp_path, concurrency=2), of_aiperf(rows)
    _shown(f"agentx-harness | {_policy(server)}", client=client, vLLM=seen.metrics, replay=ours)
    assert _counts(client) == _counts(seen.metrics)
    assert (client.requests, client.output_tokens) == (ours.requests, ours.output_tokens)
    assert client.prompt_tokens == pytest.approx(ours.prompt_tokens, rel=0.03)
    assert client.cached_tokens == pytest.approx(ours.cached_tokens, rel=0.05)
    _agree(client, seen.metrics)
    _agree(ours, seen_of_ours)
    if seen.events:
        assert _recorded(seen.events) == _counts(client)
        assert {*seen.programs} == {row["metadata"]["x_correlation_id"] for row in rows}
        assert len(seen.programs) == SESSIONS + 1  # a sub-agent is a program without a parent, as none is named
        assert sum(map(_held, seen.programs.values())) >= SESSIONS


def test_agentperf_local_reports_what_is_recorded_and_what_our_replay_reports(server: Live, tmp_path: Path) -> None:
    """The client first sends two short requests to find out whether the server obeys ``ignore_eos``.

    The requests of the task are one program, except the last one. That one offers no tools any more, so that its prompt
    has nearly nothing in common with those before: it is a program of its own.
    """
    programs, trace, out = environment("agentperf-local"), tmp_path / "trace.jsonl", tmp_path / "agentperf"
    (texts,) = environment("litellm").parent.glob("lib/*/site-packages/litellm/litellm_core_utils/tokenizers")
    (tasks,) = programs.parent.glob(f"lib/*/site-packages/{TASK}")
    succeeded("traces import", tasks, trace)
    task = ["--replay", "aa-mini-v1", "--tool-mode", "fixed_delay", "--no-power", "--output-dir", out]
    where = ["--base-url", f"{server.server.url}/v1", "--model", server.model]
    with Watched(server) as seen:
        _ran([programs / "agentperf-local", "run", *task, *where], tmp_path, TIKTOKEN_CACHE_DIR=str(texts))
    ours, seen_of_ours = replayed(trace, server, tmp_path, concurrency=1)
    client = of_agentperf([json.loads(line) for line in (out / "turns.jsonl").read_text().splitlines()])
    _shown(f"agentperf-local | {_policy(server)}", client=client, vLLM=seen.metrics, replay=ours)
    assert seen.metrics.requests == client.requests + 2
    assert (client.requests, client.output_tokens) == (ours.requests, ours.output_tokens)
    _agree(client, seen.metrics)
    _agree(ours, seen_of_ours)
    if seen.events:
        *probes, task_events, last = seen.programs.values()
        assert [len({event.turn for event in each}) for each in (*probes, task_events, last)] == [1, 1, 5, 1]
        assert _recorded([*task_events, *last]) == _counts(client)
        assert _held(task_events) == 3


@pytest.mark.parametrize("server", ["working-set"], indirect=True)
def test_agentx_s_sessions_are_programs_and_their_sub_agents_children(server: Live, tmp_path: Path) -> None:
    """The scenario of InferenceX for ten seconds: the client starts in the middle of sessions. When one ends, it plays
    it again with other token ids."""
    sessions = invented(tmp_path / "sessions")
    shortened = ["--unsafe-override", "--benchmark-duration", 10, "--warmup-requests-per-lane", 1]
    with Watched(server) as seen:
        rows = aiperf(["agentx", *shortened], server, sessions, tmp_path, **WITH_PARENTS)
    named = {row["metadata"]["x_correlation_id"]: row["metadata"] for row in rows}
    assert {*named} <= {*seen.programs}
    for name, said in named.items():
        arrivals = [event for event in seen.programs[name] if event.event == "arrive"]
        parent = said["root_correlation_id"] if said["agent_depth"] else None
        assert {(each.recognised_by, each.root_id) for each in arrivals} == {("header:x-dynamo-session-id", parent)}
    assert any(said["agent_depth"] for said in named.values())
    assert sum(map(_held, seen.programs.values())) >= 4


@pytest.mark.skipif(not AGENTX_S, reason="AGENTX_S=900 in the environment plays it: half an hour for each policy")
def test_agentx_as_long_as_its_rules_say(server: Live, tmp_path: Path) -> None:
    """The scenario by its own client, and by our replay, which warms up at the recorded pace. The client calls a result
    valid only of the benchmark's own sessions, which are not here (``--unsafe-override``)."""
    sessions, trace, out = invented(tmp_path / "sessions", 20, 6.0), tmp_path / "trace.jsonl", tmp_path / "replay"
    succeeded("traces import", sessions, trace)
    length = ["--unsafe-override", "--benchmark-duration", f"{AGENTX_S:.0f}", "--concurrency", 4]
    rows = aiperf(["agentx", *length], server, sessions, tmp_path)
    measured = [row for row in rows if row["metadata"]["benchmark_phase"] == "profiling" and not row.get("error")]
    client = of_aiperf(measured)
    loop = ["--scenario", "agentx", "--concurrency", 4, "--time-limit-s", AGENTX_S + 120, "--tags", "none"]
    done = succeeded("replay", trace, *loop, "--base-url", f"{server.server.url}/v1", "--out", out)
    assert "scenario agentx: comparable: true" in done.output
    (name,) = out.glob(f"*/{TURNS}")
    ours = of_replay([turn.client for turn in analyze_run(name.parent).facts.turns if turn.client is not None])
    _shown(f"agentx, {AGENTX_S:.0f} s | {_policy(server)}", client=client, replay=ours)
    _shown_each(f"agentx, {AGENTX_S:.0f} s | {_policy(server)}", client=client, replay=ours)
    assert client.first_s == pytest.approx(ours.first_s, abs=BUSY_S)
    assert client.cached_tokens / client.prompt_tokens == pytest.approx(
        ours.cached_tokens / ours.prompt_tokens, abs=0.05
    )
