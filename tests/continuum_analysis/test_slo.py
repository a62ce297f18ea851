"""SLOs: how they are read, and who keeps them, by hand."""

from __future__ import annotations

from pathlib import Path

from continuum_analysis.compare.runs import load_all
from continuum_analysis.slo import Slo, read_slo, slo_text, with_slo
from recorded_runs import write_recorded


def test_limits_are_read_with_their_units() -> None:
    assert read_slo("ttft=2s, tpot=50ms,jct=10x") == Slo(ttft_s=2.0, tpot_s=0.05, jct_times=10.0)
    assert read_slo("jct=5min") == Slo(jct_s=300.0)
    assert slo_text(read_slo("tpot=50ms,jct=1h")) == "TPOT <= 0.05 s, JCT <= 3600 s"


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
