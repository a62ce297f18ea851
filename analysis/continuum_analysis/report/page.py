"""report.html: one file with the verdict, figures with their tables, and the facts behind the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from continuum_traces.json_io import write_text
from continuum_traces.names import counted

from continuum_analysis.compare.intervals import ENOUGH_SEEDS, NO_VALUE, Comparison, interval_text, number_text
from continuum_analysis.compare.runs import Run, by_load, load_all, load_runs
from continuum_analysis.compare.summary import Summary, summarize_runs, write_summary
from continuum_analysis.compare.verdict import fastest, outcome_words, verdict_parts
from continuum_analysis.compare.words import JCT_RATIO, TextTable, arm_table, columns
from continuum_analysis.metrics import METRICS
from continuum_analysis.records.unknown import cannot_be_known
from continuum_analysis.report.experiment_facts import experiment_line, knee, kv_tokens, manifest_entries
from continuum_analysis.report.figure_kit import Figure, Groups
from continuum_analysis.report.figures import (
    demand_figure,
    head_figure,
    pin_figure,
    wait_figure,
)
from continuum_analysis.report.figures_cache import miss_figure, occupancy_figure, tails_figure, ttl_figure
from continuum_analysis.report.figures_latency import distributions
from continuum_analysis.report.figures_load import load_figure
from continuum_analysis.report.figures_server import server_figure
from continuum_analysis.report.fill import fill_page
from continuum_analysis.report.program_timeline import timeline_json


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a report: the runs by load, and the summary of each load."""

    name: str
    loads: Mapping[float | None, Sequence[Run]]
    summaries: Mapping[float | None, Summary]

    @property
    def runs(self) -> Sequence[Run]:
        """The runs that are shown in detail: those of the highest load."""
        return self.loads[self.detailed]

    @property
    def detailed(self) -> float | None:
        """The highest load."""
        return list(self.loads)[-1]

    @property
    def summary(self) -> Summary:
        return self.summaries[self.detailed]

    @property
    def groups(self) -> Groups:
        return {arm: [run for run in self.runs if run.arm == arm] for arm in self.summary.arms}


def page_of(name: str, runs: Sequence[Run], home: Path | None = None, baseline: str | None = None) -> Page:
    """Group runs by load and summarise each load.

    Args:
        home: the directory of the runs; if they have one load, the summary's files are written there.

    Raises:
        AnalysisError: the runs cannot be compared.
    """
    loads = by_load(runs)
    if home is not None and len(loads) == 1:
        summaries = {jps: write_summary(home, runs, baseline) for jps in loads}
    else:
        summaries = {jps: summarize_runs(None, group, baseline) for jps, group in loads.items()}
    shown = {jps: [run for run in group if run.manifest.seed in summaries[jps].seeds] for jps, group in loads.items()}
    return Page(name, shown, summaries)


def write_report(path: Path, baseline: str | None = None) -> Path:
    """Write report.html (and the summary) for the runs below ``path`` and return its path.

    Raises:
        AnalysisError, RunDirError: there are no runs, or a file cannot be written.
    """
    home = path.parent if path.is_file() else path
    return write_text(home / "report.html", render(page_of(path.resolve().name, load_runs(path), home, baseline)))


def write_joint_report(paths: Sequence[Path], target: Path, baseline: str | None = None) -> Path:
    """Write one report of several directories, whose seeds, policies and loads are put together.

    Raises:
        AnalysisError, RunDirError: there are no runs, they have different workloads, or a file cannot be written.
    """
    name = ", ".join(path.resolve().name for path in paths)
    return write_text(target, render(page_of(name, load_all(paths), None, baseline)))


def figures_of(page: Page) -> dict[str, Figure]:
    """Return the figures of a page by name, without the film and the timeline. The first is at the head of the page."""
    groups, capacity = page.groups, kv_tokens(page.runs)
    figures = [load_figure(page.summaries) if len(page.loads) > 1 else head_figure(page.summary)]
    figures += [miss_figure(groups), wait_figure(groups), pin_figure(page.summary), ttl_figure(groups)]
    figures.append(tails_figure(groups))
    if capacity:
        figures += [occupancy_figure(groups, capacity), demand_figure(groups, capacity)]
    figures += filter(None, [server_figure(groups)])
    return {figure.name: figure for figure in (*figures, *distributions(groups))}


