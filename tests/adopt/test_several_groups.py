"""Several groups in one process: one that cannot be governed any more takes none with it."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import pytest
from support.adopt.governed import GovernedWorld

from muster.adopt import governed_groups
from muster.adopt.governed_groups import Governors, SeveralFailed
from muster.adopt.governor_thread import Failed, Runner
from muster.adopt.join_metadata import Kind
from muster.adopt.model import AssignableUnits, GovernorPresence, Options
from muster.cli.main import main
from muster.errors import BadInput, Unreachable
from muster.kafka.client_settings import ClientSettings
from muster.kafka.writer import Place
from muster.protocol.errors import MusterError
from muster.protocol.ids import GroupId

NO_PROTOCOL = BadInput("the members of 'batch' have no protocol in common")


class Absent:
    """Stands for everything that talks to Kafka."""

    def __init__(self, *given: object) -> None:
        self.forgotten: list[str] = []

    def line(self, group: str) -> Absent:
        """A connection, as absent."""
        return self

    def follow(self, group: str, post: object) -> None:
        """Nothing comes."""

    def forget(self, group: str) -> None:
        """Keep whose topics are not looked up any more."""
        self.forgotten.append(group)

    def open(self) -> None:
        """Nothing to open."""

    def close(self, wait_s: float = 0) -> None:
        """Nothing to close."""


@dataclass
class Life:
    """What becomes of a group's runner: after so many looks it ends, in a failure or in peace."""

    looks: int = 1_000
    failure: MusterError | None = None
    is_stopped: bool = field(default=False, init=False)


@pytest.fixture
def lives(monkeypatch) -> dict[str, Life]:
    """Three groups, of which `batch` fails at once."""
    lives = {"audit": Life(), "batch": Life(0, NO_PROTOCOL), "orders": Life()}

    class Played:
        def __init__(self, options: Options, *given: object, **more: object) -> None:
            self._life = lives[options.group]

        @property
        def failure(self) -> MusterError | None:
            return self._life.failure if self._life.looks <= 0 else None

        def start(self) -> None:
            """It runs."""

        def post(self, presence: GovernorPresence) -> None:
            """It hears whether another governor is there."""

        def stop(self) -> None:
            self._life.is_stopped = True

        def join(self, timeout_s: float) -> bool:
            self._life.looks -= 1
            return self._life.is_stopped or self._life.looks <= 0

    for name in ("Network", "MusterTopics", "Partitions"):
        monkeypatch.setattr(governed_groups, name, Absent)
    monkeypatch.setattr(governed_groups, "Runner", Played)
    monkeypatch.setattr("muster.cli.adopt.LOOK_S", 0.001)
    monkeypatch.setattr("muster.cli.adopt.wanted", lambda *given: options(lives))
    monkeypatch.setattr("muster.cli.adopt.set_up", lambda form: None)
    return lives


def options(groups: dict[str, Life]) -> list[Options]:
    config = GovernedWorld({}).config
    place = Place("muster.config", 0, 0)
    return [Options(GroupId(group), Kind.CONSUMER, config, place) for group in groups]


def test_one_fails_and_the_others_are_governed_on(lives, caplog):
    """It is logged once, with the reason, and nothing is done for it any more."""
    governors = Governors(ClientSettings(), "muster", None, options(lives))
    governors.open()
    with caplog.at_level(logging.INFO):
        assert all(governors.are_running() for _ in range(20))
    assert not lives["audit"].is_stopped
    assert not lives["orders"].is_stopped
    [told] = caplog.records
    assert (told.group, told.levelname) == ("batch", "ERROR")
    assert "no protocol in common; this process governs 2 other groups on" in told.getMessage()
    assert governors.failure is NO_PROTOCOL
    assert governors._partitions.forgotten == ["batch"]
    lives["orders"].failure, lives["orders"].looks = Unreachable("no answer"), 0
    assert governors.are_running()
    assert isinstance(governors.failure, SeveralFailed)
    governors.close()
    assert lives["audit"].is_stopped
    assert not governors.are_running()


def said(capsys) -> str:
    """The one line that the command wrote."""
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_the_exit_code_tells_at_the_end(lives, capsys):
    """The others are handed back some time later; the command then says what failed."""
    lives["audit"].looks = lives["orders"].looks = 30
    assert main(["adopt", "--group", "audit"]) == 2
    assert said(capsys) == f"muster adopt: {NO_PROTOCOL}"
    assert lives["audit"].looks <= 0


def test_the_last_one_fails(lives, capsys):
    """No group is left: the command ends at once, and names each."""
    lives["audit"].looks, lives["audit"].failure = 5, NO_PROTOCOL
    lives["orders"].looks, lives["orders"].failure = 5, Unreachable("no answer of the broker")
    assert main(["adopt", "--group", "audit"]) == 1
    line = said(capsys)
    assert "3 of 3 groups could not be governed any more: audit: the members of" in line
    assert line.endswith("orders: no answer of the broker")


def test_failures_of_input_alone(lives, capsys):
    """Two of them are bad input still: exit code 2."""
    lives["audit"].looks, lives["audit"].failure = 5, NO_PROTOCOL
    lives["orders"].looks = 10
    assert main(["adopt", "--group", "audit"]) == 2
    assert "2 of 3 groups could not" in said(capsys)


def test_all_are_handed_back(lives, capsys):
    """Nothing failed: exit code 0, and not a word."""
    for life in lives.values():
        life.looks, life.failure = 3, None
    assert main(["adopt", "--group", "audit"]) == 0
    assert capsys.readouterr().err == ""


def test_inputs_after_the_end_are_dropped():
    """The topics' reader posts on for months; no thread reads that queue any more."""
    [given] = options({"batch": Life()})
    runner = Runner(given, Absent(), Absent(), *[lambda *given: None] * 2)
    runner.start()
    assert runner.join(10)
    assert isinstance(runner.failure, Failed), "its connection is none"
    runner.post(AssignableUnits(()))
    assert runner._inputs.empty()


def test_the_end_has_one_bound(lives, monkeypatch):
    """No broker answers: each part takes all the time that it is given, and the parts share it."""
    now_s = 1_000.0
    spent: list[float] = []

    def take(wait_s: float) -> bool:
        nonlocal now_s
        spent.append(wait_s)
        now_s += wait_s
        return False

    governors = Governors(ClientSettings(), "muster", None, options(lives))
    governors.open()
    for runner in governors.runners.values():
        monkeypatch.setattr(runner, "join", take)
    monkeypatch.setattr(Absent, "close", lambda self, wait_s=0: take(wait_s))
    monkeypatch.setattr(governed_groups.time, "monotonic", lambda: now_s)
    governors.close()
    parts = len(lives) + 3
    assert len(spent) == parts
    assert sum(spent) <= governed_groups.CLOSE_S + parts * governed_groups.LEAST_S


def test_a_look_that_hangs_keeps_no_process(lives, monkeypatch):
    """The threads that look for other governors end with the process."""
    asked, looked = threading.Event(), threading.Event()
    monkeypatch.setattr(
        governed_groups, "is_governed", lambda *given: asked.set() or looked.wait(60)
    )
    governors = Governors(ClientSettings(), "muster", None, options(lives))
    governors.open()
    governors._looks.put("orders")
    assert asked.wait(60)
    watchers = [each for each in threading.enumerate() if each.name.startswith("muster-watch")]
    assert watchers
    assert all(each.daemon for each in watchers)
    looked.set()
    governors.close()
