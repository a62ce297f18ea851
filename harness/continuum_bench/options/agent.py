"""Options of ``agent mini-swe``, ``agent bfcl``, ``agent openhands`` and ``agent command``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from continuum_agents.protocol import BUBBLEWRAP, DOCKER, LOCAL
from msgspec import Meta

from continuum_bench.options.declare import UNLISTED, WRITABLE, OptionGroup, named, one_of
from continuum_bench.options.forms import ARRIVALS
from continuum_bench.options.run import ArrivalOptions, Dialect, Jps, Json
from continuum_bench.options.together import Needs


@dataclass(frozen=True, kw_only=True)
class AgentOptions(OptionGroup):
    """Options of all agent frameworks. Some frameworks make options of the unlisted fields."""

    framework: ClassVar[str]
    usual = (
        *("tasks", "subset", "split", "slice_spec", "part", "category", "repos", "check", "base_url", "out", "model"),
        *("jps", "arrivals", "workers", "time_limit_s"),
    )
    environment: Annotated[str, UNLISTED] = LOCAL
    config: Annotated[list[str] | None, UNLISTED] = None

    base_url: str
    """URL of the server, up to /v1."""
    out: Path | None = None
    """Directory of the batch. If it holds the same batch already, that is continued."""
    model: str | None = None
    """Model to request. Default: the first that the server lists. A server without a list needs it."""
    jps: Jps = ArrivalOptions.jps
    """Number of programs that arrive per second."""
    arrivals: Annotated[str, ARRIVALS] = ArrivalOptions.arrivals
    """How programs arrive: poisson, constant, gamma:CV (bursty), ramp:FACTOR (the rate grows), or
    concurrency:N[:RAMP_S] (N programs at a time)."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Agent processes at the same time. Default: 4, or the N of --arrivals concurrency:N."""
    time_limit_s: Annotated[float, Meta(gt=0), named("--time-limit")] = 900.0
    """Seconds that a program may take from its start."""
    seed: int = 0
    """Seed. It decides when and in which order programs arrive."""
    step_limit: Annotated[int | None, Meta(ge=1)] = None
    """Largest number of turns of a program. Default: the limit in the framework's configuration."""
    tool_limit_s: Annotated[int | None, Meta(ge=1), named("--tool-limit")] = None
    """Longest duration of a tool call in seconds. Default: the limit in the framework's configuration."""
    dialect: Dialect = None
    """How tags are sent to the server. Default: by the kind of server that answers."""
    content: Annotated[str, one_of("none", "digest", "full")] = "digest"
    """Text that is recorded: none, digest (digests of tool arguments), or full."""
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class CodeOptions(AgentOptions):
    """Options of the agents that work on code."""

    repos: Path | None = None
    """Folder with git clones of the tasks' repositories, named ORG/REPO or ORG__REPO."""
    config: Annotated[list[str] | None, named("--config", "-c")] = None
    """The framework's own configuration: files, names of files, or KEY=VALUE. Repeatable."""


@dataclass(frozen=True, kw_only=True)
class MiniSweOptions(CodeOptions):
    """Options of ``agent mini-swe``; names and meaning as in ``mini-extra swebench``."""

    framework = "mini-swe"
    tasks: Path | None = None
    """File of tasks (JSON lines). Give this or --subset."""
    subset: str | None = None
    """SWE-bench's tasks: lite, verified, full and so on, or a dataset or a folder."""
    split: Annotated[str, Needs("subset")] = "dev"
    """Split of the dataset."""
    slice_spec: Annotated[str, named("--slice")] = ""
    """Range of the tasks to play, counted after --filter, for example 0:5."""
    filter_spec: Annotated[str, named("--filter")] = ""
    """Regular expression that the ids of instances begin with."""
    shuffle: bool = False
    """Shuffle before the slice is taken, as mini-extra swebench does."""
    environment: Annotated[str, one_of(LOCAL, BUBBLEWRAP, DOCKER)] = LOCAL
    """Where commands run: local, bubblewrap, or docker (in the task's image)."""
    pull: Annotated[bool, named("--pull/--no-pull")] = True
    """With docker: fetch all images before anything is timed."""


@dataclass(frozen=True, kw_only=True)
class BfclOptions(AgentOptions):
    """Options of ``agent bfcl``."""

    framework = "bfcl"
    tasks: Path | None = None
    """Folder of entries in the layout of BFCL's own. Default: the folder in bfcl-eval."""
    category: str = "web_search_base"
    """web_search_base, web_search_no_snippet, or web_search for both."""
    part: Annotated[str, named("--slice")] = ":"
    """Range of the entries to play: START:STOP."""
    web: str = "live"
    """live (SerpAPI and the pages themselves), or a file with a recorded web."""
    record_web: Annotated[Path | None, WRITABLE, Needs("web", "live")] = None
    """File to which the answers of the live web are appended."""
    temperature: Annotated[float, Meta(le=2)] = 0.001
    """Sampling temperature. The default is BFCL's."""
    prompting: bool = False
    """Describe functions in the prompt and read calls from the text, without the tools API."""


@dataclass(frozen=True, kw_only=True)
class OpenHandsOptions(CodeOptions):
    """Options of ``agent openhands``."""

    framework = "openhands"
    tasks: Path
    """File of tasks (JSON lines): SWE-bench's or Multi-SWE-bench's fields, or folder and test."""


@dataclass(frozen=True, kw_only=True)
class CommandOptions(AgentOptions):
    """Options of ``agent command``."""

    framework = "command"
    tasks: Path
    """File of tasks (JSON lines): instance_id, problem_statement, and optionally folder and test."""
    check: str | None = None
    """Shell command that passes if a task without a test is solved. Default: the exit status of the agent."""
    repos: Path | None = None
    """Folder with git clones of the tasks' repositories, named ORG/REPO or ORG__REPO."""
