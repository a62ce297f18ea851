"""Images and containers, on a strict stand-in of Docker's command line. No container is run here."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_agents.protocol import BATCH_LABEL
from continuum_bench.agents.containers import pull_images, remove_containers
from continuum_bench.agents.runner import batch_label
from continuum_bench.errors import BenchError
from fake_docker import install, put


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state of a stand-in of Docker."""
    command, state = install(tmp_path, tmp_path)
    monkeypatch.setenv("MSWEA_DOCKER_EXECUTABLE", str(command))
    return state


def test_images_that_are_not_here_are_pulled(docker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = ["here:1", "docker.io/swebench/one:latest", "registry.example:5000/two"]
    pull_images(images)
    assert (docker / "images").read_text().splitlines() == images
    assert capsys.readouterr().err.splitlines() == [f"pulling {image}" for image in images[1:]]
    with pytest.raises(BenchError, match=r"docker pull: Error response from daemon: manifest unknown$"):
        pull_images(["nobody/nothing:1"])


def test_strays_of_one_batch_are_removed_and_others_are_not(docker: Path, tmp_path: Path) -> None:
    mine, other = batch_label(tmp_path / "run"), batch_label(tmp_path / "another")
    labels = {"a": f"{BATCH_LABEL}={mine}", "b": f"{BATCH_LABEL}={other}", "c": f"{BATCH_LABEL}={mine}"}
    for name, label in {**labels, "postgres": "com.example=db"}.items():
        put(docker, name, label)
    for batch, left in ((mine, ["b", "postgres"]), (other, ["postgres"]), (other, ["postgres"])):
        remove_containers(batch)
        assert sorted(folder.name for folder in docker.iterdir() if folder.is_dir()) == left


def test_no_docker_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_DOCKER_EXECUTABLE", "/nowhere/docker")
    with pytest.raises(BenchError, match="/nowhere/docker: No such file or directory"):
        remove_containers("any")
