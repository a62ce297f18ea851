"""Measured runs beside modelled runs of the same arrivals: by how much the prediction of each policy is off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from continuum_traces.grouped import grouped
from continuum_traces.records.run_dir import key_of

from continuum_analysis.compare.intervals import NO_VALUE, Comparison, mean_interval, number_text
from continuum_analysis.compare.runs import BASELINES, Run, baseline_of, check_same_workload
from continuum_analysis.compare.summary import compare_to
from continuum_analysis.compare.words import TextTable, metric_column
from continuum_analysis.metrics import BY_NAME
from continuum_analysis.records.timeline import AnalysisError

MEASURED, MODELLED = "measured", "modelled"
COMPARED = {"ttft_mean_s": "TTFT mean, s", "prefix_hit_ratio": "prefix hit"}
"""The metrics, beside the JCT, of which both values are shown."""
TIME_LIMIT = "workload.time_limit_s"
MAY_DIFFER = (
    TIME_LIMIT,
    *(f"workload.{name}" for name in ("name", "file", "jps", "skipped", "assumptions", "last_step")),
)
"""Entries of the workload in which the two sides may differ. Each load has a row of its own."""


def world(run: Run) -> str:
    """Return whether the times of a run are measured or modelled, by its manifest."""
    return MODELLED if run.manifest.modelled else MEASURED


@dataclass(frozen=True, slots=True)
class PredictedArm:
    """A policy's modelled runs beside its measured runs of the same seeds."""

    policy: str
    runs: Mapping[str, Sequence[Run]]
    """The measured and the modelled runs of the seeds that both have."""
    comparison: Comparison
    """Of the modelled runs with the measured ones, over programs that finished in both."""
    to_base: Mapping[str, float | None]
    """The mean JCT to the baseline's, measured and modelled."""

    def mean(self, side: str, metric: str) -> float | None:
        values = [value for run in self.runs[side] if (value := run.metrics.values[metric]) is not None]
        return mean_interval(values).mean if values else None

    def to_json(self) -> dict[str, object]:
        modelled_s, measured_s = self.comparison.jct_means_s
        sides = {MEASURED: measured_s, MODELLED: modelled_s}
        return {
            "policy": self.policy,
            "seeds": list(self.comparison.seeds),
            "jct_mean_error": self.comparison.jct_ratio.mean - 1,
            **{
                side: {"jct_mean_s": jct_s, "jct_mean_ratio": self.to_base[side]}
                | {metric: self.mean(side, metric) for metric in COMPARED}
                for side, jct_s in sides.items()
            },
        }


def predictions_of(runs: Sequence[Run], baseline: str | None = None) -> dict[float | None, list[PredictedArm]]:
    """Set measured runs beside modelled ones, policy by policy, at each load that both have. The policies ``vllm`` (in
    the virtual engine) and ``stock`` (on a server) are one.

    Raises:
        AnalysisError: the runs have different workloads or arrivals, or no load, policy and seed in common.
    """
    sides = grouped((world(run), run) for run in runs)
    predictions = predictions_between(sides.get(MEASURED, ()), sides.get(MODELLED, ()), baseline)
    if not predictions:
        raise AnalysisError("no load, policy and seed is both measured and modelled")
    return predictions


def predictions_between(
    measured: Sequence[Run], modelled: Sequence[Run], baseline: str | None = None
) -> dict[float | None, list[PredictedArm]]:
    """As ``predictions_of``, of runs whose sides are known; empty if they have no load, policy and seed in common."""
    sided = [*((MEASURED, run) for run in measured), *((MODELLED, run) for run in modelled)]
    for _, run in sided:
        check_same_workload(sided[0][1], run)
        _check_same_load(sided[0][1], run)
    loads = grouped((run.manifest.workload.jps, (side, run)) for side, run in sided)
    return {jps: rows for jps, group in loads.items() if (rows := _of_load(group, baseline))}


