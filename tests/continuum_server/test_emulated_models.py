"""An emulated server has the KV cache groups of the model that it emulates, and speculative decoding as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.server_command import command_of, longest_request
from continuum_server.server_config import ServerConfig, ServerError
from live_server import cached, continued, live, tokens

SPEED = 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "gpu", "others", "block"),
    [
        ("gpt-oss-20b", "h100-80gb", 1, 16),
        ("gemma-3-12b", "h100-80gb", 5, 16),
        ("qwen3.6-35b-a3b", "h200-141gb", 3, 1056),
    ],
)
@pytest.mark.parametrize("policy", ["stock", "static-ttl"])
def test_a_held_turn_is_found_in_all_groups(
    tmp_path: Path, model: str, gpu: str, others: int, block: int, policy: str
) -> None:
    """Other requests take the pool while the tool runs; only what is held is found again."""
    pool = {"kv_blocks": 4000 if block == 16 else 64}
    options = {} if policy == "stock" else {"policy_options": {"ttl_s": 1e4}}
    emulated = EmulatedSettings(gpu=gpu, time_scale=SPEED)
    with live(tmp_path, policy=policy, model=model, emulated=emulated, **options, **pool) as server:
        prompt = tokens(6000, 1)
        assert cached(server.complete(prompt, 40, program_id="p")) == 0
        first = server.complete([*prompt, *tokens(200, 2)], 40, program_id="p")
        for other in range(12):
            server.complete(tokens(9000, 100 + other), 4)
        second = server.complete(continued([*prompt, *tokens(200, 2)], first, 100, 3), 8, program_id="p")
        if policy == "stock":
            assert cached(second) == 0
            return
        assert cached(second) >= 6200 // block * block
        described = httpx.get(f"{server.server.url}/continuum/state", timeout=30.0).json()["engines"][0]["kv_groups"]
        counts = [int(line.split(" x ")[0]) for line in described if " x " in line]
        assert sorted(counts) == sorted([1, others])
        assert all(f"blocks of {block} tokens" in line for line in described if " x " in line)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3.6-35b-a3b"])
def test_speculative_decoding_yields_the_mean_number_of_tokens(tmp_path: Path, model: str) -> None:
    settings = EmulatedSettings(gpu="h200-141gb", time_scale=SPEED, speculative="3:2.8")
    with live(tmp_path, policy="working-set", model=model, emulated=settings, max_num_seqs=64) as server:
        prompt = tokens(3000, 1)
        first = server.complete(prompt, 281, program_id="p")
        assert len(first.choices[0].token_ids) == 281
        again = server.complete(continued(prompt, first, 100, 2), 29, program_id="p")
        assert len(again.choices[0].token_ids) == 29
        assert cached(again) > 2000
        counts = [counted(server, f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "accepted_tokens")]
        assert counts == [110, 198], "280 and 28 tokens at 2.8 a step"
        json = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
        answer = server.client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "A number, please."}],
            response_format=json,  # type: ignore[call-overload]
            logprobs=True,
        )
        int(answer.choices[0].message.content)
        texts = server.client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "Something, please."}],
            max_tokens=50,
            logprobs=True,
            top_logprobs=2,
        )
        assert len(texts.choices[0].logprobs.content) == texts.usage.completion_tokens
        assert all(each.logprob == 0.0 for each in texts.choices[0].logprobs.content)


def counted(server: Any, name: str) -> int:
    lines = httpx.get(f"{server.server.url}/metrics", timeout=30.0).text.splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")))


@pytest.mark.parametrize(
    ("model", "groups", "window"), [("llama-3.1-8b", 0, 0), ("gpt-oss-20b", 1, 128), ("gemma-3-12b", 5, 1024)]
)
def test_the_longest_request_takes_blocks_in_every_group(model: str, groups: int, window: int) -> None:
    """Beside full attention's blocks, a request has in each group those of its window and of two steps in flight."""
    in_window = -(-(window - 1 + 2 * 2048) // 16) + 1
    assert longest_request(ServerConfig(model=model, kv_blocks=4000)) == (3999 - groups * in_window) * 16


def test_a_pool_without_a_block_for_each_group_is_refused() -> None:
    config = ServerConfig(model="qwen3.6-35b-a3b", kv_blocks=3, emulated=EmulatedSettings(gpu="h200-141gb"))
    with pytest.raises(
        ServerError, match=r"^3 KV blocks hold no request of qwen3.6-35b-a3b; allow more \(--kv-blocks\)"
    ):
        longest_request(config)


def test_more_requests_with_drafts_than_the_tables_cover_are_refused() -> None:
    with pytest.raises(ServerError, match=r"--speculative 3:2.8, 256 requests: .*; allow fewer \(--max-num-seqs\)"):
        command_of(ServerConfig(emulated=EmulatedSettings(speculative="3:2.8")), 1)


def test_blocks_are_as_large_as_a_state_and_drafts_take_room() -> None:
    def size(**changed: Any) -> str:
        emulated = EmulatedSettings(gpu="h200-141gb", **changed)
        words, _ = command_of(ServerConfig(model="qwen3.6-35b-a3b", emulated=emulated, max_num_seqs=64), 1)
        return words[words.index("--block-size") + 1]

    assert size() == "1056"
    assert int(size(speculative="3:2.8")) > 1056
