"""What a server tells the plugin: ``--additional-config '{"continuum": {...}}'``, one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, TypeVar

from continuum_server import defaults
from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.policy.limits import LimitError, Range, check_fields
from continuum_server.policy.program_table import GuardError, Guards

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
    where = f"additional-config {SECTION}"
    values = _object(Settings, section, where)
    for name, kind in _OBJECTS.items():
        if name in values and (values[name] is not None or name not in _MAY_BE_NONE):
            values[name] = _read(kind, values[name], f"{where}.{name}", ", or none" if name in _MAY_BE_NONE else "")
    if not isinstance(values.get("policy_options", {}), Mapping):
        raise SettingsError(f"{where}.policy_options = {values['policy_options']!r}: must be an object")
    return _make(Settings, values, where, Range())


_OBJECTS = {"guards": Guards, "prefill": PrefillCurve, "decode": DecodeLine}
_MAY_BE_NONE = ("decode",)
_ANY = Range(-1e12, 1e12)
"""Of numbers from a fit, which may be negative."""

T = TypeVar("T")


def _read(kind: type[T], given: Any, where: str, or_none: str) -> T:
    """One of the settings' own objects, from its JSON object."""
    return _make(kind, _object(kind, given, where, or_none), where, _ANY)


def _object(kind: Any, given: Any, where: str, or_none: str = "") -> dict[str, Any]:
    """The members of a JSON object, all of them known."""
    if not isinstance(given, Mapping):
        raise SettingsError(f"{where} = {given!r}: must be an object{or_none}")
    known = [each.name for each in fields(kind)]
    for name in given:
        if name not in known:
            raise SettingsError(f"{where}.{name}: unknown; there are: {', '.join(known)}")
    missing = [each.name for each in fields(kind) if _is_required(each) and each.name not in given]
    if missing:
        raise SettingsError(f"{where}.{missing[0]}: missing")
    return dict(given)


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _make(kind: type[T], values: dict[str, Any], where: str, default: Range) -> T:
    """Checked by itself, as guards are, or here."""
    try:
        made = kind(**values)
        if kind is not Guards:
            check_fields(made, default)
    except (GuardError, LimitError) as error:
        raise SettingsError(f"{where}.{error}") from error
    return made
