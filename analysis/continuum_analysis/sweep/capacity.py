"""How many agents at a time an engine serves within a service level: the curve of a sweep over ``concurrency``.

The sweep's plot names the level (``slo``). A policy serves N agents with a seed if every number that was played up to N
keeps the level. Its *best* is the number with the most throughput.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from continuum_traces.names import counted, listed
from continuum_traces.schema import Manifest

from continuum_analysis.compare.intervals import ENOUGH_SEEDS, Interval, mean_interval
from continuum_analysis.compare.verdict import TIE
from continuum_analysis.compare.words import THROUGHPUT, TextTable, metric_column
from continuum_analysis.metrics import BY_NAME
from continuum_analysis.plots.arm_styles import arm_styles
from continuum_analysis.plots.panels import Stem
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.report.experiment_facts import machines
from continuum_analysis.slo import read_slo, slo_text
from continuum_analysis.sweep.tables import GroupSummary, Sweep

AT_A_TIME = "concurrency"
TOKENS = "throughput_output_tokens_per_s"
NEWCOMERS = ("newcomer_ttft_p50_s", "newcomer_ttft_p95_s")
FEW = 20
"""An answer that rests on fewer different programs than this says how many there were."""
DEFAULT_LEVEL = "ttft_p95=5,output_tokens_s_p25=20"
"""As agents' benchmarks ask: a limit on first tokens, and on the output speed of an agent."""
COLUMNS = (
    metric_column(THROUGHPUT, "finished/s"),
    metric_column(TOKENS, "tokens/s"),
    metric_column("ttft_p50_s", "TTFT P50, s"),
    metric_column("ttft_p95_s", "P95"),
    metric_column("newcomer_ttft_p95_s", "newcomers' P95"),
    metric_column("output_tokens_s_p25", "tokens/s per agent, P25"),
)


