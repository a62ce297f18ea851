"""What a server tells the plugin: ``--additional-config '{"continuum": {...}}'``, one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from continuum_server.policy.core import GuardError, Guards
from continuum_server.policy.facts import DecodeLine, PrefillCurve

SECTION = "continuum"


class SettingsError(ValueError):
    """A setting that is unknown, of the wrong type or out of range."""


@dataclass(frozen=True, slots=True)
class Settings:
    policy: str = "working-set"
    policy_options: dict[str, Any] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    prefill: PrefillCurve = field(default_factory=lambda: PrefillCurve(0.0, 0.0, 0.0, "none given"))
    swap_token_s: float | None = None
    """Seconds to bring one token's KV from the offload tier to the GPU; None: no tier."""
    deep_token_s: float = 0.0
    """Seconds to bring it from a tier below that one (SSD below DRAM) up to it first."""
    tier_tokens: int = 0
    """Tokens that all tiers below GPU memory hold together."""
    decode: DecodeLine | None = None
    """Seconds of a decode step; None: not known."""
    record_path: str | None = None
    """Folder for scheduler_timestamps.jsonl; None: ``RUN_OUTPUT_DIR``'s value, or not recorded."""
    statistics_path: str | None = None
    """File of tool statistics: read at start where it exists, written every 30 s and at shutdown."""
    tool_parser: str | None = None
    """vLLM's own tool-call parser (``--tool-call-parser``), asked before the text is read."""

    def to_config(self) -> dict[str, Any]:
        """The form vLLM's ``additional_config`` carries to every process."""
        return {SECTION: asdict(self)}


def read_settings(additional_config: Any) -> Settings:
    """Settings from ``vllm_config.additional_config``; absent ones keep their defaults.

    Raises:
        SettingsError: a setting that is unknown, of the wrong type or out of range.
    """
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else {}
    values = dict(section)
    unknown = sorted(set(values) - {f.name for f in fields(Settings)})
    if unknown:
        known = ", ".join(f.name for f in fields(Settings))
        raise SettingsError(f"additional-config continuum.{unknown[0]}: unknown; there are: {known}")
    try:
        if "guards" in values:
            values["guards"] = _read_guards(values["guards"])
        if "prefill" in values:
            values["prefill"] = PrefillCurve(**values["prefill"])
        if values.get("decode") is not None:
            values["decode"] = DecodeLine(**values["decode"])
    except TypeError as error:
        raise SettingsError(f"additional-config continuum: {error}") from error
    return Settings(**values)


def _read_guards(given: Any) -> Guards:
    """Guards from their JSON object."""
    where = f"additional-config {SECTION}.guards"
    if not isinstance(given, Mapping):
        raise SettingsError(f"{where} = {given!r}: must be an object")
    known = [f.name for f in fields(Guards)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise SettingsError(f"{where}.{unknown[0]}: unknown; there are: {', '.join(known)}")
    try:
        return Guards(**given)
    except GuardError as error:
        raise SettingsError(f"{where}.{error}") from error
