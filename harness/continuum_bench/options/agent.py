"""Options of ``agent mini-swe``, ``agent bfcl``, ``agent openhands`` and ``agent command``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from continuum_agents.protocol import BUBBLEWRAP, DOCKER, LOCAL

from continuum_bench.options.declare import ABOVE_ZERO, NOT_NEGATIVE, WRITABLE, Limit, Options, at_least, named, one_of
from continuum_bench.options.run import ArrivalOptions, Dialect, Jps, Json
from continuum_bench.options.together import Needs


@dataclass(frozen=True, kw_only=True)
class AgentOptions(Options):
    """Options of all agent frameworks. Fields without a sentence are no options; some frameworks declare them.

    Attributes:
        base_url: URL of the server, up to /v1.
        out: Directory of the batch. If it holds the same batch already, that is continued.
        model: Model to request. Default: the first that the server lists.
        jps: Number of programs that arrive per second.
        arrivals: How programs arrive: poisson, constant, gamma:CV (bursty), ramp:FACTOR (the rate grows), or
            concurrency:N[:RAMP_S] (N programs at a time).
        workers: Agent processes at the same time. Default: 4, or the N of --arrivals concurrency:N.
        time_limit_s: Seconds that a program may take from its start.
        seed: Seed. It decides when and in which order programs arrive.
        step_limit: Largest number of turns of a program. Default: the limit in the framework's configuration.
        tool_limit_s: Longest duration of a tool call in seconds. Default: the limit in the framework's configuration.
        dialect: How tags are sent to the server. Default: by the kind of server that answers.
        content: Text that is recorded: none, digest (digests of tool arguments), or full.
    """

    framework: ClassVar[str]
    usual = (
        *("tasks", "subset", "split", "slice_spec", "part", "category", "repos", "check", "base_url", "out", "model"),
        *("jps", "arrivals", "workers", "time_limit_s"),
    )
    environment: str = LOCAL
    config: list[str] | None = None

    base_url: str
    out: Path | None = None
    model: str | None = None
    jps: Jps = ArrivalOptions.jps
    arrivals: str = ArrivalOptions.arrivals
    workers: Annotated[int | None, at_least(1)] = None
    time_limit_s: Annotated[float, ABOVE_ZERO, named("--time-limit")] = 900.0
    seed: Annotated[int, NOT_NEGATIVE] = 0
    step_limit: Annotated[int | None, at_least(1)] = None
    tool_limit_s: Annotated[int | None, at_least(1), named("--tool-limit")] = None
    dialect: Dialect = None
    content: Annotated[str, one_of("none", "digest", "full")] = "digest"
    json_output: Json = False


@dataclass(frozen=True, kw_only=True)
class CodeOptions(AgentOptions):
    """Options of the agents that work on code.

    Attributes:
        repos: Folder with git clones of the tasks' repositories, named ORG/REPO or ORG__REPO.
        config: The framework's own configuration: files, names of files, or KEY=VALUE. Repeatable.
    """

    repos: Path | None = None
    config: Annotated[list[str] | None, named("--config", "-c")] = None


@dataclass(frozen=True, kw_only=True)
class MiniSweOptions(CodeOptions):
    """Options of ``agent mini-swe``; names and meaning as in ``mini-extra swebench``.

    Attributes:
        tasks: File of tasks (JSON lines). Give this or --subset.
        subset: SWE-bench's tasks: lite, verified, full and so on, or a dataset or a folder.
        split: Split of the dataset.
        slice_spec: Range of the tasks to play, counted after --filter, for example 0:5.
        filter_spec: Regular expression that the ids of instances begin with.
        shuffle: Shuffle before the slice is taken, as mini-extra swebench does.
        environment: Where commands run: local, bubblewrap, or docker (in the task's image).
        pull: With docker: fetch all images before anything is timed.
    """

    framework = "mini-swe"
    tasks: Path | None = None
    subset: str | None = None
    split: Annotated[str, Needs("subset")] = "dev"
    slice_spec: Annotated[str, named("--slice")] = ""
    filter_spec: Annotated[str, named("--filter")] = ""
    shuffle: bool = False
    environment: Annotated[str, one_of(LOCAL, BUBBLEWRAP, DOCKER)] = LOCAL
    pull: Annotated[bool, named("--pull/--no-pull")] = True


@dataclass(frozen=True, kw_only=True)
class BfclOptions(AgentOptions):
    """Options of ``agent bfcl``.

    Attributes:
        tasks: Folder of entries in the layout of BFCL's own. Default: the folder in bfcl-eval.
        category: web_search_base, web_search_no_snippet, or web_search for both.
        part: Range of the entries to play: START:STOP.
        web: live (SerpAPI and the pages themselves), or a file with a recorded web.
        record_web: File to which the answers of the live web are appended.
        temperature: Sampling temperature. The default is BFCL's.
        prompting: Describe functions in the prompt and read calls from the text, without the tools API.
    """

    framework = "bfcl"
    tasks: Path | None = None
    category: str = "web_search_base"
    part: Annotated[str, named("--slice")] = ":"
    web: str = "live"
    record_web: Annotated[Path | None, WRITABLE, Needs("web", "live")] = None
    temperature: Annotated[float, Limit(lambda value: 0 <= value <= 2, "from 0 to 2")] = 0.001
    prompting: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenHandsOptions(CodeOptions):
    """Options of ``agent openhands``.

    Attributes:
        tasks: File of tasks (JSON lines): SWE-bench's or Multi-SWE-bench's fields, or folder and test.
    """

    framework = "openhands"
    tasks: Path


@dataclass(frozen=True, kw_only=True)
class CommandOptions(AgentOptions):
    """Options of ``agent command``.

    Attributes:
        tasks: File of tasks (JSON lines): instance_id, problem_statement, and optionally folder and test.
        check: Shell command that passes if a task without a test is solved. Default: the exit status of the agent.
        repos: Folder with git clones of the tasks' repositories, named ORG/REPO or ORG__REPO.
    """

    framework = "command"
    tasks: Path
    check: str | None = None
    repos: Path | None = None
