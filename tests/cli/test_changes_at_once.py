"""Two operators change the settings of one group at the same moment: the loss is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.state.snapshots import orders

from muster.adopt.eligibility import GovernableGroup
from muster.adopt.join_metadata import Kind
from muster.cli import adopt as adopt_command
from muster.cli import config as config_command
from muster.cli import groups as groups_command
from muster.cli.main import main
from muster.console import drains_and_settings
from muster.console.drains_and_settings import Writes
from muster.console.store import GroupKey
from muster.errors import ChangedMeanwhile
from muster.kafka.client_settings import client_settings
from muster.kafka.reader import Row
from muster.kafka.writer import Place
from muster.protocol.codec import encode
from muster.protocol.events import Event, GroupConfig, GroupDeleted
from muster.protocol.ids import GroupId
from muster.protocol.records import Quarantine
from muster.protocol.settings import parse_settings
from muster.protocol.tasks import Subtopology
from muster.published import config_changes as published
from muster.published.followed_group import FollowedGroup

G = GroupId("orders")


def config(assignor: str = "sticky", **settings: int) -> GroupConfig:
    """A configuration of the group."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return GroupConfig(
        group=G, assignor=assignor, settings=parse_settings(named, assignor), tasks=()
    )


@dataclass
class ConfigTopic:
    """The config topic in memory; another operator writes just before or after a record of ours.

    Attributes:
        rows: what it has.
        earlier, later: what another operator writes before and after our next record.
    """

    rows: list[Row] = field(default_factory=list)
    earlier: list[Event] = field(default_factory=list)
    later: list[Event] = field(default_factory=list)

    def add(self, event: Event, by: str = "") -> Place:
        """Write one record; all have the same time."""
        key, value, *_ = encode(event)
        place = Place("muster.config", 0, len(self.rows))
        self.rows.append(Row(key, value, *place, at_ms=1, by=by.encode()))
        return place

    def append(self, _: object, __: str, event: Event, ___: object = None, by: str = "") -> Place:
        """As `muster.kafka.writer.append`."""
        for each in self.earlier:
            self.add(each, "ann@laptop")
        place = self.add(event, by)
        for each in self.later:
            self.add(each, "ann@laptop")
        return place

    def read(self, _: object, __: str, *, key: bytes | None = None) -> Iterator[Row]:
        """As `muster.kafka.reader.read`."""
        return (row for row in [*self.rows] if key in (None, row.key))


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> ConfigTopic:
    """A topic that has one configuration of the group."""
    made = ConfigTopic()
    made.add(config())
    monkeypatch.setattr(published, "read", made.read)
    monkeypatch.setattr(config_command, "append", made.append)
    monkeypatch.setattr(drains_and_settings, "append", made.append)
    return made


Output = pytest.CaptureFixture[str]
SET = ["config", "set", "--group", "orders", "--config", "num.standby.replicas=2"]
BOTH = "muster config: orders: another change by ann@laptop came at the same moment and "
ADVICE = "; see muster config show, and set again what should hold\n"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (config(max_warmup_replicas=9), "was replaced by this one: max.warmup.replicas=9"),
        (config("high-availability"), "was replaced by this one: assignor=high-availability"),
        (GroupDeleted(group=G), "was replaced by this one: the group's deletion"),
    ],
)
def test_who_replaces_another_change_is_told(
    topic: ConfigTopic, capsys: Output, other: Event, said: str
) -> None:
    """The other change came after the command had read the topic: it is not in what it writes."""
    topic.earlier = [other]
    assert main(SET) == 1
    assert capsys.readouterr().err == f"{BOTH}{said}{ADVICE}"


def test_whose_change_is_replaced_is_told(topic: ConfigTopic, capsys: Output) -> None:
    """The other change did not know this one, and comes before the command reads again."""
    topic.later = [config(max_warmup_replicas=9)]
    assert main(SET) == 1
    assert capsys.readouterr().err == f"{BOTH}replaced this one: num.standby.replicas=2{ADVICE}"


@pytest.mark.parametrize("when", ["earlier", "later"])
def test_nothing_is_said_where_nothing_is_lost(
    topic: ConfigTopic, capsys: Output, when: str
) -> None:
    """The other operator set the same, and what was changed long before is no conflict."""
    topic.add(config(num_standby_replicas=1, max_warmup_replicas=7))
    setattr(topic, when, [config(num_standby_replicas=2, max_warmup_replicas=7)])
    assert main(SET) == 0
    assert "at the same moment" not in capsys.readouterr().err


