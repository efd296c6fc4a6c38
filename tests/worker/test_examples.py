"""The examples, unchanged, with a real Kafka and a scripted coordinator."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from support.kafka.brokers import create_topics
from support.suite.waiting import PATIENCE_S
from support.worker.scripted_coordinator import ScriptedCoordinator, eventually

from muster.protocol.events import Join, Leave, Report
from muster.protocol.tasks import TaskSet

pytestmark = pytest.mark.broker
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> str:
    """A broker with muster's topics under their default names."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if "muster.groups" not in admin.list_topics(timeout=10).topics:
        create_topics(bootstrap, "muster")
    return bootstrap


@pytest.fixture
def coordinator(topics: str, request: pytest.FixtureRequest) -> Iterator[ScriptedCoordinator]:
    """A coordinator for a group named after the test."""
    with ScriptedCoordinator(topics, request.node.name) as scripted:
        yield scripted


@pytest.fixture
def example(topics: str, coordinator: ScriptedCoordinator, tmp_path: Path) -> Iterator:
    """Start an example; its output goes to a file."""
    made: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> tuple[subprocess.Popen[bytes], Path]:
        out = tmp_path / "out"
        with out.open("w") as file:
            made.append(
                subprocess.Popen(
                    [a.format(group=coordinator.group, servers=topics) for a in command],
                    stdout=file,
                    cwd=EXAMPLES,
                    env={"PYTHONUNBUFFERED": "1", "PATH": "/usr/bin:/bin"},
                )
            )
        return made[-1], out

    yield start
    for process in made:
        process.kill()
        process.wait()


COMMANDS = {
    "hello_worker.py": "start 0_0 0_1 token Token(generation=1, epoch=1)",
    "thread_worker.py": "0_0: a step, token 1.1",
    "asyncio_worker.py": "0_1: a step, generation 1",
    "exec_task.sh": "0_1: a step, token 1.1, member ",
}


def command(name: str) -> list[str]:
    """The command that starts an example."""
    if name.endswith(".py"):
        return [sys.executable, name, "{group}", "{servers}"]
    muster = [sys.executable, "-m", "muster.cli.main", "worker", "--group", "{group}"]
    return [*muster, "--bootstrap-server", "{servers}", "--exec", f"./{name} {{{{task}}}}"]


@pytest.mark.parametrize("name", COMMANDS)
def test_workers(name: str, example, coordinator: ScriptedCoordinator) -> None:
    """It takes two tasks, releases one, and on SIGINT the other, and leaves the group."""
    process, out = example(*command(name))
    join = coordinator.wait_for(Join)
    coordinator.assign(join, ["0_0", "0_1"])
    eventually(lambda: COMMANDS[name] in out.read_text())
    coordinator.assign(join, ["0_1"], generation=2)
    assert coordinator.wait_for(Report).holding.active == TaskSet.of(["0_1"])
    process.send_signal(signal.SIGINT)
    coordinator.wait_for(Leave)
    process.wait(PATIENCE_S)


def test_restoring(example, coordinator: ScriptedCoordinator, tmp_path: Path) -> None:
    """A learner reports its lag, then that it is ready, and starts warm; the join has its lags."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "0_7").write_text("900000")
    _, out = example(*command("restoring_worker.py"), str(disk))
    join = coordinator.wait_for(Join)
    assert [(str(lag.task), lag.offsets) for lag in join.lags] == [("0_7", 100_000)]
    coordinator.assign(join, learner=["0_0"])
    ready = coordinator.wait_for(Report, lambda r: len(r.holding.ready) > 0)
    assert [(str(lag.task), lag.offsets) for lag in ready.lags] == [("0_0", 0)]
    coordinator.assign(join, generation=2)
    coordinator.wait_for(Report, lambda r: r.revision == 2)
    coordinator.assign(join, ["0_0"], generation=2)
    eventually(lambda: "0_0 starts warm" in out.read_text())
