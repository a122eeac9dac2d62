"""Profiles and fixtures that every tier shares."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from pulsecast import kernels
from pulsecast.errors import BackendUnavailableError

# Shared machines stall: no deadline. CI must not fail on luck: the same examples every time.
settings.register_profile(
    "local", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def _need_native() -> None:
    """Skip where the core was not built; fail where it has to be (`scripts/test`)."""
    try:
        with kernels.use("native"):
            return
    except BackendUnavailableError as error:
        if os.environ.get("PULSECAST_REQUIRE_NATIVE") == "1":
            pytest.fail(f"the native core is not there: {error}")
        pytest.skip(f"the native core is not there: {error}")


@pytest.fixture(params=["reference", "native"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on both backends."""
    if request.param == "native":
        _need_native()
    with kernels.use(request.param):
        yield request.param


@pytest.fixture
def both() -> tuple[kernels.Kernels, kernels.Kernels]:
    """The kernels of both backends: reference, native."""
    _need_native()
    with kernels.use("reference"):
        reference = kernels.backend()
    with kernels.use("native"):
        return reference, kernels.backend()
