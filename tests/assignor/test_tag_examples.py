"""KIP-708's worked examples of standbys that differ in client tags: EX-T1 to EX-T7."""

from __future__ import annotations

import pytest
from support.assignor.placing import Held, Member, group, holdings, stateful

from muster.assignor import check
from muster.assignor.high_availability_assignor import HighAvailability


def _placed(partitions: int, members: dict[str, Member], tags: str, standbys: int) -> Held:
    view = group(
        stateful(partitions),
        members,
        num_standby_replicas=standbys,
        rack_aware_assignment_tags=tags,
    )
    placement = HighAvailability().assign(view)
    check.valid(view, placement)
    return holdings(view, placement)


def _at(cluster: str, zone: str, *active: str) -> Member:
    return Member(tags={"cluster": cluster, "zone": zone}, active=active)


def test_EX_T1_copy_differs_in_zone_and_cluster() -> None:
    """Four members in two zones and two clusters: the copy differs in both."""
    members = {
        "Client-1": _at("1", "a", "0_0"),
        "Client-2": _at("1", "b"),
        "Client-3": _at("2", "a"),
        "Client-4": _at("2", "b"),
    }
    held = _placed(1, members, "zone,cluster", 1)
    assert [name for name, (_, standby, _) in held.items() if standby] == ["Client-4"]


def test_EX_T2_first_copy_differs_in_both() -> None:
    """Two clusters, three zones, two copies: the first differs in both, the second in the zone."""
    members = {
        "P1": _at("c1", "z1", "0_0"),
        "P2": _at("c1", "z2"),
        "P3": _at("c1", "z3"),
        "P4": _at("c2", "z1"),
        "P5": _at("c2", "z2"),
        "P6": _at("c2", "z3", "0_1"),
    }
    held = _placed(2, members, "cluster,zone", 2)
    first = {name for name, (_, standby, _) in held.items() if "0_0" in standby}
    second = {name for name, (_, standby, _) in held.items() if "0_1" in standby}
    assert len(first) == len(second) == 2
    assert "P5" in first
    assert first & {"P3", "P6"}
    assert "P2" in second
    assert second & {"P4", "P1"}


def test_EX_T3_six_members_in_three_zones() -> None:
    """Six members in three zones, one active each: one standby each, never in its zone."""
    members = {f"P{n}": _at("c", f"z{n % 3}", f"0_{n}") for n in range(6)}
    held = _placed(6, members, "zone", 1)
    assert [len(standby) for _, standby, _ in held.values()] == [1] * 6
    for name, (_, standby, _) in held.items():
        owner = standby[0].replace("0_", "P")
        assert members[owner].tags["zone"] != members[name].tags["zone"]


def test_EX_T4_only_the_cluster_counts() -> None:
    """Only the cluster counts: the copy goes to the other cluster, zone or not."""
    members = {"P1": _at("c1", "z1", "0_0"), "P2": _at("c1", "z2"), "P3": _at("c2", "z1")}
    held = _placed(1, members, "cluster", 1)
    assert held["P3"] == ([], ["0_0"], [])


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_EX_T5_equal_tags(count: int) -> None:
    """Equal tags everywhere: one standby per member."""
    members = {f"P{n}": _at("c", "z", f"0_{n}") for n in range(count)}
    held = _placed(count, members, "cluster,zone", 1)
    assert [len(standby) for _, standby, _ in held.values()] == [1] * count


def test_EX_T6_same_word_under_two_keys() -> None:
    """The same word under two keys is two values: all of them count as different."""
    members = {
        "P1": Member(tags={"k1": "x", "k2": "y"}, active=["0_0"]),
        "P2": Member(tags={"k1": "x", "k2": "z"}),
        "P3": Member(tags={"k1": "y", "k2": "x"}),
    }
    held = _placed(1, members, "k1,k2", 1)
    assert held["P3"] == ([], ["0_0"], [])


def test_EX_T7_single_member() -> None:
    """A single member keeps no standbys."""
    assert _placed(2, {"P1": _at("c", "z")}, "cluster", 1) == {"P1": (["0_0", "0_1"], [], [])}
