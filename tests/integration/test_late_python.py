"""A machine so busy that Spark's Python process does not start within Spark's ten seconds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.kafka.brokers import Topics
from support.streams.job import Job

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PYTHON = """#!/bin/sh
case "$*" in
*driver_worker*) if mkdir "$LATE_ONCE" 2>/dev/null; then exec sleep 20; fi ;;
esac
exec "$REAL_PYTHON" "$@"
"""
"""A Python whose first process that is asked about the query's state hangs."""


def test_a_query_whose_python_is_late_starts_again(kafka: Topics, tmp_path: Path) -> None:
    """The process goes on; without a second start it would end with an error of Spark."""
    late, python = tmp_path / "late", tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "REAL_PYTHON": sys.executable,
        "LATE_ONCE": str(late),
    }
    with Job(kafka, tmp_path / "job", env=environment) as job:
        job.start()
        assert late.is_dir()
        assert "Spark's Python process did not start within 10 s" in job.tail()
