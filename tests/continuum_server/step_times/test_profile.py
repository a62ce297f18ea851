"""Profiles: fits that find what made the points, files that are read back, step times that stay in range."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_server.step_times.model import OutOfRange, PrefillChunk
from continuum_server.step_times.profile import (
    DecodePoint,
    PrefillPoint,
    Profile,
    ProfileError,
    ProfileStepTimes,
    RequestPoint,
    make_profile,
    read_profile,
    write_profile,
)
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = [(b, c) for b in (1, 4, 16, 64) for c in (512, 4096)]


def profile_of(a: float, b: float, c: float, base: float, request: float, context: float) -> Profile:
    prefill = [PrefillPoint(n, a * n * n + b * n + c) for n in LENGTHS]
    decode = [DecodePoint(r, k, base + request * r + context * r * k) for r, k in BATCHES]
    return make_profile("made up", "model", "now", prefill, decode, kv_tokens=100_000, block_size=16)


@given(
    st.floats(1e-10, 1e-8), st.floats(1e-5, 1e-3), st.floats(0, 0.1), st.floats(1e-3, 0.1), st.floats(0, 1e-4),
    st.floats(0, 1e-7),
)  # fmt: skip
def test_a_fit_finds_what_made_the_points(
    a: float, b: float, c: float, base: float, request: float, context: float
) -> None:
    profile = profile_of(a, b, c, base, request, context)
    assert profile.prefill.worst_relative_residual < 1e-3
    assert profile.decode is not None
    assert profile.decode.worst_relative_residual < 1e-3
    assert profile.prefill_curve.seconds(10_000) == pytest.approx(a * 1e8 + b * 1e4 + c, rel=1e-2)


def test_step_times_of_a_profile() -> None:
    times = ProfileStepTimes(profile_of(1e-9, 5e-5, 0.01, 0.008, 1e-5, 1e-8))
    decode_s, alone_s = times.step_s((), 4, 4000), times.prefill_s(2048, 4096)
    assert decode_s == pytest.approx(0.008 + 4e-5 + 4e-5, rel=1e-2)
    assert alone_s == pytest.approx(2048 * 5e-5 + 2e-9 * 2048 * (4096 + 1024), rel=1e-2)
    assert alone_s < times.step_s([PrefillChunk(2048, 4096)], 4, 4000) < alone_s + decode_s
    assert times.decode_stretch_s(4, 4000, 3) == [times.step_s((), 4, 4000 + 4 * k) for k in range(3)]
    with pytest.raises(OutOfRange, match="prefix"):
        times.prefill_s(2048, 32768)
    assert times.notes() == ()
    at_64, at_65 = (times.step_s((), requests, 64_000) for requests in (64, 65))
    assert at_65 - at_64 == pytest.approx(1e-5)
    (note,) = times.notes()
    assert note.startswith("up to 65 requests decoded at a time; the profile was measured up to 64")


def test_what_a_request_costs_besides_its_steps() -> None:
    """Cached prompts of which one block of 16 tokens is computed again: 20 ms and 2 us a token beside that step."""
    plain = profile_of(1e-9, 5e-5, 0.01, 0.008, 1e-5, 1e-8)
    times = ProfileStepTimes(plain)
    points = [RequestPoint(n, n - 16, times.prefill_s(16, n - 16) + 0.02 + 2e-6 * n) for n in (128, 1024, 8192)]
    fields = plain.prefill_points, plain.decode_points
    profile = make_profile("s", "m", "now", *fields, points)
    assert profile.request is not None
    assert (profile.request.each, profile.request.per_prompt_token) == pytest.approx((0.02, 2e-6))
    assert ProfileStepTimes(profile).request_s(1000) == pytest.approx(0.022)
    assert "a request costs 20.0 ms and 2.00 us a prompt token" in ProfileStepTimes(profile).provenance.notes
    assert make_profile("s", "m", "now", *fields, points[:2]).request is None  # two points are no fit
    at_once = [RequestPoint(n, n - 16, 1e-6) for n in (128, 1024, 8192)]  # faster than the step: noise
    (cheap,) = {make_profile("s", "m", "now", *fields, at_once).request}
    assert cheap is not None
    assert 0 <= cheap.each <= 1e-5


def test_a_profile_is_read_back_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    profile, path = profile_of(1e-9, 5e-5, 0.01, 0.008, 1e-5, 1e-8), tmp_path / "p.json"
    write_profile(path, profile)
    assert read_profile(path) == profile
    for text, message in (
        ("{", "not JSON"),
        ("[]", "Expected `object`, got `array`"),
        ('{"prefill": {"a": 1, "b": 2}}', "missing required field `c`"),
        ('{"prefill": {"a": 1, "b": 2, "c": "x"}}', "Expected `float`, got `str` - at"),
    ):
        path.write_text(text)
        with pytest.raises(ProfileError, match=rf"p.json: .*{message}"):
            read_profile(path)
    with pytest.raises(ProfileError, match="at least 3"):
        make_profile("s", "m", "now", [PrefillPoint(1, 1.0)])
    curve_only = make_profile("s", "m", "now", [PrefillPoint(n, float(n)) for n in LENGTHS])
    with pytest.raises(ProfileError, match="decoding was not measured"):
        ProfileStepTimes(curve_only)
