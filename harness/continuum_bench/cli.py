"""``continuum-bench``. Each command imports what it needs when it runs, so that --help is instant."""

from __future__ import annotations

import sys
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from continuum_bench.agents.cli import add_agent_commands
from continuum_bench.options import (
    ApiKeyEnv,
    Arrivals,
    BaseUrl,
    BlockSize,
    ChunkTokens,
    CoolDown,
    Dialect,
    Format,
    Gpu,
    Jobs,
    Jps,
    Json,
    KillReplica,
    KvBlocks,
    Label,
    LengthScale,
    LiveOptions,
    MaxSeqs,
    Model,
    NoReport,
    NumPrograms,
    OffloadPreset,
    Out,
    Overhead,
    PinsYieldTo,
    PolicyNames,
    PolicyOptions,
    Processes,
    ProfileFile,
    ProgramLimit,
    Prompts,
    RayAddress,
    Replicas,
    RequestLimit,
    Resume,
    Retries,
    RouterName,
    RunLimit,
    RunOptions,
    SchedulerRecords,
    Seed,
    Seeds,
    ServedModel,
    SharedPrefix,
    SkipInvalid,
    TensorParallel,
    TokensReading,
    ToolTimes,
    Traces,
    TurnScale,
    Utilization,
    WarmUp,
    only_live,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="KV time-to-live scheduling for LLM agents: run, compare, explain. "
    "GPU time is modelled, except on a server that has a GPU.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"continuum-bench {version('continuum-ttl')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of no command in particular."""


def _workload_command(name: str, what: str, positional: bool = False) -> None:
    """Register a command that runs policies over a workload."""

    def command(
        traces: Traces = None,
        form: Format = None,
        jps: Jps = 0.13,
        policy: PolicyNames = None,
        policy_option: PolicyOptions = None,
        gpu: Gpu = "h100-80gb",
        model: Model = "llama-3.1-8b",
        tp: TensorParallel = 1,
        num_programs: NumPrograms = None,
        seed: Seed = 0,
        seeds: Seeds = 1,
        max_num_seqs: MaxSeqs = 256,
        chunk_tokens: ChunkTokens = 2048,
        block_size: BlockSize = 16,
        kv_blocks: KvBlocks = None,
        gpu_memory_utilization: Utilization = 0.9,
        step_overhead_ms: Overhead = 1.0,
        pins_yield_to: PinsYieldTo = "policy",
        offload: OffloadPreset = None,
        profile: ProfileFile = None,
        replicas: Replicas = 1,
        router: RouterName = "affinity",
        kill_replica: KillReplica = None,
        tokens_reading: TokensReading = "context",
        turn_scale: TurnScale = 1,
        length_scale: LengthScale = 1.0,
        shared_prefix: SharedPrefix = 0,
        arrivals: Arrivals = "poisson",
        tool_times: ToolTimes = "recorded",
        skip_invalid: SkipInvalid = False,
        jobs: Jobs = None,
        base_url: BaseUrl = None,
        served_model: ServedModel = None,
        label: Label = None,
        dialect: Dialect = None,
        prompts: Prompts = None,
        retries: Retries = 3,
        request_limit_s: RequestLimit = 3600.0,
        program_limit_s: ProgramLimit = None,
        time_limit_s: RunLimit = None,
        warm_up: WarmUp = "0",
        cool_down: CoolDown = "0",
        processes: Processes = 1,
        api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
        resume: Resume = None,
        scheduler_records: SchedulerRecords = None,
        out: Out = None,
        no_report: NoReport = False,
        json_output: Json = False,
    ) -> None:
        given = dict(locals())
        options = RunOptions(**{field.name: given[field.name] for field in fields(RunOptions)})
        live = LiveOptions(**{field.name: given[field.name] for field in fields(LiveOptions)})
        if base_url is not None:
            from continuum_bench.live.command import run_live  # noqa: PLC0415

            _exit(lambda: run_live(name, options, live))
            return
        _exit(lambda: _run_virtual(name, options, live))

    if positional:
        command.__annotations__["traces"] = Annotated[Path, typer.Argument(help="Trace file, any known format.")]
        command.__defaults__ = (..., *(command.__defaults__ or ())[1:])
    command.__doc__ = what
    app.command(name)(command)


def _run_virtual(name: str, options: RunOptions, live: LiveOptions) -> int:
    from continuum_bench.errors import BenchError  # noqa: PLC0415

    unused = only_live(options, live)
    if unused is not None:
        raise BenchError(f"{unused}: needs --base-url")
    from continuum_bench.virtual.command import run_policies  # noqa: PLC0415

    return run_policies(name, options)


_workload_command(
    "swebench", "Coding agents (mini-swe-agent on SWE-bench): policies side by side on the same arrivals."
)
_workload_command("bfcl", "Web-search agents (BFCL v4): policies side by side on the same arrivals.")
_workload_command("openhands", "OpenHands agents, from a profile of few programs: policies side by side.")
_workload_command("replay", "Play a trace file: policies side by side on the same arrivals.", positional=True)

Dirs = Annotated[list[Path], typer.Argument(help="Run or experiment directories.")]


TableForm = Annotated[
    str | None, typer.Option("--format", help="A table for other programs: csv, json, latex, markdown, parquet.")
]
TableFile = Annotated[Path | None, typer.Option(help="File for that table; default standard output.")]


@app.command()
def analyze(
    directories: Dirs,
    misses: Annotated[bool, typer.Option("--misses", help="Why each returning turn found its KV or did not.")] = False,
    table: Annotated[str | None, typer.Option(help="Rows of runs, misses, programs, turns or pins.")] = None,
    form: TableForm = None,
    out: TableFile = None,
    json_output: Json = False,
) -> None:
    """Metrics of recorded runs, from their files alone; also reads the preview's scheduler_timestamps."""
    from continuum_bench.reports import show_metrics, show_misses, write_run_table  # noqa: PLC0415

    name = table or ("misses" if misses else "runs")
    if form is not None or out is not None or table is not None:
        _exit(lambda: write_run_table(directories, name, form or "csv", out))
    else:
        _exit(
            lambda: show_misses(directories) if misses and not json_output else show_metrics(directories, json_output)
        )


@app.command()
def report(
    directories: Dirs,
    out: Annotated[
        Path | None, typer.Option(help="One page of all the directories: seeds merged, JCT by load.")
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="Also every figure as PNG and SVG, beside the page.")
    ] = False,
) -> None:
    """Write summary.json, summary.csv and report.html anew."""
    from continuum_bench.reports import write_reports  # noqa: PLC0415

    _exit(lambda: write_reports(directories, out, images))


@app.command()
def compare(directories: Dirs, form: TableForm = None, out: TableFile = None, json_output: Json = False) -> None:
    """Runs side by side and the verdict; directories are one experiment: more seeds, policies, loads, routers."""
    from continuum_bench.reports import show_comparison, write_comparison  # noqa: PLC0415

    if form is not None or out is not None:
        _exit(lambda: write_comparison(directories, form or "csv", out))
    else:
        _exit(lambda: show_comparison(directories, json_output))


@app.command()
def selfcheck(
    directory: Annotated[Path, typer.Argument(help="An experiment with many seeds.")],
    against: Annotated[
        Path | None, typer.Option(help="The same once more, with a difference that means nothing: pairs by seed.")
    ] = None,
    pairs: Annotated[int, typer.Option(help="Pairs of runs in each comparison.")] = 5,
    json_output: Json = False,
) -> None:
    """A policy against itself: how often the comparison sees a difference that is not there."""
    from continuum_bench.reports import show_self_check  # noqa: PLC0415

    _exit(lambda: show_self_check(directory, against, pairs, json_output))


@app.command()
def doctor(json_output: Json = False) -> None:
    """What works on this machine, and what to do about what does not."""
    from continuum_bench.doctor import show_doctor  # noqa: PLC0415

    _exit(lambda: show_doctor(json_output))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve(
    context: typer.Context,
    engine: Annotated[str, typer.Option(help="gpu, emulated (no GPU, modelled time), cpu (tiny model).")] = "emulated",
    model: Annotated[str | None, typer.Option(help="gpu: what vLLM loads; emulated: default llama-3.1-8b.")] = None,
    policy: Annotated[
        str, typer.Option("--policy", "--scheduling-policy", help="A policy, or stock: vLLM without the plugin.")
    ] = "working-set",
    policy_option: PolicyOptions = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    replicas: Annotated[
        int, typer.Option(help="Servers on this machine, each with its own GPUs; vllm-router in front.")
    ] = 1,
    router: Annotated[
        str,
        typer.Option(
            help="vllm-router's policy: consistent_hash, sticky_least_loaded (both keep a program on one server), "
            "cache_aware, power_of_two, round_robin."
        ),
    ] = "consistent_hash",
    health_port: Annotated[
        int | None, typer.Option(help="Replicas: port of /health for all of them together; default a free one.")
    ] = None,
    gpu: Gpu = "h100-80gb",
    tp: TensorParallel = 1,
    gpu_memory_utilization: Utilization = 0.9,
    step_overhead_ms: Overhead = 1.0,
    time_scale: Annotated[float, typer.Option(help="Emulated: modelled seconds per real second.")] = 1.0,
    replies: Annotated[Path | None, typer.Option(help="Emulated: scripted answers (JSON lines).")] = None,
    max_num_seqs: MaxSeqs = 256,
    chunk_tokens: ChunkTokens = 2048,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a KV block.")] = None,
    kv_blocks: KvBlocks = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt plus output.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Folder for scheduler_timestamps.jsonl; replicas: one each below it.")
    ] = None,
    statistics: Annotated[
        Path | None, typer.Option(help="File of tool statistics, read and kept; replicas: NAME.replica0...")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="Prefill curve measured by continuum-bench profile.")] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="vLLM's parser; none: no tool calls.")] = "hermes",
    max_ttl_s: Annotated[float, typer.Option(help="Longest hold of any turn.")] = 600.0,
    max_pinned_share: Annotated[float, typer.Option(help="Share of the KV pool pins may hold.")] = 0.95,
    max_pins_per_client: Annotated[int | None, typer.Option(help="Pins per API key; default no limit.")] = None,
    pins_yield_to: PinsYieldTo = "policy",
    max_overtake_s: Annotated[
        float, typer.Option(help="A request that has waited so long goes before all that came after it.")
    ] = 1800.0,
    log: Annotated[
        Path | None, typer.Option(help="File for the server's output (replicas: folder); default stderr.")
    ] = None,
    drain_s: Annotated[int, typer.Option(help="Seconds running requests get at SIGTERM.")] = 30,
    ready_timeout_s: Annotated[float, typer.Option(help="Seconds it may take to start.")] = 900.0,
) -> None:
    """A vLLM server that holds agents' KV between turns. Options not listed here go to vLLM as they are."""
    options = {name: value for name, value in locals().items() if name != "context"}
    from continuum_bench.serve import serve_until_stopped  # noqa: PLC0415

    _exit(lambda: serve_until_stopped(options, tuple(context.args)))


