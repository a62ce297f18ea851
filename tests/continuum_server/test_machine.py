"""The machine of a server in words, and in the manifest of a run against it."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_bench.live.endpoint import Endpoint
from continuum_server import machine as module


def test_gpus_cores_and_processor_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: {0, 3}, raising=False)
    monkeypatch.setattr(module, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(module, "NVIDIA", tmp_path / "gpus")
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: A: fast one\nprocessor\t: 1\nmodel name\t: other\n"
    )
    assert module.machine.__wrapped__() == "2 cores of A: fast one"
    for bus in ("0000:01", "0000:02"):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        (tmp_path / "gpus" / bus / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 12\n")
    assert module.machine.__wrapped__() == "2 x NVIDIA H200, 2 cores of A: fast one"


@pytest.mark.parametrize(
    ("machine", "is_random", "text"),
    [
        (None, False, "a server; its hardware is not known to the client"),
        ("1 core of A", False, "a server on 1 core of A"),
        ("1 core of A", True, "a server on 1 core of A; its weights are random"),
    ],
)
def test_a_manifest_names_machine_and_random_weights(machine: str | None, is_random: bool, text: str) -> None:
    endpoint = Endpoint("http://h:1/v1", ("m",), machine=machine, random_weights=is_random)
    assert endpoint.manifest("m").hardware.endpoint == text
