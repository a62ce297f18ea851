"""``step-times build``: a model of one's own, its table in the cache, and what finds it there."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from continuum_bench.errors import BenchError
from continuum_bench.options.step_times import BuildOptions
from continuum_bench.step_times_command import build_user_table
from continuum_server.step_times.catalog import available, find_model, kv_capacity, load_step_times
from continuum_server.step_times.hf_config import config_of
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.specs import Model

needs_source = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "continuum" / "step-times"


def write_config(folder: Path, model: Model) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(model)), encoding="utf-8")
    return str(folder)


@needs_source
def test_a_table_is_built_and_found(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = replace(find_model("qwen3-8b"), layers=2)
    folder = write_config(tmp_path / "My_Tiny", tiny)
    assert build_user_table(BuildOptions(model=folder, gpu="h100", tp=1)) == 0
    assert "--gpu h100-80gb --model my-tiny --tp 1 uses it" in capsys.readouterr().out
    assert sorted(file.name for file in cache.iterdir()) == ["h100-80gb_my-tiny_tp1.json", "my-tiny.model.json"]
    times = load_step_times("h100", "me/My-Tiny", 1, 0.0)
    assert (times.provenance.kind, times.provenance.model) == ("user-table", "my-tiny")
    whole = load_step_times("h100", "qwen3-8b", 1, 0.0)
    assert times.prefill_s(2048) < 0.1 * whole.prefill_s(2048)
    assert kv_capacity("h100", "my-tiny").bytes_per_token == 2 * 2 * 8 * 128 * 2
    assert load_step_times("a100-40gb", "my-tiny").provenance.kind == "roofline"
    assert load_step_times("h200", "qwen3-8b").provenance.kind == "roofline"  # a pair without a table
    assert ("h100-80gb", "my-tiny", "user-table") in [(p.gpu, p.model, p.kind) for p in available()]


def test_a_model_without_measurements_is_known_by_its_roofline(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "odd", replace(find_model("qwen3-8b"), hidden=4000))
    with pytest.raises(BenchError, match="odd is known now, and has a roofline"):
        build_user_table(BuildOptions(model=folder, gpu="rtx-4090"))
    assert load_step_times("rtx-4090", "odd").provenance.kind == "roofline"


def test_names_of_models_that_exist_are_kept(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "x", find_model("qwen3-8b"))
    with pytest.raises(BenchError, match="give yours another name"):
        build_user_table(BuildOptions(model=folder, gpu="h100", name="Qwen3-32B"))


def test_a_broken_file_in_the_cache_is_named(cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "mine.model.json").write_text("{}", encoding="utf-8")
    with pytest.raises(StepTimesError, match=r"mine\.model\.json: Object missing required field"):
        find_model("mine")
