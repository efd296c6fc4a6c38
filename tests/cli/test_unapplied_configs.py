"""Commands say which groups do not follow their newest configuration, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from support.kafka.brokers import Topics
from support.state.snapshots import orders
from support.state.story import config

from muster.cli.main import main
from muster.kafka.writer import Place, append
from muster.output import wall_ms
from muster.protocol.codec import encode
from muster.protocol.dead_letters import DeadLetter
from muster.protocol.events import GroupDeleted, Origin
from muster.protocol.ids import GroupId
from muster.protocol.records import GroupSnapshot, GroupState, Quarantine, Rejected
from muster.protocol.split_records import parts
from muster.protocol.tasks import Subtopology
from muster.protocol.topics import TopicKind
from muster.published import unapplied_configs
from muster.published.unapplied_configs import Unapplied

Output = pytest.CaptureFixture[str]
Describe = Callable[[], tuple[str, dict[str, object] | None]]
G = GroupId("g")


def test_what_an_operator_reads() -> None:
    """One paragraph says what happened and what to do."""
    late = Unapplied(G, 0, 7, 1_000, "")
    assert late.text(13_000) == (
        "g: the newest change of its configuration, 12 s ago, is not applied yet. A configuration "
        "of thousands of units takes the coordinator some seconds, and so do those of a thousand "
        "groups; if this goes on, see: muster doctor"
    )
    refused = late._replace(refusal="9 tasks; at most 8")
    assert refused.text(13_000) == (
        "g: the newest change of its configuration, 12 s ago, was refused: 9 tasks; at most 8. "
        "The group follows the one before"
    )
    assert refused._replace(is_first=True).text(13_000) == (
        "g: its configuration, 12 s ago, was refused: 9 tasks; at most 8. There is no group yet"
    )


@pytest.fixture
def describe(topics: Topics, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Describes group g: the paragraph about it, and the same in JSON. Even a new change counts."""
    monkeypatch.setattr(unapplied_configs, "ANSWER_MS", -60_000)
    where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]

    def describe() -> tuple[str, dict[str, object] | None]:
        words = ["groups", "describe", "--group", "g", *where]
        assert main(words) == 0
        out = capsys.readouterr().out.split("\n\n")
        assert main([*words, "--format", "json"]) == 0
        late = json.loads(capsys.readouterr().out)["unapplied_config"]
        return "".join(each for each in out if each.startswith("g: the newest")), late

    return describe


def configure(topics: Topics) -> Place:
    """Write a configuration, as an operator does."""
    event = replace(config(Subtopology("0", 4)), group=G)
    return append(topics.clients, topics.name(TopicKind.CONFIG), event)


def publish(topics: Topics, applied: Place, **more: object) -> None:
    """Publish the group's snapshot as a coordinator that has read its events up to `applied`."""
    snapshot: GroupSnapshot = replace(orders(), group=G, through=(tuple(applied),), **more)  # type: ignore[arg-type]
    for part in parts(snapshot):
        topics.write_raw(TopicKind.GROUPS, part.key, part.value)


def test_a_group_that_follows_its_configuration(topics: Topics, describe: Describe) -> None:
    """There is nothing to say."""
    configure(topics)
    publish(topics, configure(topics))
    assert describe() == ("", None)


def test_a_configuration_that_waits(
    topics: Topics, describe: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot has not read it, and there is no dead letter; it has a few seconds for that."""
    publish(topics, configure(topics))
    newest = configure(topics)
    text, late = describe()
    assert "is not applied yet" in text
    assert late is not None
    assert (late["partition"], late["offset"], late["refusal"]) == (*newest[1:], None)
    monkeypatch.setattr(unapplied_configs, "ANSWER_MS", 3_600_000)
    assert describe() == ("", None)


def refuse(topics: Topics, place: Place, why: str) -> None:
    """Write the dead letter of a configuration."""
    letter = encode(
        Rejected(origin=Origin(*place, 0), reason=DeadLetter.UNDECODABLE, message=why, key=b"g")
    )
    topics.write_raw(TopicKind.REJECTED, letter.key, letter.value)


def test_a_configuration_that_was_refused(
    topics: Topics, describe: Describe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dead letter says why at once, in one line, whatever it quotes."""
    monkeypatch.setattr(unapplied_configs, "ANSWER_MS", 3_600_000)
    first = configure(topics)
    publish(topics, first)
    refuse(topics, first, "another")
    refuse(topics, configure(topics), "9 tasks;\nat most 8")
    text, late = describe()
    assert "was refused: 9 tasks;\\nat most 8. The group" in text
    assert late is not None
    assert late["refusal"] == "9 tasks;\\nat most 8"


def test_the_coordinators_clock_is_behind(topics: Topics, describe: Describe) -> None:
    """It stamps dead letters, and the broker stamps configurations; half an hour apart is fine."""
    publish(topics, configure(topics))
    place = configure(topics)
    letter = encode(Rejected(origin=Origin(*place, 0), reason=DeadLetter.UNDECODABLE, message="no"))
    producer = Producer(topics.clients.producer())
    half_an_hour_ago_ms = wall_ms() - 1_800_000
    name = topics.name(TopicKind.REJECTED)
    producer.produce(name, letter.value, letter.key, timestamp=half_an_hour_ago_ms)
    assert producer.flush(30) == 0
    assert "was refused: no. The group" in describe()[0]


@pytest.mark.parametrize(
    "words",
    [
        ["groups", "list"],
        ["groups", "describe"],
        ["explain"],
        ["plan"],
        ["drain", "--member", "W1"],
    ],
)
def test_the_first_configuration_was_refused(
    topics: Topics, capsys: Output, words: list[str]
) -> None:
    """Each command that needs the group says why there is none."""
    where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
    words = [*words, "--group", "g", *where]
    append(topics.clients, topics.name(TopicKind.CONFIG), GroupDeleted(group=G))
    assert main(words) == 1
    assert "no group 'g' on" in capsys.readouterr().err
    refuse(topics, configure(topics), "9 tasks; at most 8")
    assert main(words) == 1
    assert "was refused: 9 tasks; at most 8. There is no group yet" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["groups", "describe"], ["plan"]])
def test_a_deleted_group_is_configured_again_but_refused(
    topics: Topics, capsys: Output, words: list[str]
) -> None:
    """The refusal is what an operator needs to know, not that the group was deleted before."""
    publish(topics, configure(topics), state=GroupState.DEAD, members=())
    where = ["--bootstrap-server", topics.address, "--topic-prefix", topics.prefix]
    append(topics.clients, topics.name(TopicKind.CONFIG), GroupDeleted(group=G))
    assert main([*words, "--group", "g", *where]) == 1
    assert "no group 'g': " in capsys.readouterr().err
    refuse(topics, configure(topics), "9 tasks; at most 8")
    assert main([*words, "--group", "g", *where]) == 1
    assert "was refused: 9 tasks; at most 8. There is no group yet" in capsys.readouterr().err


def test_a_deletion_that_waits(topics: Topics, describe: Describe) -> None:
    """A deletion changes the configuration, too."""
    publish(topics, configure(topics))
    append(topics.clients, topics.name(TopicKind.CONFIG), GroupDeleted(group=G))
    assert "is not applied yet" in describe()[0]


def test_a_quarantined_group_says_why_itself(topics: Topics, describe: Describe) -> None:
    """Its quarantine is the reason, and is printed."""
    place = configure(topics)
    configure(topics)
    publish(topics, place, quarantine=Quarantine(since_ms=1, story="it failed"))
    assert describe() == ("", None)
