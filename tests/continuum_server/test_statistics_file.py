"""A server's statistics file: saved beside serving, whatever the disk or the policy does."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from continuum_server import record_file
from continuum_server.policy.base import Policy
from continuum_server.policy.rules.continuum import Continuum
from continuum_server.policy.tool_statistics import SCHEMA, VERSION
from continuum_server.vllm_plugin import statistics_files
from continuum_server.vllm_plugin.statistics_files import StatisticsFile
from continuum_traces.json_io import RunDirError
from policy_driver import MACHINE


class Counted(Continuum):
    """Somebody's policy: counts how often it is asked, and may fail."""

    asked = 0
    fails = False

    def export_statistics(self) -> dict[str, Any]:
        self.asked += 1
        if self.fails:
            raise KeyError("a policy's own fault")
        return super().export_statistics()


def at_start() -> float:
    """The server's clock when it starts."""
    return 0.0


def saved(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("trouble", ["policy", "no folder", "no JSON"])
def test_nothing_is_raised(tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = Counted(MACHINE)
    path = tmp_path / ("missing/statistics.json" if trouble == "no folder" else "statistics.json")
    policy.fails = trouble == "policy"
    if trouble == "no JSON":
        policy.tools.add(object(), 1.0)  # type: ignore[arg-type]
    file = StatisticsFile(path, policy, at_start)
    file.save_when_due(31.0)
    file.close()
    assert "statistics not saved" in caplog.text


@pytest.mark.parametrize("found", ["{", "[]", '{"schema": "x", "version": 1}', "\0"])
def test_a_file_that_cannot_be_read_is_left_as_it_is(
    tmp_path: Path, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "statistics.json"
    path.write_text(found)
    lived(path, Counted(MACHINE))
    assert "statistics not loaded" in caplog.text
    assert path.read_text() == found


class Notes(Policy):
    """Somebody's policy, with a section of its own."""

    name = "notes"

    def export_statistics(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "version": VERSION, "notes": [1, 2]}


def lived(path: Path, made: Policy) -> Policy:
    """A server's life, with five calls of a tool."""
    file = StatisticsFile(path, made, at_start)
    file.load()
    if isinstance(made, Continuum):
        for _ in range(5):
            made.tools.add("ls", 3.0)
    file.close()
    return made


def test_what_another_policy_learned_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    tools = lived(path, Counted(MACHINE)).export_statistics()["tools"]
    lived(path, Notes(MACHINE))
    lived(path, Policy(MACHINE))
    assert (saved(path)["tools"], saved(path)["notes"]) == (tools, [1, 2])
    assert lived(path, Counted(MACHINE)).tool_counts() == {"ls": 10}
    assert saved(path)["notes"] == [1, 2]


def test_two_servers_do_not_write_one_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "statistics.json"
    first = StatisticsFile(path, Counted(MACHINE), at_start)
    first.load()
    lived(path, Counted(MACHINE))
    assert "another server writes this file" in caplog.text
    assert not path.exists()
    with pytest.raises(RunDirError, match="another server"):
        record_file.lock(record_file.lock_of(path))
    first.close()
    first.close()
    assert saved(path)["all"]["count"] == 0
    lived(path, Counted(MACHINE))
    assert saved(path)["all"]["count"] == 5


@pytest.mark.parametrize(("named", "asked"), [(False, 0), (True, 2)])
def test_saved_every_thirty_seconds_and_at_the_end(tmp_path: Path, named: bool, asked: int) -> None:
    """Without a file nothing is copied."""
    policy = Counted(MACHINE)
    file = StatisticsFile(tmp_path / "statistics.json" if named else None, policy, at_start)
    file.load()
    for now_s in (29.999, 30.0, 59.999, 60.0, 89.0):
        file.save_when_due(now_s)
        file.wait()
    assert policy.asked == asked
    policy.tools.add("ls", 1.0)
    file.close()
    again = Counted(MACHINE)
    StatisticsFile(tmp_path / "statistics.json", again, at_start).load()
    assert again.tools.counts() == ({"ls": 1} if named else {})


def test_a_slow_disk_is_not_asked_twice_at_once_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, write = threading.Event(), statistics_files.write_json
    monkeypatch.setattr(statistics_files, "write_json", lambda path, data: goes_on.wait() and write(path, data))
    policies = Counted(MACHINE), Counted(MACHINE)
    patient, hasty = (StatisticsFile(tmp_path / f"{number}.json", policies[number], at_start) for number in (0, 1))
    for now_s in (31.0, 62.0, 93.0):
        patient.save_when_due(now_s)
        hasty.save_when_due(now_s)
    hasty.close(patience_s=0.05)
    assert policies[0].asked == 1
    goes_on.set()
    patient.close()
    assert policies[0].asked == 2
