"""Warnings about settings an assignor cannot honour; proven bounds of costs."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assignor.placing import Member, group
from support.assignor.random_groups import problems
from support.state.story import Story, config, join
from support.suite.examples import examples

from muster.assignor import registry
from muster.assignor.ignored_settings import CONDITIONS, ignored_pins, ignored_settings
from muster.assignor.model import group_view
from muster.assignor.registry import BUILT_IN
from muster.assignor.targets import standby
from muster.assignor.targets.racks import AVAILABILITY, racks_of
from muster.assignor.targets.racks_with_kept_counts import optimised_standbys
from muster.protocol.records import MemberAssignment
from muster.protocol.settings import (
    CONNECT_ASSIGNORS,
    SETTINGS,
    STREAMS_ASSIGNORS,
    Settings,
    parse_settings,
)
from muster.protocol.tasks import Connector, Subtopology, TaskTable

ALL = ("high-availability", "sticky", "fallback", "learner")
RACKS = ("r0", "r1", "r2")
STRATEGY = {"rack_aware_assignment_strategy": "min_traffic"}


class Watched(Settings):
    """Settings that record which fields are read."""

    __slots__ = ()
    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        """The attribute, noted."""
        Watched.read.add(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("assignor", ALL)
def test_the_table_says_which_settings_an_assignor_reads(assignor: str) -> None:
    """In random groups it reads those that the table says it uses; of the rest, none."""
    watched: set[str] = set()

    @settings(max_examples=examples(40), deadline=None)
    @given(problems(racks=True), st.booleans())
    def place(problem: Any, weights: bool) -> None:
        units, members, config = problem
        if weights:
            units = [replace(unit, weight=1 + n) for n, unit in enumerate(units)]
        config |= {"rack_aware_standby_strategy": "reliability_then_traffic"}
        view = group(units, members, assignor, **config)
        values = {each.name: getattr(view.settings, each.name) for each in fields(Settings)}
        view = replace(view, settings=Watched(**values))
        Watched.read = set()
        tuple(registry.get(assignor).assign(view).reasons)
        watched.update(Watched.read)

    place()
    listed = {s.field for s in SETTINGS if assignor in (s.assignors or ())}
    unlisted = {name for name in watched & {s.field for s in SETTINGS} if name not in listed}
    assert unlisted == set()
    # What the coordinator reads for them: lags that are old, and learners that wait for others.
    assert listed - watched <= {"probing_rebalance_interval_ms", "learner_partial_rebalance"}


def test_every_condition_of_the_table_is_checked() -> None:
    """Every condition that the table words has a rule, and every user is a built-in assignor."""
    assert {s.key for s in SETTINGS if s.condition} == set(CONDITIONS)
    assert {name for s in SETTINGS for name in s.assignors or ()} | {"eager"} == set(BUILT_IN)
    assert {*STREAMS_ASSIGNORS, *CONNECT_ASSIGNORS} == set(BUILT_IN)


ALIKE = TaskTable([Subtopology("0", 4, stateful=True)])
STATELESS = TaskTable([Subtopology("0", 4)])
CONNECTORS = TaskTable([Connector("c", 2)])
UNLIKE = TaskTable([Subtopology("0", 4, stateful=True), Subtopology("1", 2, weight=5)])


@pytest.mark.parametrize(
    ("assignor", "values", "table", "expected"),
    [
        ("sticky", {}, ALIKE, []),
        ("high-availability", {"max.warmup.replicas": 3, "num.standby.replicas": 1}, ALIKE, []),
        ("sticky", {"num.standby.replicas": 1}, STATELESS, ['only where a task is "state']),
        ("learner", {"num.standby.replicas": 1}, CONNECTORS, ["stateful"]),
        ("sticky", {"num.standby.replicas": 1}, TaskTable(()), []),
        ("sticky", {"max.warmup.replicas": 3}, ALIKE, ["sticky does not use it (used by: high"]),
        ("eager", {"connect.protocol": "static"}, ALIKE, ["eager does not use it (used by: coop"]),
        ("static", {"connect.protocol": "eager"}, ALIKE, []),
        ("sticky", {"assignor.timeout.ms": 3}, ALIKE, ["not use it (used by: plug-ins)"]),
        (
            "high-availability",
            {"stream.imbalance.percentage": 5},
            ALIKE,
            ["tasks differ in weight"],
        ),
        ("high-availability", {"stream.imbalance.percentage": 5}, UNLIKE, []),
        ("learner", {"stream.imbalance.percentage": 5}, ALIKE, []),
        ("static", {"stream.imbalance.percentage": 5}, ALIKE, ["static does not use it"]),
        (
            "sticky",
            {"rack.aware.assignment.traffic_cost": 3, "rack.aware.assignment.tags": "zone"},
            ALIKE,
            ["only where rack.aware.assignment.strategy is not none", "only where num.standby"],
        ),
        ("some:Plugin", {"max.warmup.replicas": 3, "connect.protocol": "static"}, ALIKE, []),
    ],
)
def test_settings_without_effect_are_reported(
    assignor: str, values: dict[str, object], table: TaskTable, expected: list[str]
) -> None:
    """One line each, in the order of the table; none for settings with effect or not set."""
    lines = ignored_settings(assignor, parse_settings(values, assignor), table)
    assert len(lines) == len(expected)
    for line, key, part in zip(lines, values, expected, strict=False):
        assert line.startswith(f"{key} is ignored: ")
        assert part in line


def _pinned(assignor: str, *protocols: tuple[str, ...], **values: object) -> tuple[str, ...]:
    table = TaskTable([Connector("c1", 2)])
    view = group_view(
        tasks=table,
        settings=parse_settings({k.replace("_", "."): v for k, v in values.items()}, assignor),
        members=("W1", "W2", "W3"),
        static=(frozenset({"c1"}), frozenset(), frozenset({"c1-0"})),
        protocols=protocols or ((), (), ()),
    )
    return ignored_pins(assignor, view)


def test_pins_without_effect_are_reported() -> None:
    """Assignors that pin nothing report them; a Connect group that does not speak `static` too."""
    assert _pinned("static") == _pinned("cooperative", connect_protocol="static") == ()
    assert _pinned("some:Plugin") == ()
    who = "--static of W1 and 1 more is ignored"
    for name in (*ALL, "eager"):
        assert _pinned(name) == (f"{who}: {name} pins nothing (static does)",)
    (line,) = _pinned("cooperative")
    assert line.startswith(f"{who}: the group speaks sessioned; connect.protocol")
    (line,) = _pinned("static", (), ("compatible", "eager"), ())
    assert line.startswith(f"{who}: the group speaks compatible; ")
    assert _pinned("static", ("static",), ("eager",), ()) == ()  # no protocol at all: it fails


def test_a_pinned_worker_learns_from_its_record_that_it_is_not() -> None:
    """The cause of the generation says so; workers log it and `groups describe` shows it."""
    story = Story()
    units = (Subtopology("0", 2),)
    (record,) = [
        r
        for r in story.take(config(*units), join("W1", static=("0_0",))).records
        if isinstance(r, MemberAssignment)
    ]
    assert record.message.endswith(
        "; W1 joined; --static of W1 is ignored: sticky pins nothing (static does)"
    )


def _unit(size: int, *, stateful: bool = True, weight: int = 1, name: str = "0") -> Subtopology:
    racks = tuple(((RACKS[n % 3],),) for n in range(size))
    return Subtopology(name, size, stateful, weight, racks, racks if stateful else None)


def test_learner_warns_that_it_ignores_weights() -> None:
    """The due of the drafts is a number of tasks (S2-28); racks do count."""
    members = {f"P{n}": Member(rack=RACKS[n]) for n in range(3)}
    learner = registry.get("learner")
    assert learner.assign(group([_unit(3)], members, "learner", **STRATEGY)).warnings == ()
    units = [_unit(3), _unit(3, stateful=False, weight=5, name="1")]
    assert learner.assign(group(units, members, "learner")).warnings == (
        "task weights are ignored: learner balances the number of tasks (S2-28)",
    )
    assert learner.assign(group([_unit(3)], members, "learner")).warnings == ()


def test_giving_up_reliability_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """More choices than the exact flow takes: a warning names the setting (S4-31)."""
    members = {f"P{n}": Member(rack=RACKS[n % 3]) for n in range(6)}
    config = {
        **STRATEGY,
        "num_standby_replicas": 1,
        "rack_aware_standby_strategy": "reliability_then_traffic",
    }
    view = group([_unit(6)], members, **config)
    assert registry.get("high-availability").assign(view).warnings == ()
    monkeypatch.setattr(standby, "MAX_ARCS", 0)
    (warning,) = registry.get("high-availability").assign(view).warnings
    assert warning.startswith(
        "rack.aware.standby.strategy=reliability_then_traffic is not honoured"
    )


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_several_tags_is_true(seed: int) -> None:
    """Brute force over all standbys at equal counts, without tags, gives the reported bound."""
    rng = np.random.default_rng(seed)
    names = [f"P{n}" for n in range(5)]
    owner = rng.permutation(5)[:4]
    copy = [int(rng.choice([m for m in range(5) if m != owner[t]])) for t in range(4)]
    members = {
        name: Member(
            rack=RACKS[int(rng.integers(3))],
            tags={"zone": str(n % 2), "cluster": str(n % 3)},
            active=[f"0_{t}" for t in range(4) if owner[t] == n],
            standby=[f"0_{t}" for t in range(4) if copy[t] == n],
        )
        for n, name in enumerate(names)
    }
    config = {**STRATEGY, "rack_aware_assignment_tags": "zone,cluster"}
    view = group([_unit(4)], members, **config)
    racks, _ = racks_of(view, AVAILABILITY, standbys=True)
    assert racks is not None
    assert racks.changelogs is not None
    optimised = optimised_standbys(view, racks, view.active)
    across = racks.changelogs.across[racks.changelogs.class_of][:, view.rack]
    least = min(
        sum(int(across[t, m]) for t, m in enumerate(holders)) * racks.stateful.traffic
        for holders in set(itertools.permutations(copy))
        if all(m != owner[t] for t, m in enumerate(holders))
    )
    assert optimised.bound == least <= optimised.cost
