"""Options of ``serve`` together: a server would be started, or one line says why not. ``make fuzz`` draws hundreds.
Six servers are really started."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from bench_cli import bench
from combinations import assert_all_drawn, assert_one_line, folder, words_of
from continuum_bench.options.serve import ServeOptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live_server import ends_soon, serve_command, sessions_of

VALUES = {
    "--engine": ("emulated", "cpu", "gpu", "none"),
    "--model": ("llama-3.1-8b", "gpt-oss-20b", "tiny-random", "qwen2.5-0.5b", "someone/model", "absent/"),
    "--gpu": ("a100-80gb", "h100", "toaster"),
    "--tp": ("1", "2", "3"),
    "--policy": ("vllm", "stock", "continuum", "static-ttl", "oracle-ttl", "none"),
    "--policy-option": ("ttl_s=3", "nonsense=1", "ttl_s=x"),
    "--host": ("127.0.0.1", "::1", "0.0.0.0", "nowhere.invalid"),
    "--port": ("0", "65535", "65536"),
    "--data-parallel-size": ("1", "2", "1000"),
    "--time-scale": ("0.5", "100"),
    "--speculative": ("3:2.8", "1:3", "x"),
    "--replies": ("replies.jsonl", "absent.jsonl", "."),
    "--block-size": ("16", "32", "7"),
    "--max-model-len": ("1", "4096", "1000000000"),
    "--record": ("record", "file", "file/in"),
    "--statistics": ("tools.json", "file", "."),
    "--profile": ("profile.json", "absent.json", "file"),
    "--tool-call-parser": ("none", "hermes", "nonsense"),
    "--max-ttl-s": ("0", "60"),
    "--max-pinned-share": ("0", "0.5", "1", "1.1"),
    "--max-pins-per-client": ("0", "4"),
    "--max-programs": ("0", "10"),
    "--max-overtake-s": ("0", "9"),
    "--fair": ("keys", "none"),
    "--key-lag": ("0", "2"),
    "--key-weight": ("a=2", "a=0", "a"),
    "--tenant-header": ("x-tenant", "x tenant"),
    "--session-header": ("x-job", "x job"),
    "--log": ("log", "file/log", "."),
    "--drain-s": ("0", "5"),
    "--ready-timeout-s": ("1", "0"),
    "--step-overhead-ms": ("0", "3"),
    "--step-times": ("low", "high"),
    "--max-num-seqs": ("1", "256"),
    "--chunk-tokens": ("16", "4000"),
    "--kv-blocks": ("1", "2", "400"),
    "--gpu-memory-utilization": ("0.01", "0.5", "1"),
    "--pins-yield-to": ("policy", "never"),
    "--one-offs": ("first", "order"),
    "--recognise": ("ids", "none"),
    "--first-token-s": ("0", "0.5"),
}
VLLM = {
    "--api-key": ("secret",),
    "--enable-prefix-caching": ("",),
    "--no-enable-prefix-caching": ("",),
    "--scheduling-policy=priority": ("",),
    "--port=8": ("",),
    "--max_num_seqs=4": ("",),
    "--uds": ("socket",),
    "--kv-transfer-config": ("{}",),
    "--nonsense": ("",),
}
"""Some of vLLM's own options, which stand behind ``--``."""


class WouldStartError(Exception):
    """A server would have been started."""


def serve(words: list[str], vllm: list[str]) -> None:
    def start(*arguments: Any, **options: Any) -> None:
        raise WouldStartError

    with folder() as here, pytest.MonkeyPatch.context() as patched:
        patched.chdir(here)
        patched.delenv("VLLM_API_KEY", raising=False)
        (here / "file").write_text("")
        (here / "replies.jsonl").write_text('{"text": "fine"}\n')
        port = [] if "--port" in words else ["--port", "0"]
        log = [] if "--log" in words else ["--log", "log"]
        given = [*port, *log, *words, *(["--", *vllm] if vllm else [])]
        with patch("continuum_server.launcher.subprocess.Popen", start):
            done = bench("serve", *given)
        if done.exit_code == 2:
            assert_one_line(done, [*given, *(word.partition("=")[0] for word in given)])
        else:
            assert isinstance(done.exception, WouldStartError), repr(done.exception) + done.output


def test_every_option_of_a_server_is_drawn() -> None:
    assert_all_drawn(ServeOptions, VALUES, "")


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(words_of(VALUES), st.just([]) | words_of(VLLM, 2))
def test_options_of_a_server_together(words: list[str], vllm: list[str]) -> None:
    serve(words, vllm)


