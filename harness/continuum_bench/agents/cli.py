"""``continuum-bench agent``: options of its commands; what they do is in ``agent_run``, imported when one runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from continuum_bench.options import Json

Tasks = Annotated[Path, typer.Option(help="Tasks, JSON lines: SWE-bench's or Multi-SWE-bench's fields; folder, test.")]
SwebenchTasks = Annotated[Path | None, typer.Option("--tasks", help="Tasks, JSON lines; or --subset.")]
Subset = Annotated[str | None, typer.Option(help="SWE-bench's: lite, verified, full ...; a dataset, folder, file.")]
Split = Annotated[str, typer.Option(help="Of the dataset.")]
Slice = Annotated[str, typer.Option("--slice", help="Of what the filter leaves: 0:5.")]
Filter = Annotated[str, typer.Option("--filter", help="Regular expression that instance ids begin with.")]
Shuffle = Annotated[bool, typer.Option("--shuffle", help="Before the slice, as mini-extra swebench does.")]
Environment = Annotated[str, typer.Option(help="Where commands run: local, bubblewrap, docker (the task's image).")]
Pull = Annotated[bool, typer.Option(help="Docker: fetch all images first.")]
Repos = Annotated[Path | None, typer.Option(help="Git clones of the tasks' repositories: ORG/REPO or ORG__REPO.")]
ServerUrl = Annotated[str, typer.Option(help="The server, up to /v1.")]
AgentModel = Annotated[str | None, typer.Option(help="Model to ask for; default the server's first.")]
AgentSeed = Annotated[int, typer.Option("--seed", help="Of arrivals and order.")]
AgentJps = Annotated[float, typer.Option(help="Programs arriving per second.")]
AgentArrivals = Annotated[
    str, typer.Option(help="poisson, constant, gamma:CV (bursty), ramp:FACTOR, concurrency:N[:RAMP_S].")
]
Workers = Annotated[int | None, typer.Option(help="Agent processes at once; default 4, or concurrency's N.")]
TimeLimit = Annotated[float, typer.Option("--time-limit", help="Seconds a program may take from its start.")]
AgentOut = Annotated[Path | None, typer.Option(help="Directory; one that is there is resumed.")]
AgentConfig = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="The framework's own: files, its names for them, KEY=VALUE. Repeatable."),
]
StepLimit = Annotated[int | None, typer.Option(help="Turns at most; default the configuration's.")]
ToolLimit = Annotated[int | None, typer.Option("--tool-limit", help="Seconds of one tool; default the config's.")]
AgentDialect = Annotated[str | None, typer.Option(help="How tags are sent; default by what the server is.")]
Content = Annotated[str, typer.Option(help="Text in the records: none, digest (of tool arguments), full.")]
BfclTasks = Annotated[
    Path | None, typer.Option("--tasks", help="Folder of entries laid out as BFCL's own; default bfcl-eval's.")
]
Category = Annotated[str, typer.Option(help="web_search_base, web_search_no_snippet, or web_search for both.")]
Part = Annotated[str, typer.Option("--slice", help="START:STOP of the entries.")]
Web = Annotated[str, typer.Option(help="live (SerpAPI and the pages), or a file with a recorded web.")]
RecordWeb = Annotated[Path | None, typer.Option(help="File to which the live web's answers are appended.")]
Temperature = Annotated[float, typer.Option(help="Of sampling; the default is BFCL's.")]
Prompting = Annotated[
    bool, typer.Option("--prompting", help="Functions in the prompt, calls in the text: no tools API.")
]
Names = Annotated[list[str] | None, typer.Argument(help="mini-swe, bfcl, openhands; default all.")]
Anew = Annotated[bool, typer.Option("--anew", help="Also where it is current.")]


def add_agent_commands(app: typer.Typer, run: Callable[[Callable[[], int]], None]) -> None:
    """Register the commands; ``run`` turns a user's mistake into one line."""
    agents = typer.Typer(no_args_is_help=True, help="Real agent frameworks against a server, tagged and recorded.")
    app.add_typer(agents, name="agent")

    @agents.command()
    def setup(frameworks: Names = None, anew: Anew = False) -> None:
        """Make the environments that frameworks live in, with every version pinned."""
        from continuum_bench.agents.run import setup_environments  # noqa: PLC0415

        run(lambda: setup_environments(frameworks or (), anew))

    @agents.command("mini-swe")
    def mini_swe(
        base_url: ServerUrl,
        tasks: SwebenchTasks = None,
        subset: Subset = None,
        split: Split = "dev",
        slice_spec: Slice = "",
        filter_spec: Filter = "",
        shuffle: Shuffle = False,
        repos: Repos = None,
        environment: Environment = "local",
        pull: Pull = True,
        out: AgentOut = None,
        model: AgentModel = None,
        jps: AgentJps = 0.13,
        arrivals: AgentArrivals = "poisson",
        workers: Workers = None,
        time_limit_s: TimeLimit = 900.0,
        seed: AgentSeed = 0,
        config: AgentConfig = None,
        step_limit: StepLimit = None,
        tool_limit_s: ToolLimit = None,
        dialect: AgentDialect = None,
        content: Content = "digest",
        json_output: Json = False,
    ) -> None:
        """mini-swe-agent on code in local folders, or SWE-bench's: programs arrive, run for real, and are recorded."""
        given = {**locals(), "config": tuple(config or ())}

        def play() -> int:
            from continuum_bench.agents.run import AgentOptions  # noqa: PLC0415
            from continuum_bench.agents.swebench import SwebenchOptions, run_mini_swe  # noqa: PLC0415

            ours, shared = _named(SwebenchOptions, given), _named(AgentOptions, given)
            return run_mini_swe(SwebenchOptions(**ours), shared)

        run(play)

    @agents.command()
    def clean() -> None:
        """Remove the Docker containers that batches left behind; also those of a batch that runs."""
        from continuum_bench.agents.swebench import clean_containers  # noqa: PLC0415

        run(clean_containers)

    @agents.command("bfcl")
    def bfcl(
        base_url: ServerUrl,
        tasks: BfclTasks = None,
        category: Category = "web_search_base",
        part: Part = ":",
        web: Web = "live",
        record_web: RecordWeb = None,
        out: AgentOut = None,
        model: AgentModel = None,
        jps: AgentJps = 0.13,
        arrivals: AgentArrivals = "poisson",
        workers: Workers = None,
        time_limit_s: TimeLimit = 900.0,
        seed: AgentSeed = 0,
        step_limit: StepLimit = None,
        tool_limit_s: ToolLimit = None,
        temperature: Temperature = 0.001,
        prompting: Prompting = False,
        dialect: AgentDialect = None,
        content: Content = "digest",
        json_output: Json = False,
    ) -> None:
        """BFCL's web-search questions by its own loop: programs arrive, search for real, are recorded and scored."""
        given = locals()

        def play() -> int:
            from continuum_bench.agents.bfcl import BfclOptions, run_bfcl  # noqa: PLC0415
            from continuum_bench.agents.run import AgentOptions  # noqa: PLC0415

            return run_bfcl(BfclOptions(**_named(BfclOptions, given)), _named(AgentOptions, given))

        run(play)

    @agents.command("openhands")
    def openhands(
        tasks: Tasks,
        base_url: ServerUrl,
        repos: Repos = None,
        out: AgentOut = None,
        model: AgentModel = None,
        jps: AgentJps = 0.13,
        arrivals: AgentArrivals = "poisson",
        workers: Workers = None,
        time_limit_s: TimeLimit = 900.0,
        seed: AgentSeed = 0,
        config: AgentConfig = None,
        step_limit: StepLimit = None,
        tool_limit_s: ToolLimit = None,
        dialect: AgentDialect = None,
        content: Content = "digest",
        json_output: Json = False,
    ) -> None:
        """OpenHands on code in local folders, or Multi-SWE-bench's: programs arrive, run for real, and are recorded."""
        given = {**locals(), "config": tuple(config or ()), "framework": "openhands"}

        def play() -> int:
            from continuum_bench.agents.run import AgentOptions, run_agents  # noqa: PLC0415

            return run_agents(AgentOptions(**_named(AgentOptions, given)))

        run(play)


def _named(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that a dataclass has."""
    return {name: given[name] for name in kind.__dataclass_fields__ if name in given}
