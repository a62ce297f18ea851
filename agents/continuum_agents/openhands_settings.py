"""Read the configuration of OpenHands: files and KEY=VALUE pairs, merged in order, then the options of the harness."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from openhands.sdk import LLM
from openhands.sdk.context.condenser import LLMSummarizingCondenser

from continuum_agents.protocol import Start

INSTRUCTION = """\
There is a code repository in {workspace}. This is reported about it:

<report>
{problem_statement}
</report>

Change the code in that folder so that the report no longer holds. Look at the code first, reproduce the fault where you
can, mend it with as small a change as will do, and run the tests that concern it. Leave existing tests as they are.
Work alone: nobody answers questions. When you are done, call finish.
"""

LLM_OURS = frozenset(("model", "base_url", "api_key", "api_mode", "usage_id", "stream"))
"""Fields of OpenHands' LLM that the harness sets."""
TERMINAL_OPTIONS = frozenset(("terminal_type", "no_change_timeout_seconds", "shell_path", "env", "username"))
CONVERSATION_OPTIONS = frozenset(("max_iteration_per_run", "stuck_detection", "stuck_detection_thresholds"))
CONDENSER_OPTIONS = frozenset(LLMSummarizingCondenser.model_fields) - {"llm"}
MAX_ITERATIONS = 500
"""OpenHands' own default."""


@dataclass(frozen=True, slots=True)
class OpenHandsSettings:
    """Arguments for the constructors of OpenHands' parts."""

    llm: dict[str, Any]
    terminal: dict[str, Any]
    conversation: dict[str, Any]
    condenser: dict[str, Any]
    instruction: str

    def message(self, start: Start) -> str:
        """Return the first message to the agent: the instruction with the task in it."""
        text = self.instruction.replace("{workspace}", start.workspace)
        return text.replace("{problem_statement}", start.task)


def settings_of(start: Start) -> OpenHandsSettings:
    """Read and check the configuration.

    Raises:
        ValueError: a field does not exist. The message lists the fields that exist.
        OSError: a file cannot be read.
    """
    config: dict[str, Any] = {}
    for spec in start.config:
        _merge(config, _read(spec))
    parts_of = {
        "llm": frozenset(LLM.model_fields) - LLM_OURS,
        "terminal": TERMINAL_OPTIONS,
        "conversation": CONVERSATION_OPTIONS,
        "condenser": CONDENSER_OPTIONS,
    }
    parts = {name: _part(config.pop(name, {}), name, options) for name, options in parts_of.items()}
    instruction = config.pop("instruction", INSTRUCTION)
    if config:
        raise ValueError(f"configuration {next(iter(config))!r}: there are {', '.join(parts_of)}, instruction")
    parts["llm"] = _llm(start, parts["llm"])
    parts["conversation"] = {"max_iteration_per_run": MAX_ITERATIONS, **parts["conversation"]}
    if start.step_limit is not None:
        parts["conversation"]["max_iteration_per_run"] = start.step_limit
    return OpenHandsSettings(**parts, instruction=str(instruction))


def _llm(start: Start, configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of OpenHands' LLM.

    OpenHands sends a reasoning effort to every model. Some servers refuse it, so no effort is sent by default. The
    price is set to 0, because OpenHands warns about unknown prices.
    """
    return {
        **{"reasoning_effort": None, "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
        **configured,
        "model": f"openai/{start.model}",
        "base_url": start.base_url,
        "api_key": os.environ.get("OPENAI_API_KEY") or "EMPTY",
        "api_mode": "chat",
        "usage_id": "agent",
    }


def _part(values: Any, name: str, options: frozenset[str]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"configuration {name}: expected fields, not {values!r}")
    unknown = sorted(set(values) - options)
    if unknown:
        raise ValueError(f"configuration {name}.{unknown[0]}: there are {', '.join(sorted(options))}")
    return dict(values)


def _read(spec: str) -> dict[str, Any]:
    """Read a YAML or JSON file, or a pair such as ``llm.temperature=0``."""
    key, is_pair, value = spec.partition("=")
    read: Any = yaml.safe_load(value if is_pair else Path(spec).read_text(encoding="utf-8"))
    for part in reversed(key.split(".") if is_pair else []):
        read = {part: read}
    if not isinstance(read, dict):
        raise ValueError(f"{spec}: expected an object")
    return read


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value