def render(page: Page) -> str:
    """The page as HTML."""
    summary, groups, capacity = page.summary, page.groups, kv_tokens(page.runs)
    best = fastest(summary)
    cast = [summary.baseline, best] if best is not None else []
    return fill_page(
        "report.html.j2",
        title=experiment_line([each.manifest for each in page.summaries.values()]) or page.name,
        name=page.name,
        verdicts=[(_load_words(jps, page), *verdict_parts(each)) for jps, each in page.summaries.items()],
        warnings=[
            _load_words(jps, page) + warning for jps, each in page.summaries.items() for warning in each.warnings
        ],
        trust=_trust(page, capacity),
        table=arm_table(
            page.summaries,
            [each for each in columns(page.summaries.values()) if each.metric != JCT_RATIO.metric],
            with_jps=len(page.loads) > 1,
        ),
        summary=summary,
        detailed=_load_words(page.detailed, page).rstrip(": "),
        enough_seeds=ENOUGH_SEEDS,
        figures=figures_of(page),
        timeline=timeline_json(groups, cast) if any(run.metrics.facts.machine for run in page.runs) else "",
        run=page.runs[0].manifest,
        unknown=_unknown(page.runs),
        measures=_measures(summary),
        pairs=_pairs(page),
        manifest=manifest_entries(
            {run.path.name: run.manifest for runs in page.loads.values() for run in runs}, summary.manifest
        ),
    )


def _unknown(runs: Sequence[Run]) -> list[str]:
    """Return sentences about what the page cannot show because it was not recorded."""
    sentences = [f"{run.arm}: {lacking}" for run in runs for lacking, _ in cannot_be_known(run.metrics.facts)]
    firsts = [turn.first_token_s for run in runs for turn in run.metrics.facts.turns]
    if firsts and not any(first_s is not None for first_s in firsts):
        sentences.append(
            "no first token is recorded on the scheduler's clock: the time shown as decode includes prefill"
        )
    return sentences


def _trust(page: Page, capacity: int | None) -> list[str]:
    """Return the sentences below the verdict: what was modelled, how many seeds ran, and how near the load is to the
    knee."""
    seeds, manifest, baseline = len(page.summary.seeds), page.runs[0].manifest, page.summary.baseline
    if not manifest.engine:
        times = "There is no manifest, so the configuration of the runs is unknown"
    elif manifest.modelled:
        times = f"Modelled, not measured: {'; '.join(manifest.modelled)}"
    else:
        times = "Measured: the manifest names nothing as modelled"
    load = f"; {knee(page.groups, capacity, baseline)}" if capacity else ""
    return [f"{times}.", f"{counted(seeds, 'seed').capitalize()}{load}."]


def _load_words(jps: float | None, page: Page) -> str:
    return f"{jps:g} programs/s: " if len(page.loads) > 1 and jps is not None else ""


def _pairs(page: Page) -> TextTable:
    """Compare every policy with the baseline, and every two others, on the same arrivals. Each ratio stands once."""
    headings = ["policy", "against", "result", "JCT ratio", "95% interval", "seconds saved"]
    headings += ["programs sooner, equal, later", "effect size g_z", "compared"]
    rows = [
        [*([f"{jps:g}" if jps is not None else NO_VALUE] if len(page.loads) > 1 else []), *row]
        for jps, summary in page.summaries.items()
        for row in _pairs_of(summary)
    ]
    return TextTable([*(["JPS"] if len(page.loads) > 1 else []), *headings], rows)


def _pairs_of(summary: Summary) -> Iterator[list[str]]:
    for name, arm in summary.arms.items():
        if name != summary.baseline and arm.comparison is not None:
            fewer = arm.jct_ratio is None
            yield [name, summary.baseline, *_pair(arm.comparison, "finished fewer" if fewer else None)]
    for (one, other), comparison in summary.pairs.items():
        yield [one, other, *_pair(comparison)]


def _pair(each: Comparison, result: str | None = None) -> list[str]:
    return [
        result or outcome_words(each.jct_ratio),
        f"{each.jct_ratio.mean:.2f}",
        each.jct_ratio.bounds_text("{:.2f}".format),
        each.difference_s.text("{:.1f}".format),
        "{:,}, {:,}, {:,}".format(*each.ends),
        number_text(each.effect, "{:.1f}"),
        "{:,} of {:,}".format(*each.programs),
    ]


def _measures(summary: Summary) -> list[tuple[str, str, str, list[str]]]:
    """Return the name, unit and formula of every metric, and its value for each arm with the interval, if any."""
    arms = summary.arms.values()
    return [(m.name, m.unit, m.formula, [interval_text(arm.metrics[m.name], _number) for arm in arms]) for m in METRICS]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
