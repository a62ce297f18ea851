"""Limits and thresholds of the server's modules: one case below, at and above each."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from continuum_server.log_once import KINDS, LogOnce
from continuum_server.routers import Arrival, CacheAware, Sticky, Traffic
from continuum_server.step_times.catalog import kv_capacity
from continuum_server.step_times.model import OutOfRange
from continuum_server.virtual.offload import OffloadError, read_offload
from continuum_server.vllm_plugin.request_tags import normalize_tags


@pytest.mark.parametrize("kinds", [KINDS - 1, KINDS, KINDS + 1])
def test_a_limited_number_of_kinds_of_warnings_is_logged(kinds: int, caplog: pytest.LogCaptureFixture) -> None:
    warn = LogOnce()
    for kind in (*range(kinds), 0):
        warn(kind, "of kind %d", kind)
    assert len(caplog.records) == min(kinds, KINDS)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize(
    ("xargs", "read"),
    [
        *(({f"k{number}": 0 for number in range(others)}, others < 256) for others in (254, 255, 256)),
        *(({"k": "x" * (65_536 - len("kprogram_ida") + more)}, more <= 0) for more in (-1, 0, 1)),
        *(({"k": [1] * (65_536 - len("kprogram_ida") + more)}, more <= 0) for more in (-1, 0, 1)),
        *(({"k" * (65_536 - len("program_ida") + more): 0}, more <= 0) for more in (-1, 0, 1)),
    ],
)
@pytest.mark.parametrize("carrier", ["vllm_xargs", "extra_args"])
def test_256_xargs_of_65536_characters_are_read(carrier: str, xargs: dict[str, Any], read: bool) -> None:
    nested, sent = carrier == "extra_args", {carrier: {**xargs, "program_id": "a"}}
    body = json.dumps({"sampling_params": sent} if nested else sent).encode()
    tagged = normalize_tags(body, {}, nested=nested)
    assert tagged.rejected == (() if read else (carrier,))
    passed_on = json.loads(tagged.body)
    assert ((passed_on["sampling_params"] if nested else passed_on)[carrier] is not None) is read


def chosen(requests: tuple[int, int], known_tokens: int) -> int:
    """Where a prompt of 100 tokens goes, of which the first replica was sent so many."""
    replicas = {index: Traffic(requests=number) for index, number in enumerate(requests)}
    replicas[0].prefixes["p"], replicas[0].tokens_sent = known_tokens, 500
    return CacheAware().choose(Arrival("p", 100), replicas)


@pytest.mark.parametrize(("known_tokens", "replica"), [(29, 1), (30, 1), (31, 0)])
def test_cache_aware_follows_a_prefix_of_more_than_three_tenths(known_tokens: int, replica: int) -> None:
    assert chosen((0, 0), known_tokens) == replica


@pytest.mark.parametrize(
    ("requests", "replica"),
    [
        *(((63, 0), 0), ((64, 0), 0), ((65, 0), 1)),  # 64 requests apart
        *(((194, 129), 1), ((195, 130), 0), ((196, 130), 1)),  # one and a half times as many, if over 64 apart
    ],
)
def test_cache_aware_balances_loads_that_are_far_apart(requests: tuple[int, int], replica: int) -> None:
    assert chosen(requests, 100) == replica


@pytest.mark.parametrize(("shared_tokens", "more", "replica"), [(4095, 8, 1), (4096, 8, 0), (4096, 9, 1)])
def test_sticky_keeps_long_prefixes_together(shared_tokens: int, more: int, replica: int) -> None:
    """The prefix is at the first replica, which has so many programs more than the second."""
    here = {str(number): "system" for number in range(1 + more)}
    replicas = {0: Traffic(programs=dict(here)), 1: Traffic(programs={"other": None})}
    arrival = Arrival("p", 9000, shared_prefix_id="system", shared_prefix_tokens=shared_tokens)
    assert Sticky().choose(arrival, replicas) == replica


@pytest.mark.parametrize(
    ("preset", "fits"),
    [
        *(("dram-0", False), ("dram-0.001", True), ("dram-999999", True), ("dram-1000000", True)),
        *(("dram-1000001", False), ("dram-1+ssd-1000000", True), ("dram-1+ssd-1000001", False)),
        *(("dram-1@pcie4/1", True), ("dram-1@pcie4/99", True), ("dram-1@pcie4/100", False), ("dram-1@pcie4/0", False)),
        *(("dram-1@pcie2", False), ("dram-1@pcie3", True), ("dram-1@pcie5", True), ("dram-1@pcie6", False)),
    ],
)
def test_sizes_and_links_of_tiers(preset: str, fits: bool) -> None:
    if fits:
        assert read_offload(preset, "h100").dram.gb > 0
    else:
        with pytest.raises(OffloadError, match="dram-"):
            read_offload(preset, "h100")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"utilization": 0.0}, "utilisation = 0"),
        ({"utilization": 1.0}, None),
        ({"utilization": 1.001}, "utilisation = 1.001"),
        ({"block_size": 0}, "block size = 0"),
        ({"block_size": 1}, None),
        ({"block_size": 4096}, None),
        ({"block_size": 4097}, "block size = 4097"),
        ({"tensor_parallel": 0}, "tensor parallel degree = 0"),
        ({"tensor_parallel": 64}, None),
        ({"tensor_parallel": 65}, "tensor parallel degree = 65"),
    ],
)
def test_a_pool_s_settings(setting: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert kv_capacity("h100", "llama-3.1-8b", **setting).num_blocks > 0
    else:
        with pytest.raises(OutOfRange, match=message):
            kv_capacity("h100", "llama-3.1-8b", **setting)
