"""How many programs at a time an engine serves without loss, under each policy.

A number of programs at a time is without loss if no smaller number that was tried finishes more than 5% more output
tokens per second, and if a program's longest wait for a first token is at most 5 seconds in the mean. Every number that
the search tries is a cell of a sweep, so an interrupted search continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from continuum_analysis.metrics import Value, analyze_run
from continuum_analysis.report.experiment_facts import machines
from continuum_analysis.sweep.report import write_sweep_report
from continuum_analysis.sweep.tables import Sweep, read_sweep, write_tables
from continuum_server.step_times.catalog import find_model
from continuum_traces.names import counted

from continuum_bench.invocation import default_out, utc_now
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import RunOptions
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.show import print_json, print_line, print_notice, print_table
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import Cell, group_of
from continuum_bench.sweep.run import SweepOutcome, exit_code, play_missing
from continuum_bench.sweep.store import SweepStore
from continuum_bench.workload.workload import load_workload

LOSS = 0.05
"""Largest loss of finished work, compared with the best smaller number."""
FIRST_TOKEN_S = 5.0
"""Largest mean of the programs' worst TTFT. The work alone would not show that a policy lets programs wait."""
MEANING = (
    f"Without loss: no smaller number finishes more than {LOSS:.0%} more tokens per second, and a program's longest "
    f"wait for a first token is at most {FIRST_TOKEN_S:g} s in the mean."
)
MOST = 256
"""The largest number that is tried."""
ROUNDS = 4
"""A run plays so many programs for each of those at a time: fewer would measure how the run begins and ends."""
POLICIES = ("vllm", "working-set")


@dataclass(slots=True)
class HowMany:
    """A search for the largest number without loss. What has a loss is assumed to have it at all larger numbers."""

    number: int = 1
    """The number to try next."""
    low: int = 0
    """The largest number without loss; 0: none was."""
    high: int | None = None
    """The smallest number with a loss; None: none was."""
    best_per_s: float = 0.0
    """The most work per second at a number without loss."""

    @property
    def ended(self) -> bool:
        return self.low >= MOST if self.high is None else self.high - self.low <= max(1, self.low // 16)

    def tell(self, work_per_s: float, first_token_s: float) -> None:
        """Take in a run with ``number`` programs at a time, and choose the next number."""
        if work_per_s >= (1 - LOSS) * self.best_per_s and first_token_s <= FIRST_TOKEN_S:
            self.low, self.best_per_s = self.number, max(self.best_per_s, work_per_s)
        else:
            self.high = self.number
        self.number = min(MOST, 2 * self.low) if self.high is None else (self.low + self.high) // 2

    def __str__(self) -> str:
        return f"{self.low} or more" if self.high is None else str(self.low)


@dataclass(slots=True)
class _Study:
    """The searches of all policies. Each round plays one cell of every search."""

    name: str
    options: RunOptions
    arms: Sequence[Arm]
    store: SweepStore
    distinct: int
    """Number of programs in the trace. Each run plays every one at least once."""
    cells: dict[str, Cell] = field(default_factory=dict)
    """All that were played, by name."""
    outcome: SweepOutcome = field(default_factory=SweepOutcome)
    created: str = field(default_factory=utc_now)

    def run(self) -> dict[str, HowMany]:
        searches = {arm.label: HowMany() for arm in self.arms}
        going = list(self.arms)
        while going and not self.outcome.interrupted:
            cells = {arm.label: self._cell(arm, searches[arm.label].number) for arm in going}
            self._play(list(cells.values()))
            going = [arm for arm in going if self.store.is_done(cells[arm.label])]
            for arm in going:
                values = analyze_run(self.store.path / cells[arm.label].name).values
                searches[arm.label].tell(*_judged(values))
            going = [arm for arm in going if not searches[arm.label].ended]
        return searches

    @property
    def grid(self) -> Grid:
        return Grid(self.name, "virtual", (), serve={}, plot={})

    def _cell(self, arm: Arm, number: int) -> Cell:
        programs = max(self.distinct, ROUNDS * number)
        options = replace(self.options, arrivals=f"concurrency:{number}", num_programs=programs)
        point = Point(
            {"workload": self.name, "at a time": number}, options, self.name, tuple(self.arms), (options.seed,)
        )
        return Cell(group_of(point, self.grid), arm, options.seed)

    def _play(self, cells: Sequence[Cell]) -> None:
        self.cells |= {cell.name: cell for cell in cells}
        self.store.write_plan(self.grid, list(self.cells.values()), self.created)
        quiet = self.options.quiet or self.options.json_output
        outcome = play_missing(self.store, self.grid, cells, PlayerOptions(self.options.jobs), quiet, "runs")
        self.outcome = SweepOutcome(self.outcome.failed | outcome.failed, outcome.interrupted)


def _judged(values: Mapping[str, Value]) -> tuple[float, float]:
    """Return output tokens per second, and the mean of the programs' worst TTFT; infinite: none had a first token."""
    first_token_s = values["ttft_worst_mean_s"]
    return values["throughput_output_tokens_per_s"] or 0.0, float("inf") if first_token_s is None else first_token_s


def find_how_many(name: str, options: RunOptions) -> int:
    """Search for each policy, and write the report. Returns the exit code, as ``exit_code``."""
    policies = arms_of(options.policy or POLICIES)
    given = read_policy_options(options.policy_option or [], policies)
    arms = [Arm(policy, policy, given.get(policy, {})) for policy in policies]
    context_tokens = find_model(options.model).max_context_tokens
    distinct = load_workload(name, options, options, context_tokens).facts.distinct_programs or 1
    study = _Study(name, options, arms, SweepStore(options.out or default_out(f"{name}-how-many")), distinct)
    with study.store.locked():
        searches = study.run()
        sweep = read_sweep(study.store.path)
        if any(group.summary for group in sweep.groups) and not study.outcome.interrupted:
            _show(sweep, _sentence(study, searches), searches, options)
    return exit_code(study.outcome, study.store, list(study.cells.values()), "runs")


def _sentence(study: _Study, searches: Mapping[str, HowMany]) -> str:
    manifest = next(iter(study.cells.values())).manifest
    programs = counted(study.distinct, "program")
    machine = machines(manifest.hardware, manifest.engine_options)
    numbers = [
        f"{search} {'with' if at else 'at a time without loss under'} {name}"
        for at, (name, search) in enumerate(searches.items())
    ]
    return f"Your {programs}, with {manifest.hardware.model} on {machine}: {', '.join(numbers)}."


def _show(sweep: Sweep, sentence: str, searches: Mapping[str, HowMany], options: RunOptions) -> None:
    write_tables(sweep)
    page = None if options.no_report else write_sweep_report(sweep, (sentence, MEANING))
    if options.json_output:
        numbers = {name: {"at_a_time": search.low, "or_more": search.high is None} for name, search in searches.items()}
        print_json({"how_many": numbers, "out": str(sweep.path)})
        return
    print_table(sweep.table(), f"{sweep.name}; GPU time is modelled")
    print_line(sentence)
    print_line(MEANING)
    if page is not None and not options.quiet:
        print_notice(f"report: {page}")
