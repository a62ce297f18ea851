"""What this machine lacks is said in one line before vLLM starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_server import preflight
from continuum_server.launcher import Server
from continuum_server.preflight import check_machine
from continuum_server.server_config import ServerConfig, ServerError
from fake_server import FakeServer
from huggingface_hub import constants

GPU = ServerConfig(engine="gpu", model="someone/model")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with a GPU, vLLM for GPUs and an empty cache."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    monkeypatch.setattr(preflight, "_torch", lambda: "2.13.0+cu130")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return tmp_path


def test_a_machine_without_a_gpu(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "dev" / "nvidia0").rename(machine / "dev" / "nvidiactl")
    with pytest.raises(ServerError, match="engine gpu: this machine has no GPU; --engine emulated models a GPU"):
        check_machine(GPU, machine)
    (machine / "dev" / "kfd").touch()
    monkeypatch.setattr(preflight, "_torch", lambda: "2.13.0+cpu")
    with pytest.raises(ServerError, match=r"vLLM here is a CPU build \(torch 2\.13\.0\+cpu\)"):
        check_machine(GPU, machine)


@pytest.mark.parametrize("config", [GPU, ServerConfig(engine="cpu", model="someone/model")])
def test_a_model_that_is_nowhere(machine: Path, config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServerError, match=r"cache, and http://127.0.0.1:9 does not answer .*refused"):
        check_machine(config, machine)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ServerError, match=r"someone/model: is no folder .*, and HF_HUB_OFFLINE forbids a download"):
        check_machine(config, machine)


def test_what_vllm_itself_finds_out(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that answers, a model in the cache, in a folder, or from elsewhere."""
    cached = machine / "cache" / "models--someone--model"
    with FakeServer() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.root)
        check_machine(GPU, machine)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    check_machine(ServerConfig(engine="gpu", model=str(machine)), machine)
    check_machine(ServerConfig(engine="gpu", model="s3://bucket/model"), machine)
    check_machine(ServerConfig(engine="gpu", model="a/b", vllm_arguments=("--load-format=runai_streamer",)), machine)
    check_machine(ServerConfig(engine="cpu"), machine)
    check_machine(ServerConfig(), machine)
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    (cached / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (cached / "snapshots" / ("0" * 40) / "config.json").write_text("{}")
    check_machine(GPU, machine)


def test_a_server_does_not_start_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "DEVICES", ())
    with pytest.raises(ServerError, match="this machine has no GPU"):
        Server(ServerConfig(engine="gpu", model="someone/model", port=0), tmp_path / "log")
    assert not (tmp_path / "log").exists()
