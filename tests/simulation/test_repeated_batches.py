"""A batch that is taken again, in another order or from what is stored, gives the same step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from fault_injection import faults, runs
from fault_injection.checker import CheckedJob
from fault_injection.fault_run import CALM_MS, FaultRun
from support.state.groups import same_group
from support.suite.examples import examples

from muster.protocol.events import Event
from muster.protocol.records import GroupSnapshot
from muster.state.group import Group
from muster.state.machine import Step, advance

PLUG_IN = "support.plugin_assignors:FirstTakesAll"
"""It gives tasks to draining members too, so its groups are played without drains."""


ONE_IN = 6
"""One batch in so many is repeated, because most batches have heartbeats alone."""


class Repeated(CheckedJob):
    """A coordinator that takes some batches three times and restores the group after them."""

    batches = 0

    def decide(self, events: Sequence[Event]) -> Step:
        """Decide as usual; compare with the rows in another order, some of them twice."""
        before, newest = self.group, self.checkpoint.snapshot
        step = super().decide(events)
        Repeated.batches += 1
        if Repeated.batches % ONE_IN:
            return step
        events = self.as_read(events)
        shuffled = [*events, *events[:3]]
        Random(Repeated.batches).shuffle(shuffled)
        given = {"coordinator_epoch": self.epoch, "assignors": self.assignors}
        other = advance(before, shuffled, **given)
        same_group(step.group, other.group)
        assert repr(step.records) == repr(other.records)
        assert advance(step.group, events, **given).records == ()
        for record in step.records:
            newest = record if isinstance(record, GroupSnapshot) else newest
        if newest is not None:  # the published record and the liveness are the whole group
            same_group(Group.restore(newest, step.group.liveness()), step.group)
        return step


@pytest.mark.parametrize(
    ("assignors", "left_out"),
    [(faults.ASSIGNORS, ()), ((PLUG_IN,) * len(faults.ASSIGNORS), faults.Drains)],
    ids=["built in", "plug-in"],
)
def test_a_batch_taken_again_is_the_same(
    assignors: tuple[str, ...], left_out: type | tuple[()], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In runs with all faults groups and records are equal, and a repetition publishes nothing."""
    monkeypatch.setattr(faults, "ASSIGNORS", assignors)
    Repeated.batches, count = 0, examples(9)
    for seed in range(count):
        run = FaultRun(seed, job=Repeated)
        run.play(each for each in runs.stream(seed) if not isinstance(each[1], left_out))
        assert 0 < run.settle() <= CALM_MS
    assert Repeated.batches > 30 * count
