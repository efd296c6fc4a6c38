"""The topic table."""

from __future__ import annotations

from support.repository.pages import made, markdown

from muster.protocol.topics import BY_KIND, INPUTS, TOPICS, Topic, TopicKind, kind_of, topic_name


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


def test_the_page_lists_every_topic() -> None:
    """docs/operations.md has each topic, what it is for, and how long its records are kept."""
    rows = [
        (f"`<prefix>.{each.kind}`", each.purpose, each.key.replace("|", r"\|"), kept(each))
        for each in TOPICS
    ]
    table = markdown(("topic", "what for", "key", "kept"), rows)
    on_page, expected = made("operations.md", "topics: from protocol/topics.py", table)
    assert on_page == expected


def kept(topic: Topic) -> str:
    """How long a topic's records are kept, in words."""
    if topic.settings["cleanup.policy"] == "compact":
        return "the newest record of each key"
    hours = int(topic.settings["retention.ms"]) // 3_600_000
    days = f"{hours // 24} day{'s' * (hours > 24)}"
    return f"{hours} hour{'s' * (hours > 1)}" if hours < 24 else days