def _check_same_load(first: Run, run: Run) -> None:
    """Check that what both manifests say of arrivals, lengths and tools is the same."""
    one, other = ({**key_of(each.manifest)} for each in (first, run))
    for name in one:
        if name.startswith("workload.") and name not in MAY_DIFFER and one[name] != other.get(name, one[name]):
            raise AnalysisError(
                f"{first.path} and {run.path} cannot be compared: {name} differs: {one[name]!r} against {other[name]!r}"
            )


def _of_load(sided: Sequence[tuple[str, Run]], baseline: str | None) -> list[PredictedArm]:
    by_arm = grouped((_arm(run), (side, run)) for side, run in sided)
    arms = {arm: _common_seeds(group) for arm, group in by_arm.items()}
    arms = {arm: sides for arm, sides in arms.items() if sides}
    if not arms:
        return []
    base = baseline_of({arm: sides[MEASURED] for arm, sides in arms.items()}, baseline)
    rows = []
    for arm, sides in sorted(arms.items(), key=lambda item: item[0] != base):
        comparison = compare_to(sides[MEASURED], sides[MODELLED])
        if comparison is not None:
            ratios = {side: compare_to(arms[base][side], of_side) for side, of_side in sides.items()}
            to_base = {side: None if ratio is None else ratio.jct_ratio.mean for side, ratio in ratios.items()}
            rows.append(PredictedArm(arm, sides, comparison, to_base))
    return rows


def _arm(run: Run) -> str:
    return BASELINES[0] if run.arm in BASELINES else run.arm


def _common_seeds(sided: Iterable[tuple[str, Run]]) -> dict[str, list[Run]]:
    sides = grouped(sided)
    if len(sides) < 2:
        return {}
    seeds = set.intersection(*({run.manifest.seed for run in side} for side in sides.values()))
    if not seeds:
        return {}
    return {side: [run for run in sides[side] if run.manifest.seed in seeds] for side in (MEASURED, MODELLED)}


def prediction_table(predictions: Sequence[PredictedArm]) -> TextTable:
    """Return a table with a row for each policy: measured, modelled, and the error of the model."""
    headings = ["policy", "seeds", "JCT mean, s: measured", "modelled", "error", "JCT to base: measured", "modelled"]
    for heading in COMPARED.values():
        headings += [f"{heading}: measured", "modelled"]
    return TextTable(headings, [list(_cells(each)) for each in predictions])


def _cells(prediction: PredictedArm) -> Iterator[str]:
    modelled_s, measured_s = prediction.comparison.jct_means_s
    jct = metric_column("jct_mean_s").form
    yield from (prediction.policy, str(len(prediction.comparison.seeds)), jct(measured_s), jct(modelled_s))
    yield f"{prediction.comparison.jct_ratio.mean - 1:+.1%}"
    yield from (number_text(prediction.to_base[side], "{:.2f}") for side in (MEASURED, MODELLED))
    for metric in COMPARED:
        for side in (MEASURED, MODELLED):
            value = prediction.mean(side, metric)
            yield NO_VALUE if value is None else BY_NAME[metric].text(value)


def settings_that_differ(predictions: Sequence[PredictedArm]) -> Iterator[str]:
    """Yield a line for each setting of engine and machine that the manifests of both sides give differently."""
    sides = [predictions[0].runs[side][0].manifest for side in (MEASURED, MODELLED)]
    measured, modelled = (key_of(manifest) for manifest in sides)
    for name in measured:
        if name.startswith(("hardware.", "engine_options.")) and name in modelled and measured[name] != modelled[name]:
            yield f"{name}: measured {measured[name]}, modelled {modelled[name]}"
    limits = [key.get(TIME_LIMIT, "none") for key in (measured, modelled)]
    if limits[0] != limits[1]:
        yield f"{TIME_LIMIT}: measured {limits[0]}, modelled {limits[1]}; the side with the lower limit finished fewer"
