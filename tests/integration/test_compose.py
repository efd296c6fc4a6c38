"""The compose file, end to end, on a real container engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from support.containers import ROOT, compose

from muster.broker.kafka import free_port

PATIENCE_S = 300


@pytest.fixture
def fleet() -> Iterator[dict[str, str]]:
    """The compose file, up on free ports; everything of it is gone afterwards."""
    kafka = free_port()
    metrics = free_port(besides=kafka)
    env = {**os.environ, "KAFKA_PORT": str(kafka), "MUSTER_METRICS_PORT": str(metrics)}
    base = [*compose(), "-p", f"muster-test-{os.getpid()}", "-f", str(ROOT / "docker/compose.yaml")]
    try:
        subprocess.run([*base, "up", "-d", "--build"], env=env, check=True, timeout=1500)
        yield env
    finally:
        subprocess.run([*base, "logs", "--tail", "30"], env=env, check=False, timeout=60)
        subprocess.run([*base, "down", "-v"], env=env, check=False, timeout=120)


@pytest.mark.container
@pytest.mark.timeout(2000)
def test_compose_starts_a_fleet_that_shares_its_tasks(fleet: dict[str, str]) -> None:
    """One command: three workers share twelve tasks, and the coordinator says it is healthy."""
    ask = [sys.executable, "-m", "muster.cli.main", "groups", "describe", "--group", "demo"]
    ask += ["--bootstrap-server", f"127.0.0.1:{fleet['KAFKA_PORT']}", "--format", "json"]
    shares: list[int] = []
    end = time.monotonic() + PATIENCE_S
    while shares != [4, 4, 4]:
        assert time.monotonic() < end, f"the tasks are shared as {shares}"
        out = subprocess.run(ask, capture_output=True, text=True, check=False)
        group = json.loads(out.stdout) if out.returncode == 0 else {"members": [], "state": ""}
        members = group["members"] if group["state"] == "Stable" else []
        shares = sorted(len(member["active"]) for member in members)
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet['MUSTER_METRICS_PORT']}/readyz") as ready:
        assert ready.status == 200
