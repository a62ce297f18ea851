"""The commands of ``continuum-bench``. Each imports its modules only when it runs, so that --help is fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from continuum_bench.agents_cli import agent_app
from continuum_bench.commands import HelpfulGroup, add_command
from continuum_bench.options.reports import (
    AnalyzeOptions,
    CompareOptions,
    GateOptions,
    ReportOptions,
    SloOptions,
)
from continuum_bench.options.run import LiveOptions, ReplayOptions, RunOptions
from continuum_bench.options.serve import DoctorOptions, ProfileOptions, ServeOptions, TopOptions
from continuum_bench.options.sweep import FigureOptions, SweepOptions
from continuum_bench.options.traces import (
    ConvertOptions,
    FitOptions,
    ImportLogOptions,
    ImportOptions,
    StatsOptions,
    SynthOptions,
)

app = typer.Typer(
    cls=HelpfulGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Hold the KV cache of LLM agents between their turns: run policies on a workload, compare them, explain the "
    "results. GPU time is modelled unless a server with a GPU is used.",
)
traces_app = typer.Typer(
    cls=HelpfulGroup,
    no_args_is_help=True,
    help="Trace files: import, synthesize, fit a profile, show statistics, validate, convert.",
)
app.add_typer(traces_app, name="traces")
app.add_typer(agent_app, name="agent")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"continuum-bench {version('continuum-ttl')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


# ------------------------------------------------------------------------------------------ playing a workload


def _play(workload: str, options: RunOptions, live: LiveOptions) -> int:
    if options.print_config:
        from continuum_bench.experiment_file import experiment_yaml  # noqa: PLC0415

        typer.echo(experiment_yaml(workload, options, live), nl=False)
        return 0
    if options.how_many:
        from continuum_bench.sweep.how_many import find_how_many  # noqa: PLC0415

        return find_how_many(workload, options, live)
    if live.base_url is not None:
        from continuum_bench.live.live_run import run_live  # noqa: PLC0415

        return run_live(workload, live.base_url, options, live)
    from continuum_bench.virtual.experiment import run_policies  # noqa: PLC0415

    return run_policies(workload, options)


@add_command(app)
def swebench(options: RunOptions, live: LiveOptions) -> int:
    """Compare policies on coding agents (mini-swe-agent on SWE-bench), all with the same arrivals."""
    return _play("swebench", options, live)


@add_command(app)
def bfcl(options: RunOptions, live: LiveOptions) -> int:
    """Compare policies on web-search agents (BFCL v4), all with the same arrivals."""
    return _play("bfcl", options, live)


@add_command(app)
def openhands(options: RunOptions, live: LiveOptions) -> int:
    """Compare policies on OpenHands agents, synthesized from a profile of few programs, with the same arrivals."""
    return _play("openhands", options, live)


@add_command(app)
def replay(options: ReplayOptions, live: LiveOptions) -> int:
    """Compare policies on the programs of a trace file, all with the same arrivals."""
    return _play("replay", options, live)


@add_command(app)
def run(
    file: Annotated[Path, typer.Argument(help="Experiment file (YAML), as --print-config writes it.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE: an option, instead of the file's. Repeatable.")
    ] = None,
) -> int:
    """Play one run that a YAML file describes: any command line of swebench, bfcl, openhands or replay."""
    from continuum_bench.experiment_file import read_experiment  # noqa: PLC0415

    experiment = read_experiment(file, overrides or ())
    return _play(experiment.workload, experiment.options, experiment.live)


@add_command(app)
def sweep(options: SweepOptions) -> int:
    """Play every cell of a grid of run options. Given again, the same command plays the cells that are missing."""
    from continuum_bench.sweep.play_sweep import run_sweep  # noqa: PLC0415

    return run_sweep(options)


@add_command(app)
def figure(options: FigureOptions) -> int:
    """Play, tabulate and draw one of the papers' experiments. Given again, the same command plays what is missing."""
    from continuum_bench.figures.play_figure import run_figure  # noqa: PLC0415

    return run_figure(options)


# ------------------------------------------------------------------------------------------------- servers


