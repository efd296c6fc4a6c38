"""Settings shared by all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["support.brokers", "support.leftovers", "support.spark"]

settings.register_profile(
    "ci",
    deadline=None,  # machines are noisy: a slow example is not a wrong one
    derandomize=True,  # a red build must be red again
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", parent=settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("MUSTER_HYPOTHESIS", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores Ctrl-C, and so would everything the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
