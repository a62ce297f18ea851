"""SLOs: how they are read, and who keeps them, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_analysis.compare.runs import load_all
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.slo import Level, Slo, read_slo, slo_text, with_slo
from recorded_runs import write_recorded


def test_limits_are_read_with_their_units() -> None:
    assert read_slo("ttft=2s, tpot=50ms,jct=10x") == Slo(ttft_s=2.0, tpot_s=0.05, jct_times=10.0)
    assert read_slo("jct=5min") == Slo(jct_s=300.0)
    assert slo_text(read_slo("tpot=50ms,jct=1h")) == "TPOT <= 0.05 s, JCT <= 3600 s"


def test_levels_are_limits_on_metrics_of_runs() -> None:
    slo = read_slo("ttft_p95=5, output_tokens_s_p25=20,tpot_p99=50ms,ttft=2")
    levels = (Level("ttft_p95_s", 5.0), Level("output_tokens_s_p25", 20.0), Level("tpot_p99_s", 0.05))
    assert slo == Slo(ttft_s=2.0, levels=levels)
    assert slo_text(slo) == "TTFT <= 2 s, TTFT P95 <= 5 s, output tokens/s P25 >= 20, TPOT P99 <= 0.05 s"
    first, speed, _ = levels
    assert [first.keeps(value) for value in (4.9, 5.0, 5.1, None)] == [True, True, False, False]
    assert [speed.keeps(value) for value in (19.9, 20.0, 20.1, None)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ttft_p96=5", "ttft_p96=5: did you mean ttft_p9"),
        ("reloads=5", "reloads=5: .*expected"),  # neither is better
        ("output_tokens_s_p25=20s", "output_tokens_s_p25 is no time"),
        ("ttft_p95=5,ttft_p95=6", "ttft_p95 is given twice"),
        ("ttft_p95=5x", "ttft_p95=5x: expected"),
    ],
)
def test_levels_that_are_none(text: str, fault: str) -> None:
    with pytest.raises(AnalysisError, match=fault):
        read_slo(text)


def test_a_run_keeps_a_level_or_does_not(tmp_path: Path) -> None:
    """19 of 20 programs keep JCT <= 5 s: no more than 5% break it."""
    write_recorded(tmp_path / "r", "vllm", 0, [4.0] * 19 + [6.0])
    (run,) = load_all([tmp_path / "r"])
    facts, values = run.metrics.facts, run.metrics.values

    def kept(text: str) -> bool:
        return read_slo(text).kept_by(facts, values)

    assert [kept(text) for text in ("jct=5", "jct=3.9s", "ttft=500ms", "ttft=499ms")] == [True, False, True, False]
    assert [kept(text) for text in ("ttft_p95=0.5", "ttft_p95=0.4", "ttft_p95=0.5,jct=3")] == [True, False, False]
    (judged,) = with_slo([run], read_slo("ttft_p95=0.5"))
    assert {n: v for n, v in judged.metrics.values.items() if n.startswith("slo_")} == {"slo_levels_share": 1.0}


def test_shares_are_of_all_programs_and_all_turns(tmp_path: Path) -> None:
    """TTFT is 0.5 s. TPOT of a program that takes T: (T - 0.5) / 10."""
    write_recorded(tmp_path / "r", "vllm", 0, [2.5, 5.5, 10.5, 4.0], unfinished=1)
    runs = load_all([tmp_path / "r"])

    def found(text: str) -> dict[str, object]:
        (run,) = with_slo(runs, read_slo(text))
        return {name: value for name, value in run.metrics.values.items() if name.startswith("slo_")}

    wall_s = runs[0].metrics.facts.wall_s
    assert found("jct=5.5s") == {"slo_programs_share": 2 / 4, "slo_programs_per_s": 2 / wall_s}
    assert found("ttft=500ms")["slo_requests_share"] == 3 / 4  # the request that never ended keeps nothing
    assert found("tpot=210ms,jct=20s") == {
        "slo_requests_share": 1 / 4,
        "slo_requests_per_s": 1 / wall_s,
        "slo_programs_share": 1 / 4,
        "slo_programs_per_s": 1 / wall_s,
    }
    assert found("ttft=400ms,jct=100s")["slo_programs_share"] == 0.0


def test_a_turn_of_one_token_has_no_pace(tmp_path: Path) -> None:
    write_recorded(tmp_path / "r", "vllm", 0, [2.5], output_tokens=1)
    (run,) = with_slo(load_all([tmp_path / "r"]), read_slo("tpot=1ms"))
    assert run.metrics.values["slo_requests_share"] == 1.0
