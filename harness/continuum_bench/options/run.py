"""Options of the commands that play a workload, and the groups that other commands share with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from continuum_server import defaults
from continuum_server.engine_settings import GpuSettings, SchedulerSettings
from continuum_server.policy.order import PinsYieldTo
from continuum_server.policy.program_table import Guards, OneOffsOrder
from continuum_server.routers import ROUTERS
from continuum_traces.playing.conversation import Sends
from continuum_traces.schema import CLOSED_LOOPS
from msgspec import Meta

from continuum_bench.errors import OptionError
from continuum_bench.options.declare import (
    ARGUMENT,
    Option,
    OptionGroup,
    declared,
    named,
    one_of,
)
from continuum_bench.options.forms import (
    ARRIVALS,
    COOL_DOWN,
    HINT_ERROR,
    HINTS,
    START_WITHIN,
    TOOL_TIMES,
    UNTIL,
    WARM_UP,
)
from continuum_bench.options.scenarios import SCENARIOS, Scenario
from continuum_bench.options.together import Needs, Without
from continuum_client.dialects import DIALECTS

RUN, ENGINE, WORKLOAD, OUTPUT, SERVER = "Run", "Engine", "Workload", "Output", "Live server"
"""Panels of ``--help``."""

WORKLOADS = ("swebench", "bfcl", "openhands")
"""Names of the bundled workloads, each a command."""

DEFAULT_POLICIES = ("vllm", "program-fcfs", "static-ttl", "continuum", "working-set")


def uses_rate(arrivals: str) -> bool:
    """Return whether this form of ``--arrivals`` uses ``--jps``."""
    return not arrivals.startswith((*CLOSED_LOOPS, "recorded:"))


NO_RATE = Without("arrivals", "these arrivals have a rate of their own", lambda arrivals: not uses_rate(arrivals))
NO_SEARCH = Without("arrivals", "the search decides how many programs run at a time")
ROUTER = one_of(*ROUTERS)
PIPELINE = named("--pp", "--pipeline-parallel-size")
PROFILED = Without("profile", "the profile was measured on all GPUs together")
SERVERS = Without("base_url", "the server decides that; start it as you want it")
Jps = Annotated[float, Meta(gt=0, title="programs per second"), NO_RATE]

# Options that several commands have:
Format = Annotated[
    str | None,
    Meta(description="Format of the trace file. Default: recognised by itself."),
    Option(names=("--format",), panel=WORKLOAD),
]
TokensReading = Annotated[
    str,
    one_of("context", "cumulative"),
    Meta(
        description="Meaning of a profile's tokens per program: context (the final context) or cumulative (all turns' "
        "sum)."
    ),
    Option(panel=WORKLOAD),
]
PolicyOption = Annotated[
    list[str] | None,
    Meta(description="Set an option of a policy: POLICY.OPTION=VALUE. Repeatable."),
    Option(panel=RUN),
]
Jobs = Annotated[
    int | None,
    Meta(ge=1, description="Number of runs at the same time. Default: the number of CPU cores."),
    Option(panel=RUN),
]
ServedModel = Annotated[
    str | None,
    Meta(description="Model to request. Default: the first that the server lists. A server without a list needs it."),
    Option(panel=SERVER),
]
Wait = Annotated[bool, Meta(description="Wait until the server answers, at most 15 minutes."), Needs("base_url")]
Dialect = Annotated[str | None, one_of(*DIALECTS)]
NoReport = Annotated[bool, Meta(description="Do not write report.html."), Option(panel=OUTPUT)]
Quiet = Annotated[bool, Meta(description="Show only the results, without progress."), Option(panel=OUTPUT)]
Json = Annotated[bool, Meta(description="Print JSON instead of tables."), Option(names=("--json",), panel=OUTPUT)]


@dataclass(frozen=True)
class TraceOptions(OptionGroup):
    """Which programs are played."""

    panel = WORKLOAD

    traces: Path | None = None
    """Trace file to play instead of the bundled programs."""
    form: Annotated[Format, Needs("traces")] = None
    num_programs: Annotated[int | None, Meta(ge=1, le=100_000)] = None
    """Number of programs to play. If the trace holds fewer, its programs are repeated with other tokens. Default: every
    program of the trace once."""
    tokens_reading: Annotated[TokensReading, Without("traces", "it is about the bundled profiles")] = "context"
    turn_scale: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Multiply the number of turns by this factor and divide their lengths by it."""
    length_scale: Annotated[float, Meta(gt=0)] = 1.0
    """Multiply every length in tokens by this factor."""
    shared_prefix: int = 0
    """Put this many tokens before the first prompt of every program, the same tokens for all programs."""
    compact_at: int = 0
    """Let agents write their history anew when a context exceeds this many tokens: a summary of 2,000 tokens follows
    the first prompt."""
    max_think_s: float | None = None
    """Shorten the time between turns in which no tool runs (a person reads and writes) to this many seconds."""
    max_idle_s: Annotated[float | None, Meta(gt=0)] = None
    """Shorten the time between turns, tools included, to this many seconds, unless a sub-agent runs in it."""
    skip_invalid: bool = False
    """Leave out programs that are longer than the model's context."""


