"""`muster.testing.cluster`: what its errors say; `test_testing_page.py` runs the real thing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster.testing import EnvironmentFailed
from muster.testing.cluster import Cluster


def test_a_wait_that_is_over_names_its_line() -> None:
    """The message has the place of the condition and the end of the job's log."""
    local: Any = SimpleNamespace(
        bootstrap_servers="", ended=lambda: None, tail=lambda name: f"  of {name}"
    )
    with pytest.raises(EnvironmentFailed) as failed:
        Cluster(local).wait_for(lambda: False, 0)
    assert "test_cluster.py:" in str(failed.value)
    assert "lambda" not in str(failed.value)
    assert str(failed.value).endswith("'s log ends with\n  of the Spark job")
