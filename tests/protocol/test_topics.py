"""The topic table."""

from __future__ import annotations

from muster.protocol.topics import BY_KIND, INPUTS, TopicKind, kind_of, topic_name


def test_every_kind_has_its_topic() -> None:
    """Names and kinds map both ways, with any prefix; other names have no kind."""
    for kind in TopicKind:
        assert kind_of(topic_name(kind, "a.b"), "a.b") == kind
        assert kind_of(topic_name(kind)) == kind
    assert [kind_of(name) for name in ("muster.other", "other.config", "config", "")] == [None] * 4


def test_time_is_the_brokers_on_inputs() -> None:
    """Input topics use the broker's timestamp; topics with one value per key are compacted."""
    for kind in INPUTS:
        assert BY_KIND[kind].settings["message.timestamp.type"] == "LogAppendTime"
    compacted = {k for k, t in BY_KIND.items() if t.settings["cleanup.policy"] == "compact"}
    assert compacted == {
        TopicKind.CONFIG,
        TopicKind.ASSIGNMENTS,
        TopicKind.GROUPS,
        TopicKind.CLOCK,
        TopicKind.COORDINATOR,
    }
    assert BY_KIND[TopicKind.COORDINATOR].partitions == 1