@dataclass(frozen=True)
class ArrivalOptions(OptionGroup):
    """When programs arrive, how long their tools take, and which hints they send."""

    panel = WORKLOAD

    jps: Jps = 0.13
    """Number of programs that arrive per second."""
    arrivals: Annotated[str, ARRIVALS] = "poisson"
    """How programs arrive: poisson, constant, gamma:CV (bursty), ramp:FACTOR (the rate grows), recorded[:SPEED] (at the
    times in the trace), concurrency:N[:RAMP_S] (N programs at a time, the next starts when one ends), or
    steps:N[:PAUSE_S] (N together, the next N when all have ended: roll-outs for training)."""
    concurrency: Annotated[int | None, Meta(ge=1)] = None
    """Programs at a time; short for --arrivals concurrency:N."""
    start_within: Annotated[str, START_WITHIN] = "0:0"
    """In a closed loop, start each of the first programs within these shares of its turns (0.25:0.75), with its whole
    context as the first prompt. 0:0: at the first turn."""
    max_idle_all_s: Annotated[float | None, Meta(gt=0)] = None
    """Longest time without any request. Otherwise all pending turns come earlier by the same time."""
    scenario: Annotated[str | None, one_of(*SCENARIOS)] = None
    """Set what the rules of a public benchmark say, where you give no other value: agentx (InferenceX AgentX) or
    mlperf-agentic (MLPerf). Needs --concurrency. The result says whether it is comparable, or why not."""
    tool_times: Annotated[str, TOOL_TIMES] = "recorded"
    """How long tools take: recorded, constant:SECONDS, bimodal:SHARE:SHORT_S:LONG_S, shift:FACTOR (slower from the
    middle program on), hang:SHARE[:SECONDS] (in this share of programs one tool takes an hour, or so long)."""
    hints: Annotated[str, HINTS] = "none"
    """What clients tell the server in advance: none, tool (the name of the next tool), tool_s (its seconds too), kv_ttl
    (how long to keep the KV if nobody else wants the memory: until the next turn), kv_ttl:SECONDS (the same, so long
    after every turn)."""
    hint_error: Annotated[str, HINT_ERROR, Needs("hints")] = "0"
    """How wrong hints are: a number (0: exact; with 0.5, two thirds of the hints are 0.61 to 1.65 times the truth),
    adversarial[:SHARE] (all programs, or this share, lie; the others tell the truth), or adversarial:SHARE:silent (the
    others send no hints)."""
    tags: Sends = "full"
    """What clients tell the server about programs: full, no-last (all but which turn is the last), or none (nothing, as
    agents that do not know of Continuum)."""
    time_limit_s: Annotated[float | None, Meta(gt=0)] = None
    """Seconds after which the run stops. Programs that still run stay unfinished."""
    warm_up: Annotated[str, WARM_UP] = "0"
    """What to leave out of all metrics at the start: a number of programs (10), or all programs that arrive in the
    first seconds (60s); in a closed loop, with seconds all turns that are due in them, with requests (11r) all turns
    until so many requests for each program at a time have ended."""
    cool_down: Annotated[str, COOL_DOWN] = "0"
    """What to leave out of all metrics at the end, in the same form. In a closed loop, seconds need --time-limit-s, and
    lanes leaves out what is due after no next program could start."""

    def expand(self) -> None:
        if self.concurrency is not None:
            at_a_time = f"concurrency:{self.concurrency}"
            if self.arrivals not in (ArrivalOptions.arrivals, at_a_time):
                raise OptionError(f"--concurrency {self.concurrency}, --arrivals {self.arrivals}: give one of them")
            object.__setattr__(self, "arrivals", at_a_time)
            object.__setattr__(self, "concurrency", None)
        if self.scenario is not None:
            self._follow(SCENARIOS[self.scenario])

    def _follow(self, scenario: Scenario) -> None:
        """Give the options the scenario's values where they have their defaults."""
        if not self.arrivals.startswith("concurrency:"):
            raise OptionError(f"--scenario {self.scenario}: give the number of agents at a time (--concurrency N)")
        for name, value in scenario.sets.items():
            option = declared(type(self)).get(name)
            if option is not None and not option.is_given(getattr(self, name)):
                object.__setattr__(self, name, value)


