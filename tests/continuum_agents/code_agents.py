"""Tool calls, replies of a model and ends of a program, in the form of mini-swe-agent and in that of OpenHands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_batches import SCENARIOS, calls, script_of

NAP = "987654.25"
"""Seconds that a tool sleeps which must not be left behind."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
OUTSIDE = "/usr/continuum-was-here"
MEND = ("sed -i 's/I/J/' roman/__init__.py && git diff > patch.txt", f"{SUBMIT} && cat patch.txt")


@dataclass(frozen=True, eq=False)
class Kind:
    """A framework, and its words."""

    name: str
    tool: str
    last: dict[str, Any]
    """The reply that ends a program, the tool of it, and the status."""
    last_tool: str
    good: str
    limited: str
    kills_agent: str
    more: tuple[str, ...] = ()
    """Options with which it waits for a server."""
    tasks: str = "tasks.jsonl"
    """The file of its scenario."""

    def runs(self, *commands: str) -> list[dict[str, Any]]:
        """A model that runs these, one a turn."""
        return [calls(self.tool, command=command) for command in commands]

    def says(self, *commands: str) -> list[dict[str, Any]]:
        """A model that runs these, one a turn, and submits."""
        return [*self.runs(*commands), self.last]

    def script(self) -> dict[str, Any]:
        return {
            **script_of(SCENARIOS / f"{self.name}-replies.jsonl"),
            "fine": self.says("ls", "cat roman/__init__.py"),
            "hangs": self.says("ls", f"sleep {NAP}", "pwd"),
            "dies": self.says("ls", f"sleep {NAP} & {self.kills_agent}"),
            "dies#2": self.says("ls"),
            "limited": self.says("ls", "pwd", "ls", "ls"),
            **dict.fromkeys(("long", "twice", "orphaned"), self.says("ls", f"sleep {NAP}")),
            "longer": self.says("ls", f"sleep {NAP} & sleep {NAP}"),
            "endless": self.says("ls", *(f"sleep {NAP}" for _ in range(100))),
            "stubborn": self.says("ls", f"bash -c \"trap '' INT; sleep {NAP}; sleep {NAP}\"", "pwd"),
            "written": [
                {"text": f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```"}
                for command in ("ls", "cd roman && cat __init__.py", SUBMIT)
            ],
            "confused": [calls("no_such_tool", x=1), *self.says("ls")],
            "talker": self.says("ls", "pwd", "ls", "pwd", "ls"),
            "boxed": self.runs("ls", f"touch {OUTSIDE} || echo refused", f"sleep {NAP} & sleep {NAP}", *MEND),
            "shipped": self.runs("ls", *MEND),
            "*": [{"text": "They looked around."}],  # what a condenser gets
        }


MINI = Kind(
    *("mini-swe", "bash", calls("bash", command=SUBMIT), "echo", "Submitted", "LimitsExceeded", "kill -9 $PPID"),
    more=("--tool-limit", "600"),
)
OPENHANDS = Kind(
    *("openhands", "terminal", calls("finish", message="Done."), "finish", "Finished", "MaxIterationsReached"),
    kills_agent="kill -9 $(tmux show -gv @openhands_socket_owner_pid)",  # its process's number is in its tmux server
    more=("-c", "llm.num_retries=200", "-c", "llm.retry_min_wait=1", "-c", "llm.retry_max_wait=1"),
    tasks="openhands-tasks.jsonl",
)