@add_command(app, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(context: typer.Context, options: ServeOptions) -> int:
    """Start a vLLM server that holds agents' KV between turns. Options not listed here are passed on to vLLM."""
    from continuum_bench.serve.foreground import serve_until_stopped  # noqa: PLC0415

    return serve_until_stopped(options, tuple(context.args))


@add_command(app)
def top(options: TopOptions) -> int:
    """Show the programs of live servers: which run, wait, are held and for how long, and what they found."""
    from continuum_bench.top import show_top  # noqa: PLC0415

    return show_top(options)


@add_command(app)
def profile(options: ProfileOptions) -> int:
    """Write the prefill and decode times of a live server, or modelled times, to a small file."""
    from continuum_bench.live.profile_command import write_profile_file  # noqa: PLC0415

    return write_profile_file(options)


@add_command(app)
def doctor(options: DoctorOptions) -> int:
    """Show what works on this machine, or what reaches a server, and what to do about the rest."""
    if options.base_url is not None:
        from continuum_bench.server_check import check_server  # noqa: PLC0415

        return check_server(options)
    from continuum_bench.doctor import show_doctor  # noqa: PLC0415

    return show_doctor(options.json_output)


# ------------------------------------------------------------------------------------------- recorded runs


@add_command(app)
def analyze(options: AnalyzeOptions, slo: SloOptions) -> int:
    """Compute the metrics of recorded runs from their files."""
    from continuum_bench.report_commands import analyze_runs  # noqa: PLC0415

    return analyze_runs(options, slo)


@add_command(app)
def report(options: ReportOptions) -> int:
    """Write summary.json, summary.csv and report.html again."""
    from continuum_bench.report_commands import write_reports  # noqa: PLC0415

    return write_reports(options)


@add_command(app)
def compare(options: CompareOptions, slo: SloOptions, gate: GateOptions) -> int:
    """Compare runs. All directories count as one experiment with more seeds, policies, loads or routers."""
    from continuum_bench.report_commands import compare_runs  # noqa: PLC0415

    return compare_runs(options, slo, gate)


# -------------------------------------------------------------------------------------------------- traces


@add_command(traces_app, name="import")
def import_(options: ImportOptions) -> int:
    """Turn a file, or the files of a folder, in other formats into a trace file."""
    from continuum_bench.trace_commands import import_traces  # noqa: PLC0415

    return import_traces(options.source, options.target, options.form, options.overwrite)


@add_command(traces_app, name="import-log")
def import_log(options: ImportLogOptions) -> int:
    """Turn a server's request log into a run directory, and an experiment that plays the same requests."""
    from continuum_bench.request_logs.import_log import import_log as run  # noqa: PLC0415

    return run(options)


@add_command(traces_app)
def synth(options: SynthOptions) -> int:
    """Synthesize programs from a profile."""
    from continuum_bench.trace_commands import synth_traces  # noqa: PLC0415

    return synth_traces(options)


@add_command(traces_app)
def fit(options: FitOptions) -> int:
    """Fit a profile to a trace. It holds statistics only, no text."""
    from continuum_bench.trace_commands import fit_profile  # noqa: PLC0415

    return fit_profile(options)


@add_command(traces_app)
def stats(options: StatsOptions) -> int:
    """Show turns, tool times, tokens and tails of a trace, beside the papers' Table 2."""
    from continuum_bench.trace_commands import show_stats  # noqa: PLC0415

    return show_stats(options.source, options.form, options.json_output)


@add_command(traces_app)
def validate(source: Annotated[Path, typer.Argument(help="Trace file to read.")]) -> int:
    """Show every fault of a trace file with its line and field, or whether a file in another format can be imported."""
    from continuum_bench.trace_commands import validate_trace  # noqa: PLC0415

    return validate_trace(source)


@add_command(traces_app)
def convert(options: ConvertOptions) -> int:
    """Convert a trace to another format, or a run's scheduler_timestamps to the preview's form and back."""
    from continuum_bench.trace_commands import convert_trace  # noqa: PLC0415

    return convert_trace(options)


def main() -> None:
    """Entry point of the ``continuum-bench`` script."""
    sys.exit(app())
