"""The commands of ``continuum-bench agent``. Each imports its modules only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from continuum_bench.commands import HelpfulGroup, add_command
from continuum_bench.options.agent import BfclOptions, CommandOptions, MiniSweOptions, OpenHandsOptions

agent_app = typer.Typer(
    cls=HelpfulGroup,
    no_args_is_help=True,
    help="Run real agent frameworks against a server. Their requests are tagged and recorded.",
)


@add_command(agent_app)
def setup(
    frameworks: Annotated[list[str] | None, typer.Argument(help="mini-swe, bfcl, openhands. Default: all.")] = None,
    anew: Annotated[bool, typer.Option("--anew", help="Make environments again that are up to date.")] = False,
) -> int:
    """Make the virtual environments of the frameworks, with every version pinned."""
    from continuum_bench.agents.environment import setup_environments  # noqa: PLC0415

    return setup_environments(frameworks or (), anew)


@add_command(agent_app, name="mini-swe")
def mini_swe(options: MiniSweOptions) -> int:
    """Run mini-swe-agent on code in local folders or on SWE-bench's tasks, and record it."""
    from continuum_bench.agents.mini_swe import run_mini_swe  # noqa: PLC0415

    return run_mini_swe(options)


@add_command(agent_app)
def bfcl(options: BfclOptions) -> int:
    """Run BFCL's web-search questions by BFCL's own loop, and record and score them."""
    from continuum_bench.agents.bfcl import run_bfcl  # noqa: PLC0415

    return run_bfcl(options)


@add_command(agent_app)
def openhands(options: OpenHandsOptions) -> int:
    """Run OpenHands on code in local folders or on Multi-SWE-bench's tasks, and record it."""
    from continuum_bench.agents.batch import run_openhands  # noqa: PLC0415

    return run_openhands(options)


@add_command(agent_app, name="command")
def any_command(
    options: CommandOptions,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND ...", help="The agent. {task}, {id}, {model} and {workspace} in it are replaced."
        ),
    ],
) -> int:
    """Run any program as an agent behind continuum-proxy, and record it."""
    from continuum_bench.agents.any_command import run_command  # noqa: PLC0415

    return run_command(options, words)
