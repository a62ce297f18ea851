"""The plugin's settings: the JSON object ``--additional-config '{"continuum": {...}}'`` on vLLM's command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from continuum_traces.typed import FieldError, from_json

from continuum_server import defaults
from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.policy.limits import check_fields
from continuum_server.policy.program_table import Guards

SECTION = "continuum"


class SettingsError(ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


@dataclass(frozen=True, slots=True)
class Settings:
    policy: str = defaults.POLICY
    policy_options: dict[str, Any] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    prefill: PrefillCurve = field(default_factory=lambda: PrefillCurve(0.0, 0.0, 0.0, "none given"))
    swap_token_s: float | None = None
    """Seconds to load one token's KV from DRAM to the GPU, until a load is measured; None: see ``Loads``."""
    deep_token_s: float = 0.0
    """Seconds to load one token's KV from the SSD to DRAM."""
    decode: DecodeLine | None = None
    """Seconds of a decode step by the tokens in its batch; None: unknown."""
    record_path: str | None = None
    """Folder for scheduler_timestamps.jsonl; None: the environment variable ``RUN_OUTPUT_DIR``, or else no record."""
    statistics_path: str | None = None
    """File of tool statistics, which is read at start if it exists, and written every 30 s and at shutdown."""
    tool_parser: str | None = None
    """vLLM's tool-call parser (``--tool-call-parser``), which is tried before those in ``tool_calls``."""
    recognise: defaults.Recognise = defaults.RECOGNISE
    """How conversations without our tags are recognised. ``ids``: by the ids that agents send
    (``continuum_server.foreign_ids``). ``ids,prompts``: where there is no id, by prompts that continue earlier ones."""

    session_headers: tuple[str, ...] = ()
    """Headers that name a request's conversation, beside those in ``continuum_server.foreign_ids``."""

    def __post_init__(self) -> None:
        check_fields(self)

    def to_config(self) -> dict[str, Any]:
        """Return the settings as a section of vLLM's ``additional_config``."""
        return {SECTION: asdict(self)}


def read_settings(additional_config: Any) -> Settings:
    """Read the settings from ``vllm_config.additional_config``. Missing settings keep their defaults.

    Raises:
        SettingsError: a setting that is unknown, of the wrong type or out of range.
    """
    return read_section(additional_config, SECTION, Settings, SettingsError)


T = TypeVar("T")


def read_section(additional_config: Any, section: str, kind: type[T], refused: type[ValueError]) -> T:
    """Read a section of ``additional_config`` as a dataclass.

    Raises:
        ValueError: a setting is not allowed. The error is of type ``refused``, and its message has the setting's name.
    """
    values = additional_config.get(section, {}) if isinstance(additional_config, Mapping) else {}
    try:
        return from_json(kind, values)
    except FieldError as error:
        raise refused(f"additional-config {section}: {error}") from error
