"""Step times from a profile: a small file with times measured on one server (``continuum-bench profile``).

A profile contains fits, each with its largest residual:

    prefill of n tokens:       a*n^2 + b*n + c          (c holds the request's own latency)
    decode step of B requests: base + per_request*B + per_context_token*sum(context)
    a request besides steps:   each + per_prompt_token*n

A mixed step takes max(base + per_request*B, b*tokens) for the weights, plus the attention of chunks and of decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.json_io import write_json

from continuum_server.policy.facts import DecodeLine, PrefillCurve
from continuum_server.step_times.json_file import read_file
from continuum_server.step_times.model import (
    PrefillChunk,
    Provenance,
    StepTimes,
    StepTimesError,
    check_range,
)

SCHEMA = "continuum-profile"
VERSION = 1
LEAST_POINTS = 3
"""Of a fit."""
LEAST_S = 1e-5
"""Least seconds of a request besides its steps. A smaller difference between two measured times is noise."""


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
class RequestPoint:
    """Median seconds to the first token of a prompt that is in the prefix cache."""

    tokens: int
    cached_tokens: int
    """How many of them were in the cache, as the server says."""
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


@dataclass(frozen=True, slots=True)
class RequestFit:
    """Seconds of a request besides its steps (HTTP, tokenizer, scheduling): ``each + per_prompt_token * n``."""

    each: float
    per_prompt_token: float
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
    request_points: tuple[RequestPoint, ...] = ()
    prefill: PrefillFit
    decode: DecodeFit | None = None
    """None: decoding was not measured."""
    request: RequestFit | None = None
    """None: not measured; requests then cost nothing besides their steps."""
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
    request: Sequence[RequestPoint] = (),
    **facts: Any,
) -> Profile:
    """Fit the measured points. ``request`` needs three points, and points of decodes.

    Raises:
        ProfileError: there are fewer than three prompt lengths, or one or two decode points.
    """
    prompts = [[point.tokens**2, point.tokens, 1.0] for point in prefill]
    steps = [[1.0, point.requests, point.requests * point.context_tokens] for point in decode]
    profile = Profile(
        source=source,
        model=model,
        created=created,
        prefill_points=tuple(prefill),
        decode_points=tuple(decode),
        prefill=PrefillFit(*_fit("prompt lengths", prompts, [point.seconds for point in prefill])),
        decode=DecodeFit(*_fit("decode points", steps, [point.seconds for point in decode])) if decode else None,
        **facts,
    )
    if len(request) < LEAST_POINTS or not decode:
        return profile
    return replace(profile, request_points=tuple(request), request=_besides(ProfileStepTimes(profile), request))


def _besides(times: StepTimes, points: Sequence[RequestPoint]) -> RequestFit:
    """Fit what the first tokens of cached prompts take longer than the step that computes the rest of the prompt."""
    steps_s = [times.prefill_s(point.tokens - point.cached_tokens, point.cached_tokens) for point in points]
    rest_s = [max(point.seconds - step_s, LEAST_S) for point, step_s in zip(points, steps_s, strict=True)]
    return RequestFit(*_fit("cached prompts", [[1.0, point.tokens] for point in points], rest_s))


def _fit(what: str, columns: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return nonnegative coefficients that minimise the squares of relative errors, and the largest relative error.

    With relative errors, short prompts count as much as long ones.
    """
    if len(seconds) < LEAST_POINTS:
        raise ProfileError(f"{len(seconds)} {what} measured: at least {LEAST_POINTS} are needed")
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
    """``StepTimes`` of a profiled server. Longer prompts than the profile's are refused. Steps with more decoding
    requests are extrapolated, which ``notes`` says.

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
        self._widest = self._most_decodes = max(point.requests for point in profile.decode_points)
        self._request = profile.request or RequestFit(0.0, 0.0)
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
            f"{self._widest} requests decoding; {self._request_text()}",
        )

    def _request_text(self) -> str:
        each, token = self._request.each, self._request.per_prompt_token
        if each == token == 0.0:
            return "a request costs nothing besides its steps"
        return f"a request costs {each * 1e3:.1f} ms and {token * 1e6:.2f} us a prompt token besides its steps"

    def request_s(self, prompt_tokens: int) -> float:
        return self._request.each + self._request.per_prompt_token * prompt_tokens

    def notes(self) -> tuple[str, ...]:
        if self._most_decodes == self._widest:
            return ()
        most = f"up to {self._most_decodes} requests decoded at a time; the profile was measured up to {self._widest}"
        return (f"{most}, and steps with more are extrapolated",)

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        tokens, pairs = decodes, 0.0
        for chunk in chunks:
            check_range("prefix + chunk tokens", chunk.prefix_tokens + chunk.tokens, 1, self._longest)
            tokens += chunk.tokens
            pairs += chunk.tokens * (chunk.prefix_tokens + chunk.tokens / 2)
        self._most_decodes = max(self._most_decodes, decodes)
        weights_s = max(self._base_s + self._request_s * decodes, self._token_s * tokens)
        return weights_s + self._pair_s * pairs + self._context_s * decode_context_tokens
