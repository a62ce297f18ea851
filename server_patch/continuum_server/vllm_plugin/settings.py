"""The plugin's settings: ``--additional-config '{"continuum": {...}}'`` of vLLM's command line, one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

from continuum_server import defaults
from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.policy.limits import Range, check_fields, hints_of
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
    """Seconds to load one token's KV from the offload tier to the GPU; None: there is no tier."""
    deep_token_s: float = 0.0
    """Seconds to load it from the tier below (SSD) to that tier (DRAM) first."""
    decode: DecodeLine | None = None
    """Seconds of a decode step by the tokens in its batch; None: not known."""
    record_path: str | None = None
    """Folder for scheduler_timestamps.jsonl; None: the environment's ``RUN_OUTPUT_DIR``; without that, no record."""
    statistics_path: str | None = None
    """File of tool statistics: read at start if it exists, written every 30 s and at shutdown."""
    tool_parser: str | None = None
    """vLLM's tool-call parser (``--tool-call-parser``), which is asked before our own reader of the text."""

    def to_config(self) -> dict[str, Any]:
        """The form in which vLLM carries the settings to all its processes."""
        return {SECTION: asdict(self)}


def read_settings(additional_config: Any) -> Settings:
    """Settings from ``vllm_config.additional_config``; those that are absent keep their defaults.

    Raises:
        SettingsError: a setting that is unknown, of the wrong type or out of range.
    """
    return read_section(additional_config, SECTION, Settings, SettingsError)


T = TypeVar("T")


def read_section(additional_config: Any, section: str, kind: type[T], refused: type[ValueError]) -> T:
    """One part of ``additional_config`` as a dataclass.

    Raises:
        ValueError: of type ``refused``: the setting's name, what was given and what is allowed.
    """
    given = additional_config.get(section, {}) if isinstance(additional_config, Mapping) else {}
    try:
        made: T = _read(kind, given, section, Range())
        return made
    except ValueError as error:
        raise refused(f"additional-config {error}") from error


_ANY = Range(-1e12, 1e12)
"""Numbers inside the settings' own objects come from fits, and may be negative."""


def _read(kind: Any, given: Any, where: str, default: Range, or_none: str = "") -> Any:
    """A dataclass from a JSON object, and the dataclasses in it from the objects in that."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} = {given!r}: must be an object{or_none}")
    if kind is dict:
        return given
    hints = hints_of(kind)
    for name in given:
        if name not in hints:
            raise ValueError(f"{where}.{name}: unknown; there are: {', '.join(hints)}")
    for each in fields(kind):
        if each.default is each.default_factory is MISSING and each.name not in given:
            raise ValueError(f"{where}.{each.name}: missing")
    values = {name: _member(hints[name], value, f"{where}.{name}") for name, value in given.items()}
    try:
        made = kind(**values)
        if not hasattr(kind, "__post_init__"):  # such a class checks itself
            check_fields(made, default)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from error
    return made


def _member(hint: Any, value: Any, where: str) -> Any:
    """The value; where its type is a dataclass or a dictionary, or such a type or None, it is read as an object."""
    kinds = [get_origin(each) or each for each in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
    kind = next((each for each in kinds if each is dict or is_dataclass(each)), None)
    if kind is None or (value is None and NoneType in kinds):
        return value
    return _read(kind, value, where, _ANY, ", or none" if NoneType in kinds else "")