@dataclass(frozen=True)
class GpuOptions(GpuSettings, OptionGroup):
    """The hardware and the model for which step times are computed."""

    panel = ENGINE
    rules = (SERVERS,)


@dataclass(frozen=True)
class EngineOptions(SchedulerSettings, GpuOptions):
    """Options that a virtual engine and a server have in common."""

    panel = ENGINE
    rules = (SERVERS,)

    pins_yield_to: PinsYieldTo = Guards().pins_yield_to
    """Which pinned KV a waiting request may evict while other requests run: never (none), or waiting (that of programs
    whose next request waits too, and comes later). With policy, the policy decides."""
    one_offs: OneOffsOrder = Guards().one_offs
    """Order of requests that belong to no conversation, such as single chats: first (before programs, within a share of
    the engine's work) or fcfs (the policy's own order, as in the papers)."""
    recognise: defaults.Recognise = defaults.RECOGNISE
    """How the server recognises the conversations of agents that send none of our tags: ids (by the ids that agents
    send), ids,prompts (where there is no id, by prompts that continue earlier ones), none."""
    max_ttl_s: float = Guards().max_ttl_s
    """Longest time in seconds for which the KV of a finished turn is held."""
    first_token_s: Annotated[float | None, Meta(gt=0)] = None
    """Target for the first token of a program. A first turn that would miss it runs before all others."""


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """Where the results of a run go."""

    panel = OUTPUT

    out: Path | None = None
    """Directory for the runs. If it holds the same run already, that is continued. Default: runs/NAME-TIME."""
    no_report: NoReport = False
    json_output: Json = False
    quiet: Quiet = False
    print_config: bool = False
    """Print this command line as a file for `continuum-bench run`, and stop."""


@dataclass(frozen=True)
class ArmOptions(OptionGroup):
    """The policies that are compared, and the number of arrival sequences."""

    panel = RUN

    policy: Annotated[
        list[str] | None,
        Meta(
            description="Policies to compare, repeated or separated by commas. "
            f"Default: {', '.join(DEFAULT_POLICIES)}. NAME+offload runs policy NAME with the memory tiers of --offload."
        ),
        SERVERS,
    ] = None
    policy_option: Annotated[PolicyOption, SERVERS] = None
    seed: int = 0
    """First seed. A seed decides when and in which order programs arrive."""
    seeds: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Number of seeds, each with an arrival sequence of its own. Three or more give 95% intervals."""
    until: Annotated[str | None, UNTIL, SERVERS] = None
    """Add seeds until the 95% interval of every policy's JCT ratio is within this distance of its estimate: 3%."""
    how_many: Annotated[bool, NO_SEARCH, Without("until", "a search has the seeds that it is given")] = False
    """Play rising numbers of agents at a time, and say how many each policy serves within a service level. Default
    policies: vllm and working-set. Against a server the search ends at the first number that breaks the level, and
    each number takes at most 5 min or --time-limit-s."""
    slo: Annotated[str | None, Needs("how_many")] = None
    """The service level of --how-many, in the form of `compare --slo`. Default: ttft_p95=5,output_tokens_s_p25=20, the
    95th percentile of first tokens in seconds, and the 25th of each agent's output tokens per second."""
    jobs: Annotated[Jobs, Without("base_url", "one run at a time is played against a server")] = None


