"""``validate`` on servers whose KV pool was full: how many blocks they had, read from the log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from continuum_bench.cli import app
from continuum_bench.options.validate import ValidateOptions
from continuum_bench.validate.command import engine_of
from continuum_bench.validate.memory import blocks_of_a_full_pool, refined_blocks
from continuum_bench.validate.replay import play
from continuum_bench.validate.served import LoggedRun, Served
from continuum_server.virtual.config import times_of
from typer.testing import CliRunner

SENT = tuple(Served(0.01 * n, 0.01 * n, 0.01 * n, 150 + 37 * (n % 11), 100 + 23 * (n % 7)) for n in range(160))


def served_by(kv_blocks: int, max_num_seqs: int, step_overhead_ms: float | None = None) -> list[Served]:
    """The same requests on the virtual engine of one H100."""
    options = ValidateOptions(
        log=Path("unused"),
        gpu="h100",
        model="llama-3.1-8b",
        kv_blocks=kv_blocks,
        max_num_seqs=max_num_seqs,
        step_overhead_ms=step_overhead_ms,
    )
    run = LoggedRun("full", SENT)
    config = engine_of(run, options)
    return play(run, config, times_of(config), asynchronous=True)


@pytest.fixture(scope="module")
def full() -> list[Served]:
    return served_by(800, 256)


def test_a_full_pool_shows_its_size(full: list[Served]) -> None:
    assert blocks_of_a_full_pool(full, 256, 16) == pytest.approx(800, rel=0.05)


def test_the_estimate_is_one_that_shows_the_same_on_the_model(full: list[Served]) -> None:
    """Whatever part of a full pool running requests hold, and with wrong step times."""
    tight = served_by(500, 256, step_overhead_ms=10.0)
    for served, blocks in ((full, 800), (tight, 500)):
        assert refined_blocks(served, 256, 16, lambda n: served_by(n, 256)) == pytest.approx(blocks, rel=0.015)


def test_an_estimate_that_cannot_be_played_stays(full: list[Served]) -> None:
    assert refined_blocks(full, 256, 16, lambda n: None) == blocks_of_a_full_pool(full, 256, 16)


def test_a_small_card_may_have_had_any_pool(full: list[Served]) -> None:
    """At a lower utilisation the model would hardly fit an RTX 4090."""
    run = LoggedRun("full", tuple(full))
    config = engine_of(run, ValidateOptions(log=Path("unused"), gpu="rtx-4090", model="llama-3.1-8b"))
    assert config.kv_blocks == pytest.approx(800, rel=0.05)


def test_a_queue_for_places_is_no_full_pool() -> None:
    assert blocks_of_a_full_pool(served_by(20_000, 8), 8, 16) is None


def test_a_server_that_nobody_waits_for_has_no_full_pool() -> None:
    assert blocks_of_a_full_pool([Served(0.0, 0.1, 9.0, 100, 10)], 256, 16) is None


def test_one_token_needs_no_time() -> None:
    waiting = [Served(0.0, 8.0, 9.0, 100, 10)] * 2
    assert blocks_of_a_full_pool([Served(0.0, 0.1, 0.1, 100, 1), *waiting], 256, 16) is None


def test_the_command_finds_the_blocks_that_nobody_named(full: list[Served], tmp_path: Path) -> None:
    log = tmp_path / "bench.json"
    columns = {
        "start_times": [each.arrival_s for each in full],
        "ttfts": [each.first_token_s - each.arrival_s for each in full],
        "itls": [[each.finish_s - each.first_token_s] for each in full],
        "input_lens": [each.prompt_tokens for each in full],
        "output_lens": [each.output_tokens for each in full],
    }
    log.write_text(json.dumps(columns), encoding="utf-8")
    options = ["validate", str(log), "--gpu", "h100", "--model", "llama-3.1-8b", "--max-num-seqs", "256"]
    result = CliRunner().invoke(app, [*options, "--json"])
    (found,) = json.loads(result.stdout)["runs"]
    assert found["kv_blocks"]["from"].startswith("computed")  # so small a pool is not believed
    options += ["--gpu-memory-utilization", "0.24"]
    result = CliRunner().invoke(app, [*options, "--json"])
    (found,) = json.loads(result.stdout)["runs"]
    assert found["kv_blocks"]["from"].startswith("estimated")
    assert abs(found["e2e_mean_error"]) < 0.05
    assert "estimated" in CliRunner().invoke(app, options).output
    result = CliRunner().invoke(app, [*options, "--kv-blocks", "800", "--json"])
    (found,) = json.loads(result.stdout)["runs"]
    assert found["kv_blocks"] == {"number": 800, "from": "--kv-blocks"}
    assert abs(found["e2e_mean_error"]) < 1e-6


def test_agents_that_share_context_are_not_counted(full: list[Served]) -> None:
    run = LoggedRun("agents", tuple(replace(each, program_id="a") for each in full))
    config = engine_of(run, ValidateOptions(log=Path("unused"), gpu="h100", model="llama-3.1-8b"))
    assert config.kv_blocks is None
