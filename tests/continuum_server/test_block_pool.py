"""The virtual engine's shorter loops take, cache and evict the same blocks in the same order as vLLM's own code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.log_once import LogOnce
from continuum_server.virtual import config as config_module
from continuum_server.virtual.block_pool import ShortCount, ShortLookup, ShortLoops
from continuum_server.virtual.config import OWN_LOOPS, SWITCH, EngineConfig, describe
from continuum_server.virtual.engine import simulate
from continuum_server.vllm_plugin.versions import check_version, has_short_loops
from continuum_traces.playing.conversation import Job
from continuum_traces.records.run_dir import EVENTS, SCHEDULER_TIME
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import BITING, build, program, workloads
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

pytestmark = pytest.mark.skipif(not has_short_loops(check_version()), reason="this vLLM runs its own code")


def blocks_of(pool: BlockPool) -> tuple[list[int], dict[bytes, list[int]], list[Any]]:
    """The free blocks in the order of eviction, the blocks of each hash, and what each block knows of itself.

    A hash has 8 bytes; in vLLM's own code the number of the KV cache group follows.
    """
    free, block = [], pool.free_block_queue.fake_free_list_head.next_free_block
    while block is not None and block.block_id >= 0:
        free.append(block.block_id)
        block = block.next_free_block
    cached = pool.cached_block_hash_to_block._cache.items()
    by_hash = {key[:8]: list(found) if isinstance(found, dict) else [found.block_id] for key, found in cached}
    known = [(block.ref_cnt, (block.block_hash or b"")[:8], block.block_hash_num_tokens) for block in pool.blocks]
    return free, by_hash, known


def classes_of(manager: Any) -> tuple[type, ...]:
    return type(manager.block_pool), type(manager.coordinator), type(manager.coordinator.single_type_managers[0])


def history(jobs: list[Job], policy: str, own_code: bool, **shape: int) -> list[Any]:
    """The pool's state after each call of the scheduler, then the run's events and turns."""
    events: list[Any] = []
    turns: list[Any] = []
    scheduler, loop = build(jobs, policy, BITING[policy], turns=turns, events=events, **shape)
    manager = scheduler.kv_cache_manager
    assert classes_of(manager) == (ShortLoops, ShortLookup, ShortCount)
    if own_code:
        manager.block_pool.__class__, manager.coordinator.__class__ = BlockPool, UnitaryKVCacheCoordinator
        manager.coordinator.single_type_managers[0].__class__ = FullAttentionManager
        del scheduler._update_request_with_output
    states = []
    while loop.step():
        states.append(blocks_of(manager.block_pool))
    return [states, events, turns]


@pytest.mark.parametrize("policy", ["vllm", "continuum", "working-set"])
@given(jobs=workloads(), blocks=st.integers(48, 128), chunk_tokens=st.sampled_from([9, 256]), shared=st.booleans())
@settings(max_examples=8)
def test_same_blocks_as_vllms_own_code(policy: str, jobs: list[Job], shared: bool, **shape: int) -> None:
    if shared:  # several blocks of one hash
        jobs = [replace(job, program=replace(job.program, shared_prefix_id="system")) for job in jobs]
        jobs = [replace(job, program=replace(job.program, shared_prefix_tokens=32)) for job in jobs]
    assert history(jobs, policy, own_code=False, **shape) == history(jobs, policy, own_code=True, **shape)


def test_a_lookup_finds_the_block_that_has_a_hash_the_longest() -> None:
    """Also where the block that was found before left the cache and came back."""
    manager: Any = build([], "vllm", {}, blocks=8)[0].kv_cache_manager
    pool, coordinator, prompt = manager.block_pool, manager.coordinator, SimpleNamespace(block_hashes=[b"a"])

    def cache(block: Any) -> None:
        pool.cache_full_blocks(prompt, [block], 0, 1, coordinator.block_size, 0)

    def found() -> Any:
        return coordinator.find_longest_cache_hit(prompt.block_hashes, coordinator.block_size)[0][0]

    first, second = pool.get_new_blocks(2)
    cache(first)
    cache(second)
    assert found() == [first]
    pool.free_blocks([first])
    assert first in pool.get_new_blocks(6)  # all that are free
    cache(first)
    assert found() == [second]


def test_a_run_with_vllms_own_code_writes_the_same_bytes_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    programs = [program(f"p{number}", new=160) for number in range(6)]
    jobs = [Job(each, 0.05 * number) for number, each in enumerate(programs)]
    config = EngineConfig(kv_blocks=64, max_num_seqs=4)
    monkeypatch.setattr(config_module, "_warn", LogOnce())

    def played(name: str) -> tuple[dict[str, str], dict[str, bytes]]:
        versions = describe(config).versions
        (tmp_path / name).mkdir()
        simulate(config, "static-ttl", {"ttl_s": 2.0}, jobs, 0, tmp_path / name)
        files = {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        return versions, {name: content for name, content in files.items() if name != SCHEDULER_TIME}

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "continuum"]

    versions, files = played("short")
    assert not warnings()
    monkeypatch.setenv(SWITCH, "own")
    manager = build([], "vllm", {})[0].kv_cache_manager
    assert classes_of(manager) == (BlockPool, UnitaryKVCacheCoordinator, FullAttentionManager)
    assert played("own") == (versions | {"vllm_loops": OWN_LOOPS}, files)
    assert describe(config).versions["vllm_loops"] == OWN_LOOPS
    (warning,) = warnings()
    assert warning.endswith(f"the virtual engine's inner loops are {OWN_LOOPS}")
    assert files[EVENTS].count(b'"pin"') > 0