POLICIES = ("stock", "continuum", "working-set", "thunderagent", "infercept", "vllm")
STARTED = (
    "--data-parallel-size 2 --record record",
    "--data-parallel-size 2",
    "--session-header x-job --statistics tools.json",
    "--fair none",
    "--max-ttl-s 0",
    "--max-overtake-s 0",
    "--max-programs 1",
    "--max-pinned-share 0",
    "--max-pins-per-client 0",
    "--tenant-header x-tenant --key-weight secret=2",
    "--key-lag 0",
    "--kv-blocks 40 --block-size 7",
    "--max-num-seqs 1 --chunk-tokens 16",
    "--gpu a100-80gb --tp 2 --step-times low",
    "--model gemma-3-12b",
    "--recognise none",
    "--one-offs fcfs --pins-yield-to never",
    "--first-token-s 0.5",
    "--host ::1",
    "--replies replies.jsonl",
    "--time-scale 100 --step-overhead-ms 0",
    "--drain-s 0",
    "--tool-call-parser none",
)
"""Options with which servers are really started, in words that belong together."""
OF_VLLM = (
    "--api-server-count 2",
    "--scheduling-policy=priority",
    "--no-async-scheduling --max_num_seqs=4",
    "--root-path /behind --served-model-name mine",
    "--stream-interval 4",
    "--reasoning-parser qwen3",
)
KEY = {"Authorization": "Bearer secret"}


def dealt(options: tuple[str, ...]) -> list[list[str]]:
    """Deal these options to one server of each policy, the same ones every time."""
    shuffled = random.Random(71).sample(options, len(options))
    return [" ".join(shuffled[number :: len(POLICIES)]).split() for number in range(len(POLICIES))]


STARTS = [
    ["--policy", policy, *ours, "--", "--api-key", "secret", "other", *theirs]
    for policy, ours, theirs in zip(POLICIES, dealt(STARTED), dealt(OF_VLLM), strict=True)
]


def assert_answers(words: list[str], said: list[str]) -> None:
    """Assert that a server, as it says where it is, answers requests, and shows its state and its metrics."""
    url, model = said[0].split()[1].removesuffix(","), said[1].partition('model="')[2].rstrip('"\n')
    request = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Say it."}]}
    for stream in (False, True):
        answer = httpx.post(f"{url}/chat/completions", json={**request, "stream": stream}, headers=KEY, timeout=300.0)
        assert (answer.status_code, "finish_reason" in answer.text) == (200, True), answer.text
    root, is_stock = url.removesuffix("/v1"), "stock" in words
    state = httpx.get(f"{root}/continuum/state", headers=KEY, timeout=300.0)
    assert state.status_code == (503 if is_stock else 200), state.text
    metrics = httpx.get(f"{root}/metrics", headers=KEY, timeout=300.0)
    assert (metrics.status_code, "continuum:" in metrics.text) == (200, not is_stock)
    assert "vllm:num_requests_running" in metrics.text
    if not is_stock:
        assert len(state.json()["engines"]) == (2 if "--data-parallel-size" in words else 1)


@pytest.mark.slow
@pytest.mark.parametrize("words", STARTS, ids=POLICIES)
def test_servers_of_options_together(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers, and ends at a signal with status 0, no error and no process left."""
    monkeypatch.chdir(tmp_path)
    Path("replies.jsonl").write_text('{"program": "*", "replies": [{"text": "fine"}]}\n')
    served = serve_command(tmp_path, *words)
    assert served.stdout is not None
    try:
        said = [served.stdout.readline(), served.stdout.readline()]
        assert said[0].startswith("ready: "), served.communicate()[1]
        assert_answers(words, said)
        sessions = sessions_of(tmp_path)
        served.send_signal((signal.SIGINT, signal.SIGTERM)[len(words) % 2])
        _, errors = served.communicate(timeout=300)
    finally:
        served.kill()
    assert (served.returncode, "rror" in errors, ends_soon(sessions)) == (0, False, []), errors
    assert Path("record").exists() == ("--record" in words and "stock" not in words)
    assert Path("tools.json").exists() == ("--statistics" in words and "continuum" in words)


@pytest.mark.slow
def test_what_vllm_refuses_is_one_line(tmp_path: Path) -> None:
    served = serve_command(tmp_path, "--chunk-tokens", "256", "--", "--no-enable-chunked-prefill")
    output, errors = served.communicate(timeout=300)
    assert (served.returncode, output, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("error: the server ended by itself with status 1: Value error, max_num_batched_tokens")
    assert errors.endswith(f"; log {tmp_path}/log\n")