def test_a_setting_that_was_taken_away(topic: ConfigTopic, capsys: Output) -> None:
    """The other operator wanted the default again, and this command writes the old value."""
    topic.add(config(max_warmup_replicas=7))
    topic.earlier = [config()]
    assert main(SET) == 1
    said = "was replaced by this one: the default of max.warmup.replicas"
    assert capsys.readouterr().err.endswith(f"{BOTH}{said}{ADVICE}")


def test_the_newest_of_two_records_of_one_millisecond_counts(
    topic: ConfigTopic, capsys: Output
) -> None:
    """`config show` shows the later record, as the coordinator applies it."""
    topic.add(config(num_standby_replicas=3))
    assert main(["config", "show", "--group", "orders", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"] == {"num.standby.replicas": 3}


def test_the_console_tells_it_too(topic: ConfigTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the error; the user knows what to set again."""
    topic.earlier = [config(max_warmup_replicas=9)]
    body = json.dumps({"confirmed": True, "config": {"num.standby.replicas": "2"}}).encode()
    write: Callable[..., str] = Writes(frozenset({"config"})).config
    with pytest.raises(ChangedMeanwhile, match=r"was replaced by this one: max.warmup.replicas=9"):
        write(client_settings(), GroupKey("muster", "orders"), None, body, "bob")


def test_a_release_that_replaces_a_correction_is_told(
    topic: ConfigTopic, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """`groups release` writes the configuration that it read; another operator corrected it."""
    quarantined = replace(orders(), quarantine=Quarantine(since_ms=1, story="it failed"))
    monkeypatch.setattr(groups_command, "append", topic.append)
    monkeypatch.setattr(FollowedGroup, "snapshot", lambda *_: quarantined)
    topic.earlier = [config("high-availability")]
    assert main(["groups", "release", "--group", "orders"]) == 1
    said = "was replaced by this one: assignor=high-availability"
    assert said in capsys.readouterr().err


@pytest.fixture
def adopting(topic: ConfigTopic, monkeypatch: pytest.MonkeyPatch) -> ConfigTopic:
    """`muster adopt` finds two groups of consumers, and governs them until it is told to stop."""

    def append_all(
        _: object, __: str, events: Sequence[Event], ___: object = None, by: str = ""
    ) -> list[Place]:
        return [
            topic.append(None, "", event, by=by) if event.group == G else topic.add(event, by)
            for event in events
        ]

    def governable(_: object, names: Sequence[str], **__: object) -> dict[str, GovernableGroup]:
        return {name: GovernableGroup(Kind.CONSUMER, ("A",), "range", ("t",)) for name in names}

    monkeypatch.setattr(adopt_command, "append_all", append_all)
    monkeypatch.setattr(adopt_command.eligibility, "governable", governable)
    monkeypatch.setattr(adopt_command.rights, "check_groups", lambda *_: None)
    monkeypatch.setattr(adopt_command.rights, "check_topics", lambda *_: None)
    monkeypatch.setattr(adopt_command, "Governors", lambda *_, **__: None)
    monkeypatch.setattr(adopt_command, "_govern", lambda _: print("governs"))
    return topic


ADOPT = ["adopt", "--group", "audit", "--group", "orders", "--config", "session.timeout.ms=46000"]


@pytest.mark.parametrize(
    ("earlier", "later", "said"),
    [
        (config(max_warmup_replicas=9), None, "was replaced by this one: max.warmup.replicas=9"),
        (None, config(max_warmup_replicas=9), "replaced this one: session.timeout.ms=46000"),
    ],
)
def test_a_group_that_is_configured_while_it_is_adopted(
    adopting: ConfigTopic,
    capsys: Output,
    earlier: GroupConfig | None,
    later: GroupConfig | None,
    said: str,
) -> None:
    """The command ends before it takes a seat, and says what was lost."""
    adopting.earlier, adopting.later = [earlier] * bool(earlier), [later] * bool(later)
    assert main(ADOPT) == 1
    written = capsys.readouterr()
    assert written.err == (
        f"muster adopt: orders: another change by ann@laptop came at the same moment and {said}"
        f"{ADVICE.rstrip()}; then start muster adopt again\n"
    )
    assert written.out == ""


def test_tasks_of_another_governor_are_no_conflict(adopting: ConfigTopic, capsys: Output) -> None:
    """A stand-by starts while the governor writes new tasks: that one writes them once more."""
    tasks = (Subtopology("t", 4),)
    adopting.earlier = [replace(config(), tasks=tasks)]
    assert main(ADOPT) == 0
    assert capsys.readouterr().out == "governs\n"
    assert {row.by for row in adopting.rows if row.key == b"audit"} == {b"muster-governor-1"}
