"""vLLM's own tests of its scheduler and of KV connectors, run with our scheduler in the place of vLLM's. They come from
vLLM's source distribution on PyPI.

``make frameworks NAMES="suite-vllm vllm-lowest vllm-newest"`` builds the environments; the sources are downloaded at
the first run. Of each file in ``FILES`` the tests run that pass under vLLM's scheduler and create one. Whatever then
fails under ours is listed in vllm_suite/differences.toml with its reason. ``POLICIES`` in the environment
names other policies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import tomllib
from continuum_server.vllm_plugin import versions
from continuum_server.vllm_plugin.versions import TESTED

pytestmark = pytest.mark.slow

ENVIRONMENTS = Path(__file__).resolve().parents[2] / ".frameworks"
TOOLS = ENVIRONMENTS / "suite-vllm"
PARTS = Path(__file__).with_name("vllm_suite")
PYTHONS = {
    TESTED[0].version: ENVIRONMENTS / "vllm-lowest" / "bin" / "python",
    TESTED[-1].version: ENVIRONMENTS / "vllm-newest" / "bin" / "python",
}
FILES = """
core: scheduler async_scheduler prefix_replay deferred_block_free swa_inflight_window_free worker_slot_overflow
kv_connector/unit: bidirectional_kv_transfer remote_prefill_lifecycle remote_decode_lifecycle decode_bench_connector
kv_connector/unit: invalid_blocks_correctness error_propagation cache_pollution_prevention
kv_connector/unit: scheduler_kv_connector_override kv_load_failure_recovery
"""
"""The files that have most of the tests that create a scheduler. The files that are left out take minutes for a dozen
such tests."""
FEWEST = 150
"""The least number of tests that create a scheduler and pass with vLLM's own. If fewer do, the suite did not run as it
should."""
MODEL = {"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 768, "num_hidden_layers": 12}
MODEL |= {"num_attention_heads": 12, "ffn_dim": 3072, "max_position_embeddings": 2048, "vocab_size": 50272}
MODEL |= {"word_embed_proj_dim": 768, "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
"""The configuration of facebook/opt-125m, which the tests name. They need no weights."""


def run(python: Path, version: str, folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (packages,) = TOOLS.glob("lib/python*/site-packages")
    built = {"VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
    offline = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": f"{folder}:{packages}"}
    environment = {**os.environ, **built, **offline, **variables}
    return subprocess.run([str(python), "-m", *words], cwd=folder, capture_output=True, text=True, env=environment)


def sources(python: Path, version: str, folder: Path) -> Path:
    """The tests in the source distribution of this version, and the model that they name. They are kept."""
    kept = TOOLS / "sources" / f"vllm-{version}"
    if kept.exists():
        return kept
    source = ("--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={version}")
    if (done := run(python, version, folder, "pip", "download", "-q", *source)).returncode:
        pytest.skip(f"pip could not install it from source: PyPI has no such vLLM here ({done.stderr[-300:]})")
    with tarfile.open(folder / f"vllm-{version}.tar.gz") as files:
        tests = [each for each in files if "/tests/" in each.name and each.name.endswith(".py")]
        files.extractall(folder, tests, filter="data")
    found = folder / f"vllm-{version}"
    (found / "tests" / "conftest.py").unlink()  # for tests of models
    (found / "pytest.ini").touch()  # pytest would read ours, and name the tests from there
    (found / "facebook" / "opt-125m").mkdir(parents=True)
    (found / "facebook" / "opt-125m" / "config.json").write_text(json.dumps(MODEL))
    kept.parent.mkdir(exist_ok=True)
    return Path(shutil.move(found, kept))


def files_in(suite: Path) -> list[str]:
    parts = [line.split(":") for line in FILES.split("\n") if line]
    names = [f"tests/v1/{folder}/test_{name}.py" for folder, some in parts for name in some.split()]
    return [name for name in names if (suite / name).exists()]


def expected(version: str) -> set[tuple[str, str]]:
    rows: list[dict[str, Any]] = tomllib.loads((PARTS / "differences.toml").read_text())["difference"]
    here = [row for row in rows if version in row.get("versions", [version])]
    return {(f"tests/v1/{test}", policy) for row in here for policy in row["policies"] for test in row["tests"]}


@pytest.mark.parametrize("tested", TESTED, ids=lambda tested: tested.version)
def test_vllm_s_own_tests_differ_where_it_is_said(tested: versions.Tested, tmp_path: Path) -> None:
    python = PYTHONS.get(tested.version, Path(sys.executable))
    if not TOOLS.exists() or not python.exists():
        pytest.skip("make frameworks NAMES='suite-vllm vllm-lowest vllm-newest' could not install it from PyPI")
    # the ends of the range play the policy that does most, as each takes half a minute
    policies = os.environ.get("POLICIES") or ("vllm continuum working-set" if tested.short_loops else "working-set")
    suite = sources(python, tested.version, tmp_path)
    shutil.copy(PARTS / "each_scheduler.py", suite)
    plain = ("-q", "--tb=native", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "each_scheduler")
    out = tmp_path / "outcomes.json"
    variables = {"POLICIES": policies, "OUTCOMES": str(out), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = run(python, tested.version, suite, "pytest", *plain, *files_in(suite), **variables)
    assert out.exists(), done.stdout[-3000:] + done.stderr[-2000:]
    outcomes: dict[str, dict[str, str]] = json.loads(out.read_text())
    passed = {test: each for test, each in outcomes.items() if not each["stock"]}
    assert len(passed) >= FEWEST, done.stdout[-3000:]
    differ = {(test, policy) for test, each in passed.items() for policy in policies.split() if each[policy]}
    listed = {each for each in expected(tested.version) if each[0] in passed and each[1] in policies.split()}
    assert {each: outcomes[each[0]][each[1]][-1500:] for each in differ - listed} == {}
    assert listed - differ == set(), "these differ no longer; drop them from differences.toml"
