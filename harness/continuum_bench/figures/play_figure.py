"""``continuum-bench figure NAME``: play one of the papers' experiments, tabulate it and draw it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.panels import Panel
from continuum_analysis.sweep.capacity import capacity_of
from continuum_analysis.sweep.details import (
    estimates_figure,
    queue_figure,
    remaining_figure,
    running_means_figure,
    tools_figure,
)
from continuum_analysis.sweep.goodput import goodput_panel, goodput_table, summarize_goodput
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.ratios import Ratio, hint_ratios, ratio_panels, ratio_table, sweep_ratios
from continuum_analysis.sweep.report import sweep_answer, sweep_line, write_page, write_tables
from continuum_analysis.sweep.tables import MODELLED, Sweep, read_sweep
from continuum_analysis.sweep.verdict import sweep_trust
from continuum_traces.importers.registry import read_any
from continuum_traces.json_io import write_json
from continuum_traces.programs.synth import bundled
from continuum_traces.records.run_dir import create

from continuum_bench.errors import BenchError
from continuum_bench.figures.spec import FigureSpec, figure_names, load_figure
from continuum_bench.invocation import command_line
from continuum_bench.options.sweep import FigureOptions
from continuum_bench.show import print_bars, print_notice, print_table, print_verdict
from continuum_bench.sweep.goodput import GoodputStudy
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.play_cells import exit_code
from continuum_bench.sweep.play_sweep import play_grid
from continuum_bench.sweep.store import SweepStore

BASES = {"ratios": "continuum", "hints": "no hints"}
"""For each kind of figure that compares policies: with what."""
Drawn = tuple[Sequence[Panel], TextTable]


def _lines(sweep: Sweep) -> Drawn:
    capacity = capacity_of(sweep)
    table = sweep.table() if capacity is None else capacity.table()
    return sweep_panels(sweep, read_plot(sweep.plot, sweep)), table


def _over(base: str, ratios: Sequence[Ratio], sweep: Sweep) -> Drawn:
    return (ratio_panels(ratios, base), ratio_table(ratios, base)) if ratios else _lines(sweep)


DRAWN: Mapping[str, Callable[[Sweep], Drawn]] = {
    "lines": _lines,
    "ratios": lambda sweep: _over(BASES["ratios"], sweep_ratios(sweep, BASES["ratios"]), sweep),
    "hints": lambda sweep: _over(BASES["hints"], hint_ratios(sweep), sweep),
    "queue": queue_figure,
    "estimates": estimates_figure,
}
"""What draws each kind of figure whose cells are known before the first is played."""
OF_TRACES = {"tools": tools_figure, "remaining": remaining_figure, "means": running_means_figure}
"""What draws each kind of figure that plays nothing."""


def run_figure(options: FigureOptions) -> int:
    """Play a figure. Returns the exit code: 0, 1 if cells failed, 130 after Ctrl-C."""
    if options.name == "list":
        return list_figures()
    spec = load_figure(options.name)
    where = "-".join([spec.name, options.mode, *(path.name.split(".")[0] for path in options.traces or ())])
    out = options.out or Path("runs") / "figures" / where
    if options.dry_run and spec.kind not in DRAWN:
        raise BenchError(f"figure {spec.name}: --dry-run: this figure has no cells, or finds them while it is played")
    if options.overrides and spec.kind in OF_TRACES:
        raise BenchError(f"figure {spec.name}: --set {options.overrides[0]}: this figure has no grid")
    if options.limits and spec.kind != "goodput":
        raise BenchError(f"figure {spec.name}: --limit {options.limits[0]:g}: only for figure goodput")
    if spec.kind in OF_TRACES:
        return _of_traces(spec, options, out)
    grid = spec.sweep(options.mode, options.traces or (), options.overrides or ())
    published = f" ({spec.paper})" if spec.claim else ""
    print_notice(f"{spec.title}{published}, into {out}")
    if spec.kind == "goodput":
        return _goodput(spec, grid, options, out)
    draw = DRAWN[spec.kind]
    return play_grid(grid, out, options, lambda sweep: _write(spec, options, out, draw(sweep), sweep))


def list_figures() -> int:
    """Print every figure with the published figure it reproduces and the minutes it takes."""
    specs = [load_figure(name) for name in figure_names()]
    rows = [
        [spec.name, spec.title, spec.paper, *(f"{spec.minutes[mode]:g}" for mode in ("quick", "full"))]
        for spec in specs
    ]
    table = TextTable(("name", "what", "beside", "quick, min", "full, min"), rows)
    print_table(table, "Figures (minutes on two cores; full and goodput: a guess)", words=table.headings[1:])
    return 0


def _goodput(spec: FigureSpec, grid: Grid, options: FigureOptions, out: Path) -> int:
    limits_of = "limits" if grid.engine == "virtual" else "live_limits"
    store, limits = SweepStore(out), options.limits or spec.goodput[limits_of]
    study = GoodputStudy(grid, store, options, limits, spec.goodput["tolerance"])
    with store.locked():
        rows = summarize_goodput(study.run())
        if rows:
            sweep = read_sweep(out)
            write_tables(sweep)
            text = json.dumps([asdict(row) for row in rows])
            write_json(out / "goodput.json", json.loads(text, parse_constant=lambda infinite: None))
            _write(spec, options, out, ([goodput_panel(rows)], goodput_table(rows)), sweep)
    return exit_code(study.outcome, store, study.cells)


def _of_traces(spec: FigureSpec, options: FigureOptions, out: Path) -> int:
    if options.traces:
        workloads = {path.name.split(".")[0]: list(read_any(path, None)) for path in options.traces}
    else:
        workloads = {name: list(bundled(name)) for name in spec.grid["workload"]}
    panels, table = OF_TRACES[spec.kind](workloads)
    if not table.rows:
        raise BenchError(f"figure {spec.name}: the traces hold no tool times")
    create(out)
    _write(spec, options, out, (panels, table))
    return 0


def _write(spec: FigureSpec, options: FigureOptions, out: Path, drawn: Drawn, sweep: Sweep | None = None) -> None:
    """Write figure.svg, figure.md and report.html, and print the table."""
    panels, table = drawn
    command = " ".join(command_line())
    warnings = sweep.warnings() if sweep and spec.kind != "goodput" else []
    verdict = sweep_answer(sweep) if sweep and spec.kind == "lines" else None
    page = write_page(
        out,
        "figure",
        panels,
        title=f"{spec.title} ({options.mode})",
        table=table,
        warnings=warnings,
        facts=[
            ("Figure of the papers", spec.paper),
            *([("Published", spec.claim)] if spec.claim else []),
            ("Command", command),
        ],
        kind="capacity" if sweep and capacity_of(sweep) is not None else spec.kind,
        base=BASES.get(spec.kind),
        line=sweep_line(sweep) if sweep else "",
        verdict=verdict,
        trust=sweep_trust(sweep) if sweep else None,
    )
    text = "\n".join([f"`{command}`", "", *table.markdown(), ""])
    (out / "figure.md").write_text(text, encoding="utf-8")
    print_table(table, spec.title if sweep is None else f"{spec.title}: {MODELLED.get(sweep.engine, sweep.engine)}")
    if spec.kind == "lines":
        print_bars(panels[0])
    if verdict is not None:
        print_verdict(" ".join(verdict))
    if spec.claim:
        print_notice(f"published: {spec.claim}")
    for warning in warnings:
        print_notice(f"warning: {warning}")
    print_notice(f"report: {page}")
