"""The compose file on a real container engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.suite.containers import ROOT, compose
from support.suite.waiting import until

from muster.broker.embedded_kafka import free_port

pytestmark = [pytest.mark.container, pytest.mark.timeout(1500)]

FILE = ROOT / "docker" / "compose.yaml"
PATIENCE_S = 300
UP_S = 1200
PROMETHEUS = "prom/prometheus:v3.5.0"
STAND_IN = f"muster-test-prometheus:{os.getpid()}"
OURS = ("coordinator", "worker-1", "worker-2", "worker-3")


class Fleet:
    """The compose file under its own project name, on free ports."""

    def __init__(self, command: list[str]) -> None:
        self.kafka = free_port()
        self.metrics = free_port(besides=self.kafka)
        self.prometheus = free_port()
        self.standby = free_port()
        self._env = {
            **os.environ,
            "KAFKA_PORT": str(self.kafka),
            "MUSTER_METRICS_PORT": str(self.metrics),
            "PROMETHEUS_PORT": str(self.prometheus),
            "MUSTER_STANDBY_PORT": str(self.standby),
        }
        self._base = [*command, "-p", f"muster-test-{os.getpid()}", "-f", str(FILE)]

    def compose(self, *words: str, timeout_s: float = 120, check: bool = True, **names: str) -> str:
        """Run a compose command with more environment variables; return what it prints."""
        done = subprocess.run(
            [*self._base, *words],
            env={**self._env, **names},
            check=check,
            timeout=timeout_s,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def inside(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        container = self.compose("ps", "-q", service).strip()
        line = ["docker", "exec", container, *command]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)

    def health(self, service: str) -> str:
        """The container's health, according to the engine."""
        container = self.compose("ps", "-q", service).strip()
        line = ["docker", "inspect", "--format", "{{.State.Health.Status}}", container]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    def muster(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line from outside the containers."""
        at = ["--bootstrap-server", f"127.0.0.1:{self.kafka}", "--format", "json"]
        line = [sys.executable, "-m", "muster.cli.main", *words, *at]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)

    def shares(self) -> list[int]:
        """Number of tasks of each member; empty unless the group is stable."""
        out = self.muster("groups", "describe", "--group", "demo")
        group = json.loads(out.stdout) if out.returncode == 0 else {"members": [], "state": ""}
        members = group["members"] if group["state"] == "Stable" else []
        return sorted(len(member["active"]) for member in members)

    def await_shares(self, *wanted: int) -> None:
        """Wait until the members have these numbers of tasks."""
        until(
            lambda: self.shares() == [*wanted],
            f"the members have {wanted} tasks",
            timeout_s=PATIENCE_S,
            pause_s=1,
            story=self.story,
        )

    def story(self) -> str:
        """The last lines of all containers."""
        return self.compose("logs", "--tail", "40", check=False)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """The compose file, up; all of it is removed afterwards."""
    fleet = Fleet(compose())
    try:
        fleet.compose("up", "-d", "--build", timeout_s=UP_S)
        fleet.await_shares(4, 4, 4)
        yield fleet
    finally:
        fleet.compose("down", "-v", check=False)


def test_compose_starts_a_fleet_that_shares_its_tasks(fleet: Fleet) -> None:
    """Three workers share twelve tasks, and the coordinator is ready and healthy."""
    assert fleet.shares() == [4, 4, 4]
    with urllib.request.urlopen(f"http://127.0.0.1:{fleet.metrics}/readyz") as ready:
        assert ready.status == 200
    until(lambda: fleet.health("coordinator") == "healthy", "the engine calls it healthy")


def test_the_doctor_finds_nothing_wrong(fleet: Fleet) -> None:
    """The doctor, from outside, makes every check and finds no failure."""
    checks = {"kafka", "topic", "rights", "claim", "signs", "job", "clock", "group"}
    checks |= {"rejected", "canary"}
    run = partial(fleet.muster, "doctor", "--metrics", f"http://127.0.0.1:{fleet.metrics}")
    findings: list[dict[str, str]] = []

    def all_made() -> bool:
        """Whether every check is made: the canary's has to wait for its first answer."""
        findings[:] = [json.loads(line) for line in run().stdout.splitlines()]
        return {each["check"] for each in findings} == checks

    until(all_made, "the doctor makes every check", pause_s=1, story=lambda: findings)
    assert [each for each in findings if each["level"] == "fail"] == []
    assert run().returncode == 0


@pytest.mark.parametrize("service", OURS)
def test_no_container_of_ours_may_do_much(fleet: Fleet, service: str) -> None:
    """Containers do not run as root, have no capabilities and a read-only root file system."""
    assert fleet.inside(service, "id", "-u").stdout.strip() == "10001"
    assert "Read-only file system" in fleet.inside(service, "touch", "/opt/x").stderr
    status = fleet.inside(service, "cat", "/proc/self/status").stdout
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    assert int(effective.split()[1], 16) == 0


def test_a_worker_that_stops_is_missed(fleet: Fleet) -> None:
    """A stopped worker's tasks go to the two others; started again, it gets its share."""
    fleet.compose("stop", "worker-3")
    fleet.await_shares(6, 6)
    fleet.compose("start", "worker-3")
    fleet.await_shares(4, 4, 4)


def test_down_and_up_again(fleet: Fleet) -> None:
    """After `down -v` and `up` the fleet starts from nothing and shares its tasks."""
    fleet.compose("down", "-v")
    fleet.compose("up", "-d", timeout_s=UP_S)
    fleet.await_shares(4, 4, 4)


def test_the_standby_of_the_profile_takes_over(fleet: Fleet) -> None:
    """A killed coordinator is replaced by the standby; started again, it stands by itself."""

    def role_at(port: int) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as page:
                return page.read().decode().strip()
        except OSError as error:
            return str(error)

    def await_role(port: int, role: str) -> None:
        until(
            lambda: role_at(port) == role,
            f"{role} at port {port}",
            timeout_s=PATIENCE_S,
            pause_s=0.5,
            story=fleet.story,
        )

    fleet.compose("--profile", "standby", "up", "-d", "standby", timeout_s=UP_S)
    try:
        await_role(fleet.standby, "standby")
        fleet.compose("kill", "coordinator")
        fleet.compose("stop", "worker-3")
        fleet.await_shares(6, 6)
        await_role(fleet.standby, "ready")
        fleet.compose("start", "coordinator", "worker-3")
        await_role(fleet.metrics, "standby")
        fleet.await_shares(4, 4, 4)
    finally:
        fleet.compose("--profile", "standby", "rm", "-s", "-f", "-v", "standby")
    await_role(fleet.metrics, "ready")
    fleet.await_shares(4, 4, 4)


def prometheus_image(folder: Path) -> str:
    """The image of the compose file if it is there, else one built from the local program."""
    image = os.environ.get("PROMETHEUS_IMAGE") or PROMETHEUS
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0:
        return image
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip(f"neither {image} nor a prometheus (Debian has it in the package prometheus)")
    shutil.copy(program, folder / "prometheus")
    base = os.environ.get("PYTHON_IMAGE", "python:3.11-slim-bookworm")
    (folder / "Dockerfile").write_text(
        f'FROM {base}\nCOPY prometheus /bin/\nUSER 65534\nENTRYPOINT ["/bin/prometheus"]\n'
    )
    subprocess.run(["docker", "build", "-q", "-t", STAND_IN, folder], check=True, timeout=300)
    return STAND_IN


def test_prometheus_of_the_profile_scrapes_the_coordinator(fleet: Fleet, tmp_path: Path) -> None:
    """With the profile Prometheus scrapes the coordinator, and all its rules are loaded and ok."""
    image = prometheus_image(tmp_path)
    up = ("--profile", "monitoring", "up", "-d", "prometheus")
    fleet.compose(*up, timeout_s=UP_S, PROMETHEUS_IMAGE=image)

    def ask(path: str) -> dict:
        url = f"http://127.0.0.1:{fleet.prometheus}/api/v1/{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as page:
                return json.load(page)["data"]
        except OSError:
            return {}

    def is_up() -> bool:
        targets = ask("targets").get("activeTargets", [])
        return [target["health"] for target in targets] == ["up"]

    def is_well() -> bool:
        rules = [rule for group in ask("rules").get("groups", []) for rule in group["rules"]]
        return bool(rules) and {rule["health"] for rule in rules} == {"ok"}

    try:
        until(is_up, "the target is up", timeout_s=PATIENCE_S, story=fleet.story)
        until(is_well, "the rules are well", timeout_s=PATIENCE_S, story=fleet.story)
    finally:
        fleet.compose("--profile", "monitoring", "rm", "-sf", "prometheus", PROMETHEUS_IMAGE=image)
        if image == STAND_IN:
            subprocess.run(["docker", "rmi", "-f", STAND_IN], capture_output=True, check=False)


def test_monitoring_is_a_profile_of_its_own(fleet: Fleet) -> None:
    """Prometheus and Grafana start only with their profile, and the mounted files exist."""
    with_profile = fleet.compose("--profile", "monitoring", "config")
    for service in ("prometheus", "grafana"):
        assert f"  {service}:\n" in with_profile
        assert fleet.compose("ps", "-q", service, check=False) == ""
    for line in FILE.read_text().splitlines():
        source = line.strip().removeprefix("- ").removeprefix('volumes: ["').partition(":")[0]
        if source.startswith("./"):
            assert (Path(FILE.parent) / source).exists(), source
