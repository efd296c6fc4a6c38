"""Settings shared by all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["support.brokers", "support.spark"]

settings.register_profile(
    "ci",
    deadline=None,  # machines are noisy: a slow example is not a wrong one
    derandomize=True,  # a red build must be red again
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("MUSTER_HYPOTHESIS", "ci"))