@app.command()
def profile(
    out: Annotated[Path, typer.Option(help="File to write.")],
    base_url: Annotated[str | None, typer.Option(help="A live server (up to /v1); without it: the tables.")] = None,
    served_model: ServedModel = None,
    repeats: Annotated[int, typer.Option(help="Measurements per point; the median counts.")] = 3,
    gpu: Gpu = "h100-80gb",
    model: Model = "llama-3.1-8b",
    tp: TensorParallel = 1,
    step_overhead_ms: Overhead = 1.0,
) -> None:
    """Measure prefill and decode of a live server, or take them from the tables, into a small file."""
    from continuum_bench.live.profile_command import write_profile_file  # noqa: PLC0415

    _exit(lambda: write_profile_file(out, base_url, served_model, repeats, gpu, model, tp, step_overhead_ms))


@app.command()
def sweep(
    grid: Annotated[Path | None, typer.Argument(help="Grid (YAML): axes and their values.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="AXIS=A,B, repeatable; over the file, or instead of one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory; default runs/NAME. What is done there stays.")] = None,
    jobs: Jobs = None,
    ray_address: RayAddress = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
    no_report: NoReport = False,
    json_output: Json = False,
) -> None:
    """Play every cell of a grid of run options; the same command again plays what is missing."""
    from continuum_bench.sweep.command import SweepOptions, run_sweep  # noqa: PLC0415
    from continuum_bench.sweep.run import Players  # noqa: PLC0415

    players = Players(jobs, ray_address)
    given = SweepOptions(grid, overrides or (), out, players, dry_run, no_report, json_output)
    _exit(lambda: run_sweep(given))


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="A figure's name, or list.")],
    quick: Annotated[bool, typer.Option("--quick/--full", help="Minutes, few programs and seeds; or hours.")] = True,
    out: Annotated[Path | None, typer.Option(help="Directory; default runs/figures/NAME. Done cells stay.")] = None,
    traces: Annotated[list[Path] | None, typer.Option(help="Trace file instead of its workloads, repeatable.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="AXIS=A,B over its grid, repeatable.")] = None,
    limits: Annotated[
        list[float] | None,
        typer.Option("--limit", help="goodput: times vllm's unloaded mean JCT, repeatable.", min=1.0),
    ] = None,
    jobs: Jobs = None,
    ray_address: RayAddress = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and stop.")] = False,
) -> None:
    """One of the papers' experiments: played, tabled, drawn; the same command again plays what is missing."""
    from continuum_bench.figures.command import FigureOptions, run_figure  # noqa: PLC0415
    from continuum_bench.sweep.run import Players  # noqa: PLC0415

    given = FigureOptions(
        name, not quick, out, traces or (), overrides or (), Players(jobs, ray_address), limits or (), dry_run
    )
    _exit(lambda: run_figure(given))


traces_app = typer.Typer(no_args_is_help=True, help="Trace files: import, make, fit, look at, check, convert.")
app.add_typer(traces_app, name="traces")

Source = Annotated[Path, typer.Argument(help="Trace file.")]
Target = Annotated[Path, typer.Argument(help="File to write; gzipped where it ends in .gz.")]


@traces_app.command("import")
def import_(source: Source, target: Target, form: Format = None) -> None:
    """Turn another format's file into ours."""
    from continuum_bench.traces import import_traces  # noqa: PLC0415

    _exit(lambda: import_traces(source, target, form))


@traces_app.command()
def synth(
    target: Target,
    profile: Annotated[str, typer.Option(help="swebench, bfcl, openhands or a profile file.")] = "swebench",
    num_programs: Annotated[int, typer.Option("-n", "--num-programs", help="How many.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of the draws; equal ones give equal files.")] = 0,
    tokens_reading: TokensReading = "context",
    length_scale: Annotated[float, typer.Option(help="Every length times this.")] = 1.0,
) -> None:
    """Make synthetic programs from a profile."""
    from continuum_bench.traces import synth_traces  # noqa: PLC0415

    _exit(lambda: synth_traces(target, profile, num_programs, seed, tokens_reading, length_scale))


@traces_app.command()
def fit(
    source: Source,
    target: Target,
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "fitted",
    tokens_reading: TokensReading = "context",
    form: Format = None,
) -> None:
    """Make a profile of a trace: statistics only, no text."""
    from continuum_bench.traces import fit_profile  # noqa: PLC0415

    _exit(lambda: fit_profile(source, target, name, tokens_reading, form))


@traces_app.command()
def stats(
    source: Annotated[str, typer.Argument(help="Trace file, or swebench or bfcl for the bundled sets.")],
    form: Format = None,
    json_output: Json = False,
) -> None:
    """Turns, tool times, tokens, tails; beside the papers' Table 2."""
    from continuum_bench.traces import show_stats  # noqa: PLC0415

    _exit(lambda: show_stats(source, form, json_output))


@traces_app.command()
def validate(source: Source) -> None:
    """Name file, line and field of every fault."""
    from continuum_bench.traces import validate_trace  # noqa: PLC0415

    _exit(lambda: validate_trace(source))


@traces_app.command()
def convert(
    source: Source,
    target: Target,
    to: Annotated[str, typer.Option(help="Format to write; scheduler_timestamps files go both ways.")],
    form: Format = None,
) -> None:
    """Write a trace, or scheduler_timestamps, in another format."""
    from continuum_bench.traces import convert_trace  # noqa: PLC0415

    _exit(lambda: convert_trace(source, target, to, form))


def _exit(work: Any) -> None:
    """Run a command; a user's mistake is one line and exit code 2, never a traceback."""
    from continuum_bench.user_errors import USER_ERRORS  # noqa: PLC0415

    try:
        code = work()
    except USER_ERRORS as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from error
    if code:
        raise typer.Exit(code)


add_agent_commands(app, _exit)


def main() -> None:
    """Entry point of the ``continuum-bench`` script."""
    sys.exit(app())
