"""Commands that messages name can be copied into a shell, whatever ids members gave themselves."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.cli.examined import NOW, ORDERS, STUCK_MS, facts

from muster.cli.config import refusal
from muster.cli.groups import quarantines
from muster.console.plans import commands, question
from muster.doctor import groups as doctor_groups
from muster.doctor.facts import Heard
from muster.protocol.events import Origin
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.records import (
    GroupSnapshot,
    GroupState,
    KeptDrain,
    Quarantine,
    group_deleted,
    no_tasks,
)
from muster.protocol.unknown_names import no_tasks_beside
from muster.published.snapshots import Shown, drains_text, refuses_events

NAMES = ("orders", "two words", "$(touch owned)", "a; touch owned", "it's", "-x", "--force")
MEMBER = "w 1; touch owned"


def copied(message: str) -> list[str]:
    """The words that a shell makes of the command that a message ends with."""
    return shlex.split(message[message.index("muster ") :])


def group_of(words: list[str]) -> str:
    """The value of ``--group``, as argparse reads it."""
    joined = next((word for word in words if word.startswith("--group=")), None)
    return words[words.index("--group") + 1] if joined is None else joined.partition("=")[2]


def messages(snapshot: GroupSnapshot) -> Iterator[str]:
    """Messages about a group, from where the command begins in each."""
    dead = replace(snapshot, state=GroupState.DEAD, members=(), tasks=())
    aside = replace(snapshot, quarantine=Quarantine(1, "it failed."))
    asking = Heard(event_ms=NOW, unanswered_ms=NOW - 60_000, joined=frozenset(["w1"]))
    for each in (
        replace(snapshot, drains=(KeptDrain(MemberId(MEMBER), None, NOW, True),)),
        replace(snapshot, state=GroupState.NOT_READY),
        replace(snapshot, state=GroupState.RECONCILING, generation_ms=1),
        replace(snapshot, members=(), generation_ms=1),
        aside,
        dead,
    ):
        seen = facts(groups={snapshot.group: (each, NOW)}, heard={snapshot.group: asking})
        actions = [f.action for f in doctor_groups.look(seen, "muster", STUCK_MS) if f.action]
        assert actions
        yield from actions
        yield from drains_text(each, NOW)
    yield from quarantines([Shown(aside, {})], NOW)
    yield refuses_events(aside)
    yield refusal(snapshot.group, ["w1"])
    yield no_tasks_beside(snapshot.group, [])
    yield no_tasks(snapshot.group)
    deleted = group_deleted(snapshot.group, Origin("muster.config", 0, 1, NOW))
    yield deleted.partition("; ")[2]  # what precedes it names the command that deleted the group
    yield from commands(snapshot, question([("config", "session.timeout.ms=6000")]))


@pytest.mark.parametrize("name", NAMES)
def test_a_command_names_the_group(name: str) -> None:
    """Also if the name has spaces or begins with a hyphen; no name is a command of its own."""
    snapshot = replace(facts().groups[ORDERS][0], group=GroupId(name))
    told = [message for message in messages(snapshot) if "--group" in message]
    assert len(told) >= 14
    for message in told:
        words = copied(message)
        assert group_of(words) == name, message
        assert ("--member" not in words) or (words[words.index("--member") + 1] == MEMBER)


def test_the_doctors_commands_name_the_tenant() -> None:
    """A command without the prefix would act on the group of that name of another tenant."""
    deserted = replace(facts().groups[ORDERS][0], members=(), generation_ms=1)
    seen = facts(groups={ORDERS: (deserted, NOW)})
    (told,) = [f.action for f in doctor_groups.look(seen, "shop", STUCK_MS) if "delete" in f.action]
    assert told.endswith("muster config delete --group orders --topic-prefix shop")