@dataclass(frozen=True)
class RunOptions(OutputOptions, EngineOptions, ArmOptions, ArrivalOptions, TraceOptions):
    """Options of the commands that play a workload. ``--help`` lists the options of the last base class first."""

    panel = ENGINE
    usual = (
        *("policy", "jps", "arrivals", "concurrency", "how_many", "num_programs", "seeds", "gpu", "model", "out"),
        *("traces", "json_output", "print_config", "base_url", "wait"),
    )

    pp: Annotated[int, Meta(ge=1), SERVERS, PIPELINE, PROFILED] = 1
    """Pipeline parallel size: the number of stages of one replica, each with --tp GPUs."""
    block_size: Annotated[int, Meta(ge=1), SERVERS] = defaults.BLOCK_SIZE
    """Number of tokens in one KV block."""
    no_prefix_caching: Annotated[bool, SERVERS] = False
    """Compute every prompt whole, as a server that was started without prefix caching."""
    vllm: Annotated[str | None, SERVERS] = None
    """Version of vLLM whose own work between two steps is modelled. From 0.20 on, a request then waits for the step
    after the next, because vLLM schedules ahead. Default: the newest version's work, without this wait."""
    offload: Annotated[str | None, SERVERS] = None
    """Memory tiers below the GPU for policies named NAME+offload, in GB per GPU: dram-100, dram-200, dram-100+ssd-400,
    dram-200+ssd-800, or other sizes. dram-100@pcie3 names the link to the GPU, dram-100@pcie4/8 a link that 8 GPUs
    share. If no policy is named so, all policies run with these tiers. Default: the usual DRAM and link of the GPU."""
    profile: Annotated[Path | None, SERVERS] = None
    """File of `continuum-bench profile`: step times and KV size that were measured on a server, instead of --gpu's."""
    speculative: Annotated[str | None, SERVERS] = None
    """Speculative decoding as DRAFTS:LENGTH, the tokens drafted in each step and the mean number that it yields: 3:2.8.
    This is a model: every request is accepted alike. Default: a step yields one token."""
    replicas: Annotated[int, Meta(ge=1, le=1000), SERVERS] = 1
    """Number of engines behind a router, each with its own GPUs."""
    router: Annotated[str, ROUTER, Needs("replicas")] = "affinity"
    """How the router chooses a replica for a turn: affinity (by a hash of the program's id), sticky (the replica with
    the fewest programs, kept for the whole program), cache-aware, least-loaded, round-robin."""
    token_times: Annotated[bool, Option(panel=OUTPUT)] = False
    """Record the gaps between output tokens too, for the percentiles of ITL. Results of a virtual run stay the same.
    Against a server the load generator then reads every chunk when it comes, which costs it processor time."""


@dataclass(frozen=True)
class ReplayOptions(RunOptions):
    """Options of ``replay``, whose trace file is an argument."""

    traces: Annotated[Path, ARGUMENT] = field()
    """Trace file in any known format."""


@dataclass(frozen=True)
class LiveOptions(OptionGroup):
    """Options of a run against a live server. Without ``--base-url`` none of them may be given."""

    panel = SERVER
    rules = (Needs("base_url"),)

    base_url: str | None = None
    """Play against this server (its URL up to /v1) instead of the virtual engine."""
    wait: Wait = False
    served_model: ServedModel = None
    label: str | None = None
    """Name of the run. Default: the name of the server's policy."""
    dialect: Dialect = None
    """How tags are sent to the server. Default: by the kind of server that answers."""
    prompts: Annotated[str | None, one_of("tokens", "text")] = None
    """Send prompts as tokens (exact lengths; the default for vLLM) or as text (approximate lengths)."""
    retries: int = 3
    """How often a failed turn is sent again, under the same ids. Retry-After is honoured."""
    request_limit_s: Annotated[float, Meta(gt=0)] = 3600.0
    """Seconds after which a request counts as failed."""
    program_limit_s: Annotated[float | None, Meta(gt=0)] = None
    """Seconds after which a program is given up."""
    processes: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Number of processes that generate the load."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key. The key itself is never recorded."""
    scheduler_records: Path | None = None
    """Folder that the server was given as --record. The server's records of this run are copied from it."""

    def check_records(self) -> None:
        """Check the folder of the server's records before the load starts.

        Raises:
            OptionError: there is no such folder.
        """
        if self.scheduler_records is not None and not self.scheduler_records.is_dir():
            raise OptionError(f"--scheduler-records {self.scheduler_records}: no such folder")

    def expand(self) -> None:
        if not self.wait:  # the server that it waits for makes the folder
            self.check_records()