@dataclass(frozen=True, slots=True)
class Bracket:
    """The largest number of agents within the level lies from ``low`` up to, and without, ``high``."""

    low: int
    """The largest number up to which all that were played keep the level; 0: not even the smallest does."""
    high: int | None
    """The smallest number that was played and breaks the level; None: none does."""

    @property
    def is_narrow(self) -> bool:
        """Whether the number is known to a sixteenth."""
        return self.high is not None and self.high - self.low <= max(1, self.low // 16)

    @property
    def text(self) -> str:
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.is_narrow else f"{self.low} to {self.high - 1}"


def bracket_of(kept: Mapping[int, bool]) -> Bracket:
    """Return what is known of the largest number within the level, from the numbers that were played."""
    high = min((number for number, keeps in kept.items() if not keeps), default=None)
    return Bracket(max((n for n in kept if high is None or n < high), default=0), high)


@dataclass(frozen=True, slots=True)
class PolicyCapacity:
    policy: str
    by_seed: Mapping[int, Bracket]
    throughput: Mapping[int, float]
    """Mean over seeds of finished programs, or output tokens, per second, by the number at a time."""

    @property
    def agents(self) -> Interval:
        """The largest number within the level, over seeds; a lower bound if not all brackets are narrow."""
        return mean_interval([bracket.low for bracket in self.by_seed.values()])

    @property
    def text(self) -> str:
        brackets = list(self.by_seed.values())
        texts = list(dict.fromkeys(bracket.text for bracket in brackets))
        if len(texts) == 1:
            return texts[0]
        if len(brackets) < ENOUGH_SEEDS or not all(bracket.is_narrow for bracket in brackets):
            return f"{listed(texts)} (by seed)"
        return self.agents.within(0, float("inf")).text("{:.1f}".format)

    @property
    def best(self) -> int:
        """The number at a time with the most throughput."""
        return max(self.throughput, key=lambda number: self.throughput[number])

    def loss(self, number: int) -> float:
        """The share of the best throughput at smaller numbers that is lost at this number."""
        best = max(value for at, value in self.throughput.items() if at <= number)
        return 1 - self.throughput[number] / best if best else 0.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer of one sweep."""

    level: str
    """In words."""
    metric: str
    """The throughput that the curve shows."""
    groups: Mapping[int, GroupSummary]
    """By the number at a time, in order."""
    policies: tuple[PolicyCapacity, ...]

    @property
    def beyond(self) -> int:
        """The largest number that every policy played."""
        return max(set.intersection(*(set(each.throughput) for each in self.policies)), default=0)

    @property
    def answer(self) -> tuple[str, str]:
        """The number of agents of each policy; then what is lost beyond, what newcomers wait, and what it rests on."""
        return self._agents(), " ".join(filter(None, (*self._losses(), self._newcomers(), self._basis())))

    def _agents(self) -> str:
        manifest = self._manifest
        where = " on ".join(
            filter(None, (manifest.hardware.model, machines(manifest.hardware, manifest.engine_options)))
        )
        numbers = listed([f"{each.text} under {each.policy}" for each in self.policies])
        return f"Agents at a time within {self.level}: {numbers} ({where or 'a server'})."

    def _losses(self) -> Iterable[str]:
        number, of_programs = self.beyond, self.metric == THROUGHPUT
        verb, unit = ("finishes", "programs/s") if of_programs else ("generates", "tokens/s")
        text, even = BY_NAME[self.metric].text, []
        for each in self.policies:
            if (loss := each.loss(number)) <= TIE:
                even.append(each.policy)
                continue
            best = max((n for n in each.throughput if n <= number), key=lambda n: each.throughput[n])
            now, most = text(each.throughput[number]), text(each.throughput[best])
            yield f"With {number} {each.policy} {verb} {now} {unit}, {loss:.0%} less than with {best} ({most})."
        if even:
            yield f"With {number} {listed(even)} {'lose' if len(even) > 1 else 'loses'} no throughput."

    def _newcomers(self) -> str:
        arms = self.groups[self.beyond].policies
        waits = []
        for each in self.policies:
            p50, p95 = (arms[each.policy].mean(name) for name in NEWCOMERS)
            shown = ["no end" if value is None else f"{value:.1f} s" for value in (p50, p95)]
            waits.append(f"{shown[0]} (P95: {shown[1]}) under {each.policy}")
        return f"The first token of a newcomer then takes, in the median, {listed(waits)}."

    @property
    def _manifest(self) -> Manifest:
        return next(group.summary.manifest for group in self.groups.values() if group.summary)

    def _basis(self) -> str:
        """Say on how little the answer rests: seeds, and programs if they are few."""
        seeds = {seed for each in self.policies for seed in each.by_seed}
        programs = self._manifest.workload.more.get("distinct_programs", FEW)
        few = f" Only {counted(programs, 'different program')} played, again and again." if programs < FEW else ""
        one = "One seed: other arrivals give other numbers." if len(seeds) == 1 else f"{counted(len(seeds), 'seed')}."
        return one + few

    def table(self) -> TextTable:
        """Return a row for each number and policy, in order."""
        rows = [
            [str(number), policy, str(len(arm.seeds)), *(column.cell(arm) for column in COLUMNS), _kept(group, policy)]
            for number, group in self.groups.items()
            for policy, arm in group.policies.items()
        ]
        headings = ("at a time", "policy", "seeds", *(column.heading for column in COLUMNS), "within the level")
        return TextTable(headings, rows)

    def stems(self) -> list[Stem]:
        """Return a vertical line for each policy at the largest number within the level."""
        looks = arm_styles(each.policy for each in self.policies)
        return [
            Stem(each.agents.mean, looks[each.policy], f"{each.policy}: {each.text} within the level")
            for each in self.policies
            if each.agents.mean
        ]

    def to_json(self) -> dict[str, Any]:
        agents = {
            each.policy: {
                "by_seed": {str(seed): [each.low, each.high] for seed, each in each.by_seed.items()},
                "agents": each.agents.mean,
                "interval": each.agents.bounds,
                "best": each.best,
                "loss": each.loss(self.beyond),
            }
            for each in self.policies
        }
        return {"level": self.level, "beyond": self.beyond, "answer": " ".join(self.answer), "agents": agents}


def _kept(group: GroupSummary, policy: str) -> str:
    kept = [cell.kept for cell in group.cells if cell.policy == policy]
    if len(set(kept)) == 1:
        return "yes" if kept[0] else "no"
    return f"{sum(kept)} of {len(kept)} seeds"


def capacity_of(sweep: Sweep) -> Capacity | None:
    """Return the answer of a sweep whose plot has a service level; None: it has none, or nothing was played.

    Raises:
        AnalysisError: the sweep's points differ in more than the number at a time.
    """
    level = sweep.plot.get("slo")
    groups = [group for group in sweep.groups if group.summary is not None]
    if level is None or not groups:
        return None
    others = set(sweep.varying()) - {AT_A_TIME, "num_programs"}
    if others or any(AT_A_TIME not in group.axes for group in groups):
        named = sorted(others)[0] if others else AT_A_TIME
        raise AnalysisError(f"{sweep.path}: plot: slo: {named}: only {AT_A_TIME} may vary, at every point")
    by_number = {int(group.axes[AT_A_TIME]): group for group in groups}
    recorded = any(group.summary.manifest.workload.synthetic is False for group in groups if group.summary)
    metric = TOKENS if recorded else THROUGHPUT
    ordered = dict(sorted(by_number.items()))
    policies = tuple(capacity for name in sweep.policies if (capacity := _policy(name, metric, ordered)).throughput)
    return Capacity(slo_text(read_slo(level)), metric, ordered, policies) if policies else None


def _policy(name: str, metric: str, groups: Mapping[int, GroupSummary]) -> PolicyCapacity:
    kept: dict[int, dict[int, bool]] = {}
    throughput: dict[int, float] = {}
    for number, group in groups.items():
        cells: Sequence[Any] = [cell for cell in group.cells if cell.policy == name]
        for cell in cells:
            kept.setdefault(cell.seed, {})[number] = cell.kept
        if cells:
            throughput[number] = fmean(cell.metrics[metric] or 0.0 for cell in cells)
    return PolicyCapacity(name, {seed: bracket_of(each) for seed, each in sorted(kept.items())}, throughput)
