"""The real OpenHands, its tools and all, against a real vLLM server with an emulated GPU and scripted answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_batches import SCENARIOS, Batch, scripted, slow_prefill
from agent_checks import all_is_well
from continuum_traces.importers.registry import read_any
from continuum_traces.run_dir import read_manifest
from live_server import Live

NAMES = {"roman", "shop__words-7", "menu"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("openhands")
    with scripted(folder, SCENARIOS / "openhands-replies.jsonl", **slow_prefill(folder)) as found:
        yield found


def test_three_programs_at_once(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    options = ("--workers", "3", "--time-limit", "120")
    batch = start(SCENARIOS / "openhands-tasks.jsonl", server.server.url, out, *options, framework="openhands")
    programs = all_is_well(batch, server, "Finished", NAMES, all_pins_are_hit=False)
    assert programs["roman"]["tools"] == ["ls", "cat", "python3", "file_editor", "python3", "finish"]
    assert read_manifest(out).workload.name == "agent openhands"
    its_own_record_says_the_same(out)
    patches_are_in_both_forms(out)


def its_own_record_says_the_same(out: Path) -> None:
    """OpenHands' events, imported as a trace, have our trace's tokens and tools."""
    ours = {program.program_id: program for program in read_any(out / "trace.jsonl")}
    for name in NAMES:
        (theirs,) = read_any(out / name / f"{name}.traj.json")
        assert theirs.prompt_tokens() == ours[name].prompt_tokens()
        for turn, mine in zip(theirs.turns, ours[name].turns, strict=True):
            assert turn.output_tokens == mine.output_tokens
            assert [call.name for call in turn.tool_calls] == [call.name for call in mine.tool_calls]
            for call, own in zip(turn.tool_calls, mine.tool_calls, strict=True):
                assert call.duration_s is not None
                assert own.duration_s == pytest.approx(call.duration_s, abs=0.05)


def patches_are_in_both_forms(out: Path) -> None:
    """SWE-bench's predictions, and Multi-SWE-bench's for the task that came in its words; they apply as they are."""
    predictions = json.loads((out / "preds.json").read_text())
    assert set(predictions) == NAMES
    (line,) = (out / "fix_patches.jsonl").read_text().splitlines()
    fix = json.loads(line)
    assert (fix["org"], fix["repo"], fix["number"]) == ("shop", "words", 7)
    assert fix["fix_patch"] == predictions["shop__words-7"]["model_patch"]
    assert "+\treturn len(strings.Fields(text))" in fix["fix_patch"]
    fresh = out.parent / "fresh"
    shutil.copytree(SCENARIOS / "words", fresh)
    subprocess.run(["git", "apply"], cwd=fresh, input=fix["fix_patch"], text=True, check=True)
    assert (fresh / "words.go").read_text() == (out / "workspaces" / "shop__words-7" / "words.go").read_text()
