"""Step times from a profile: a small file with times measured on one server (``continuum-bench profile``).

A profile contains two fits, each with its largest residual:

    prefill of n tokens:       a*n^2 + b*n + c          (c holds the request's own latency)
    decode step of B requests: base + per_request*B + per_context_token*sum(context)

A mixed step takes max(base + per_request*B, b*tokens) for the weights, plus the attention of chunks and of decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.run_dir import write_json

from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.step_times.json_file import read_file
from continuum_server.step_times.model import (
    OutOfRange,
    PrefillChunk,
    Provenance,
    StepTimes,
    StepTimesError,
    check_range,
)

SCHEMA = "continuum-profile"
VERSION = 1


class ProfileError(StepTimesError):
    """A profile cannot be read or fitted. The message names the file and the field."""


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Median seconds to the first token for one prompt length."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """Median seconds per step with a number of requests that decode at the same time."""

    requests: int
    context_tokens: int
    """Context of each request, on average over the measurement."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Seconds to prefill n tokens: ``a*n^2 + b*n + c``."""

    a: float
    b: float
    c: float
    worst_relative_residual: float = 0.0
    """Largest relative distance between a measured point and the curve."""


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """Seconds of a decode step: ``base + per_request * requests + per_context_token * (sum of their contexts)``."""

    base: float
    per_request: float
    per_context_token: float
    worst_relative_residual: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The content of a profile file. Only ``prefill`` is required."""

    source: str = ""
    """Where the times come from: a table, or a description of the measured server. Default: the path of the file."""
    model: str = "unknown"
    created: str = ""
    prefill_points: tuple[PrefillPoint, ...] = ()
    decode_points: tuple[DecodePoint, ...] = ()
    prefill: PrefillFit
    decode: DecodeFit | None = None
    """None: decoding was not measured."""
    kv_tokens: int | None = None
    block_size: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def prefill_curve(self) -> PrefillCurve:
        return PrefillCurve(self.prefill.a, self.prefill.b, self.prefill.c, self.source)

    @property
    def decode_line(self) -> DecodeLine | None:
        """The line for a batch of eight requests; None: decoding was not measured."""
        if self.decode is None:
            return None
        return DecodeLine(self.decode.base + 8 * self.decode.per_request, self.decode.per_context_token)


def make_profile(
    source: str,
    model: str,
    created: str,
    prefill: Sequence[PrefillPoint],
    decode: Sequence[DecodePoint] = (),
    **facts: Any,
) -> Profile:
    """Fit the measured points.

    Raises:
        ProfileError: there are fewer than three prompt lengths, or one or two decode points.
    """
    prompts = [[point.tokens**2, point.tokens, 1.0] for point in prefill]
    steps = [[1.0, point.requests, point.requests * point.context_tokens] for point in decode]
    return Profile(
        source=source,
        model=model,
        created=created,
        prefill_points=tuple(prefill),
        decode_points=tuple(decode),
        prefill=PrefillFit(*_fit("prompt lengths", prompts, [point.seconds for point in prefill])),
        decode=DecodeFit(*_fit("decode points", steps, [point.seconds for point in decode])) if decode else None,
        **facts,
    )


def _fit(what: str, columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return nonnegative coefficients that minimise the squares of relative errors, and the largest relative error.

    With relative errors, short prompts count as much as long ones.
    """
    if len(seconds) < 3:
        raise ProfileError(f"{len(seconds)} {what} measured: at least 3 are needed")
    from scipy.optimize import nnls  # noqa: PLC0415 - takes a while to import, and reading a profile needs none of it

    matrix, wanted = np.asarray(columns, float), np.asarray(seconds, float)
    scale = matrix.max(axis=0)
    coefficients, _ = nnls(matrix / scale / wanted[:, None], np.ones(len(wanted)))
    coefficients = coefficients / scale
    worst = float(np.max(np.abs(matrix @ coefficients / wanted - 1.0)))
    return [*map(float, coefficients), worst]


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile as JSON.

    Raises:
        RunDirError: the file cannot be written.
    """
    write_json(path, {"schema": SCHEMA, "version": VERSION, **asdict(profile)}, indent=1)


def read_profile(path: Path) -> Profile:
    """Read a profile.

    Raises:
        ProfileError: the file cannot be read, or is not a profile. The message names the file and the field.
    """
    profile = read_file(path, Profile, ProfileError)
    return profile if profile.source else replace(profile, source=str(path))


class ProfileStepTimes(StepTimes):
    """``StepTimes`` of a profiled server. Steps beyond the measured range are refused.

    Raises:
        ProfileError: the profile has no decode measurements.
    """

    def __init__(self, profile: Profile) -> None:
        if profile.decode is None:
            raise ProfileError(f"profile of {profile.source}: decoding was not measured; profile a live server")
        self._pair_s, self._token_s = 2.0 * profile.prefill.a, profile.prefill.b
        self._base_s, self._request_s = profile.decode.base, profile.decode.per_request
        self._context_s = profile.decode.per_context_token
        self._longest = max(point.tokens for point in profile.prefill_points)
        self._widest = max(point.requests for point in profile.decode_points)
        worst = max(profile.prefill.worst_relative_residual, profile.decode.worst_relative_residual)
        self.provenance = Provenance(
            kind="profile",
            source=profile.source,
            version=profile.created,
            licence="measured by the user",
            gpu="profiled",
            model=profile.model,
            tensor_parallel=1,
            step_overhead_ms=0.0,
            notes=f"fits of measured points, worst {worst:.0%} off; prompts to {self._longest} tokens, "
            f"{self._widest} requests decoding",
        )

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        tokens, pairs = decodes, 0.0
        for chunk in chunks:
            check_range("prefix + chunk tokens", chunk.prefix_tokens + chunk.tokens, 1, self._longest)
            tokens += chunk.tokens
            pairs += chunk.tokens * (chunk.prefix_tokens + chunk.tokens / 2)
        if decodes > self._widest:
            raise OutOfRange(f"decoding requests = {decodes}: the profile was measured up to {self._widest}")
        weights_s = max(self._base_s + self._request_s * decodes, self._token_s * tokens)
        return weights_s + self._pair_s * pairs + self._context_s * decode_context_tokens
