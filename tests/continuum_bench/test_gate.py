"""``compare --slo`` and ``compare --fail-if``, as typed by a user and as read by a CI system."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_cli import bench, refused
from recorded_runs import write_recorded


def write_seeds(folder: Path, policy: str, first_s: float, **more: float) -> Path:
    """Three seeds of two programs."""
    for seed in range(3):
        write_recorded(folder / f"{policy[-9:]}-seed{seed}", policy, seed, [first_s + seed, first_s + 1], **more)  # type: ignore[arg-type]
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    write_seeds(tmp_path / "e", "vllm", 10.0)
    return write_seeds(tmp_path / "e", "continuum", 5.0, ttft_s=0.25)


def test_a_condition_that_holds_fails_the_command(experiment: Path) -> None:
    """An arm may be a class."""
    write_seeds(experiment, "my.policies:Own", 5.0)
    conditions = ["--fail-if", "my.policies:Own: jct_mean_ratio > 1.05", "--fail-if", "vllm: jct_mean > 8"]
    done = bench("compare", experiment, *conditions)
    assert done.exit_code == 3
    outcomes = [line for line in done.stderr.splitlines() if line.startswith(("ok: ", "FAILED: "))]
    assert [line.rpartition(": jct_mean")[0] for line in outcomes] == [
        "ok: my.policies:Own: jct_mean_ratio > 1.05",
        "FAILED: vllm: jct_mean > 8",
    ]


def test_two_versions_of_one_experiment_are_compared_arm_by_arm(experiment: Path, tmp_path: Path) -> None:
    """The same policies and seeds in both directories: continuum got slower, vllm did not."""
    new = write_seeds(write_seeds(tmp_path / "new", "vllm", 10.0), "continuum", 7.0)
    assert "are both policy" in bench("compare", experiment, new).stderr
    done = bench("compare", experiment, new, "--fail-if", "jct_mean_ratio > 1.05")
    assert done.exit_code == 3
    assert f"ok: vllm in {new}: jct_mean_ratio > 1.05: jct_mean_ratio 1\n" in done.stderr
    assert f"FAILED: continuum in {new}: jct_mean_ratio > 1.05: jct_mean_ratio 1.3" in done.stderr
    write_recorded(new / "static-ttl-seed0", "static-ttl", 0, [1.0, 1.0])
    said = refused("compare", experiment, new, "--fail-if", "jct_mean_ratio > 1.05")
    assert f"static-ttl has no counterpart in {experiment}" in said
