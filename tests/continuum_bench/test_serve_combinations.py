"""Options of ``serve`` together: a server would be started, or one line says why not. ``make fuzz`` draws hundreds."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from bench_cli import bench
from combinations import assert_all_drawn, assert_one_line, folder, words_of
from continuum_bench.options.serve import ServeOptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

VALUES = {
    "--engine": ("emulated", "cpu", "gpu", "none"),
    "--model": ("llama-3.1-8b", "tiny-random", "qwen2.5-0.5b", "someone/model", "absent/"),
    "--gpu": ("a100-80gb", "h100", "toaster"),
    "--tp": ("1", "2", "3"),
    "--policy": ("vllm", "stock", "continuum", "static-ttl", "oracle-ttl", "none"),
    "--policy-option": ("ttl_s=3", "nonsense=1", "ttl_s=x"),
    "--host": ("127.0.0.1", "::1", "0.0.0.0", "nowhere.invalid"),
    "--port": ("0", "65535", "65536"),
    "--data-parallel-size": ("1", "2", "1000"),
    "--time-scale": ("0.5", "100"),
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
