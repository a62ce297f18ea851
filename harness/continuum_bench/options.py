"""Options that several commands share, each with its sentence."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

_RUN, _ENGINE, _WORKLOAD, _OUTPUT = "Run", "Engine", "Workload", "Output"
_SERVER = "Live server"

DEFAULT_POLICIES = ("vllm", "program-fcfs", "static-ttl", "continuum", "working-set")

Traces = Annotated[Path | None, typer.Option(help="Trace file instead of the bundled set.", rich_help_panel=_WORKLOAD)]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Format of the trace; found out where not given.", rich_help_panel=_WORKLOAD),
]
Jps = Annotated[float, typer.Option(help="Programs arriving per second.", rich_help_panel=_WORKLOAD)]
NumPrograms = Annotated[
    int | None,
    typer.Option(help="How many programs; more than the trace holds repeats them.", rich_help_panel=_WORKLOAD),
]
Arrivals = Annotated[
    str,
    typer.Option(
        help="poisson, constant, gamma:CV (bursty), ramp:FACTOR, recorded[:SPEED], concurrency:N[:RAMP_S].",
        rich_help_panel=_WORKLOAD,
    ),
]
ToolTimes = Annotated[
    str,
    typer.Option(
        help="recorded, constant:S, bimodal:SHARE:SHORT_S:LONG_S, shift:FACTOR (slower from the middle program on), "
        "hang:SHARE[:S] (this share of programs has one tool that takes an hour, or S).",
        rich_help_panel=_WORKLOAD,
    ),
]
TokensReading = Annotated[
    str,
    typer.Option(help="Tokens per program mean: context (final) or cumulative (sum).", rich_help_panel=_WORKLOAD),
]
TurnScale = Annotated[int, typer.Option(help="Turns k times over, lengths divided by k.", rich_help_panel=_WORKLOAD)]
LengthScale = Annotated[float, typer.Option(help="Every length in tokens times this.", rich_help_panel=_WORKLOAD)]
SharedPrefix = Annotated[
    int,
    typer.Option(
        help="So many tokens more, the same for all programs, before each first prompt.", rich_help_panel=_WORKLOAD
    ),
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Leave out programs that do not fit.", rich_help_panel=_WORKLOAD)
]
PolicyNames = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        help=f"Policies, repeated or separated by commas; default {', '.join(DEFAULT_POLICIES)}. "
        "NAME+offload runs with the tiers of --offload.",
        rich_help_panel=_RUN,
    ),
]
PolicyOptions = Annotated[
    list[str] | None,
    typer.Option("--policy-option", help="POLICY.OPTION=VALUE, repeatable.", rich_help_panel=_RUN),
]
Seed = Annotated[int, typer.Option(help="First seed, of arrivals and order.", rich_help_panel=_RUN)]
Seeds = Annotated[int, typer.Option(help="Arrival sequences; 2 or more give intervals.", rich_help_panel=_RUN)]
Jobs = Annotated[int | None, typer.Option(help="Runs at once; default all cores.", rich_help_panel=_RUN)]
RayAddress = Annotated[
    str | None,
    typer.Option(help="Play on this Ray cluster (auto, HOST:PORT, ray://...); local: one here.", rich_help_panel=_RUN),
]
Gpu = Annotated[str, typer.Option(help="GPU; doctor lists them.", rich_help_panel=_ENGINE)]
Model = Annotated[str, typer.Option(help="Model; doctor lists them.", rich_help_panel=_ENGINE)]
TensorParallel = Annotated[int, typer.Option("--tp", help="GPUs of one replica.", rich_help_panel=_ENGINE)]
MaxSeqs = Annotated[int, typer.Option(help="Most requests running at once.", rich_help_panel=_ENGINE)]
ChunkTokens = Annotated[int, typer.Option(help="Tokens of one step at most.", rich_help_panel=_ENGINE)]
BlockSize = Annotated[int, typer.Option(help="Tokens of a KV block.", rich_help_panel=_ENGINE)]
KvBlocks = Annotated[int | None, typer.Option(help="KV blocks; default what fits the GPU.", rich_help_panel=_ENGINE)]
Utilization = Annotated[float, typer.Option(help="Share of GPU memory used.", rich_help_panel=_ENGINE)]
Overhead = Annotated[float, typer.Option(help="Added to every modelled step.", rich_help_panel=_ENGINE)]
PinsYieldTo = Annotated[
    str,
    typer.Option(
        help="Whose pins a waiting request may take while others run: never, waiting (later programs' that wait too), "
        "later (all later programs'), anyone; policy: as the policy wants it.",
        rich_help_panel=_ENGINE,
    ),
]
OffloadPreset = Annotated[
    str | None,
    typer.Option(
        "--offload",
        help="Tiers of NAME+offload, GB per GPU: dram-100, dram-200, dram-100+ssd-400, dram-200+ssd-800, other sizes "
        "alike; default by GPU. Where no policy is named so, all run with them.",
        rich_help_panel=_ENGINE,
    ),
]
Replicas = Annotated[
    int, typer.Option(help="Engines behind a router, each with its own GPUs.", rich_help_panel=_ENGINE)
]
RouterName = Annotated[
    str,
    typer.Option(
        "--router",
        help="Which replica a turn goes to: affinity (hash of the program), sticky (fewest programs, then stays), "
        "cache-aware, least-loaded, round-robin.",
        rich_help_panel=_ENGINE,
    ),
]
KillReplica = Annotated[
    str | None, typer.Option(help="REPLICA@SECOND: this one dies then; counted from 0.", rich_help_panel=_ENGINE)
]
BaseUrl = Annotated[
    str | None,
    typer.Option(help="Play against this server (up to /v1) instead of the virtual engine.", rich_help_panel=_SERVER),
]
ServedModel = Annotated[str | None, typer.Option(help="Model to ask for; default its first.", rich_help_panel=_SERVER)]
Label = Annotated[str | None, typer.Option(help="Name of the run; default its policy.", rich_help_panel=_SERVER)]
Dialect = Annotated[
    str | None, typer.Option(help="How tags are sent; default by what the server is.", rich_help_panel=_SERVER)
]
Prompts = Annotated[
    str | None, typer.Option(help="tokens (exact; vLLM's default) or text (about).", rich_help_panel=_SERVER)
]
Retries = Annotated[
    int, typer.Option(help="Tries again per turn, ids kept, Retry-After honoured.", rich_help_panel=_SERVER)
]
RequestLimit = Annotated[float, typer.Option(help="A request that takes longer has failed.", rich_help_panel=_SERVER)]
ProgramLimit = Annotated[float | None, typer.Option(help="Give a program up after so long.", rich_help_panel=_SERVER)]
RunLimit = Annotated[
    float | None,
    typer.Option("--time-limit-s", help="Stop the run then; what runs is unfinished.", rich_help_panel=_SERVER),
]
WarmUp = Annotated[
    str,
    typer.Option(help="Load only, in no metric: first N programs, or arriving in Ns.", rich_help_panel=_SERVER),
]
CoolDown = Annotated[str, typer.Option(help="The same for the last programs, or seconds.", rich_help_panel=_SERVER)]
Processes = Annotated[int, typer.Option(help="Processes that share the load.", rich_help_panel=_SERVER)]
ApiKeyEnv = Annotated[
    str, typer.Option(help="Environment variable with the API key; never written down.", rich_help_panel=_SERVER)
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Go on with this run: finished programs are kept, the others played.", rich_help_panel=_SERVER),
]
SchedulerRecords = Annotated[
    Path | None,
    typer.Option(help="The server's --record folder, for its side of the run.", rich_help_panel=_SERVER),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option(help="Step times and KV size of a profiled server instead of --gpu.", rich_help_panel=_ENGINE),
]
Out = Annotated[Path | None, typer.Option(help="Directory to make; default runs/NAME-TIME.", rich_help_panel=_OUTPUT)]
NoReport = Annotated[bool, typer.Option("--no-report", help="No report.html.", rich_help_panel=_OUTPUT)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_OUTPUT)]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a workload command was given; the defaults are those of the command line."""

    traces: Path | None = None
    form: str | None = None
    jps: float = 0.13
    policy: list[str] | None = None
    policy_option: list[str] | None = None
    gpu: str = "h100-80gb"
    model: str = "llama-3.1-8b"
    tp: int = 1
    num_programs: int | None = None
    seed: int = 0
    seeds: int = 1
    max_num_seqs: int = 256
    chunk_tokens: int = 2048
    block_size: int = 16
    kv_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    step_overhead_ms: float = 1.0
    pins_yield_to: str = "policy"
    offload: str | None = None
    profile: Path | None = None
    replicas: int = 1
    router: str = "affinity"
    kill_replica: str | None = None
    tokens_reading: str = "context"
    turn_scale: int = 1
    length_scale: float = 1.0
    shared_prefix: int = 0
    arrivals: str = "poisson"
    tool_times: str = "recorded"
    skip_invalid: bool = False
    jobs: int | None = None
    out: Path | None = None
    no_report: bool = False
    json_output: bool = False


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What only a run against a server needs; the defaults are those of the command line."""

    base_url: str
    served_model: str | None = None
    label: str | None = None
    dialect: str | None = None
    prompts: str | None = None
    retries: int = 3
    request_limit_s: float = 3600.0
    program_limit_s: float | None = None
    time_limit_s: float | None = None
    warm_up: str = "0"
    cool_down: str = "0"
    processes: int = 1
    api_key_env: str = "OPENAI_API_KEY"
    resume: Path | None = None
    scheduler_records: Path | None = None


def only_live(options: RunOptions, live: LiveOptions) -> str | None:
    """The first option given that needs a live server; None where there is none."""
    for field in fields(LiveOptions):
        if field.name != "base_url" and getattr(live, field.name) != field.default:
            return f"--{field.name.replace('_', '-')}"
    return f"--arrivals {options.arrivals}" if options.arrivals.startswith("concurrency") else None
