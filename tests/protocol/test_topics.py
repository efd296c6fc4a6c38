"""The topic table."""

from __future__ import annotations

from muster.protocol.topics import BY_KIND, INPUTS, TopicKind, kind_of, topic_name


def test_every_kind_has_its_topic() -> None:
    """Names and kinds map both ways, with any prefix; other names have no kind."""
    for kind in TopicKind:
        assert kind_of(topic_name(kind, "a.b"), "a.b") == kind
        assert kind_of(topic_name(kind)) == kind
    assert [kind_of(name) for name in ("muster.other", "other.config", "config", "")] == [None] * 4


def test_writers_choose_neither_time_nor_memory() -> None:
    """Topics that members write to use the broker's timestamp and take no compressed records."""
    for kind in (*INPUTS, TopicKind.HEARTBEATS):
        assert BY_KIND[kind].settings["message.timestamp.type"] == "LogAppendTime"
        assert BY_KIND[kind].settings["compression.type"] == "uncompressed"


def test_topics_with_one_value_for_each_key_are_compacted() -> None:
    """On the others the history is kept for a while."""
    compacted = {k for k, t in BY_KIND.items() if t.settings["cleanup.policy"] == "compact"}
    assert compacted == {
        TopicKind.CONFIG,
        TopicKind.ASSIGNMENTS,
        TopicKind.GROUPS,
        TopicKind.CLOCK,
        TopicKind.COORDINATOR,
    }
    assert BY_KIND[TopicKind.COORDINATOR].partitions == 1
