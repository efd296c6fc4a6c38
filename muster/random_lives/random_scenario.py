"""Random scenarios of ordinary groups ("lives"), in the format of `muster simulate`, from a seed.

Some members start. Then members join, leave, crash, return, are drained, or are restarted one after
the other, and the config changes. There are three kinds of members: some have a copy at once and
report it ready, some restore and then report it ready, some report lags. They take different times
to stop tasks. One group in six has connectors and an assignor of Connect; its members restrict no
topics, and in a `static` group some of them name jobs. After the last event the scenario continues
for hours, in which the group must settle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from muster.protocol.settings import CONNECT_ASSIGNORS, DEFAULT_ASSIGNOR, parse_settings
from muster.random_lives.changes import SHARE, Changes

ASSIGNORS = ("high-availability",) * 4 + ("sticky",) * 2 + ("learner",) * 2 + ("fallback",)
CONNECT_SHARE = 1 / 6
"""How many groups have connectors."""
RACKS = ("r0", "r1", "r2")
ZONES = ("a", "b", "c")
MEMBERS_MAX = 8
SPACINGS_MS = (0, 200, 3_000, 30_000, 120_000, 700_000)
"""Choices for the time between two events."""
HEARTBEAT_MS, SESSION_MS = 15_000, 60_000
REST_MS = 3_600_000
"""Minimum time after the last event."""
PROBING_KEY, PROBING_MS = "probing.rebalance.interval.ms", 600_000

Row = dict[str, Any]


def random_scenario(
    seed: int,
    fixed: Mapping[str, Any] | None = None,
    *,
    connect: bool = True,
    changes: bool = False,
) -> Row:
    """A random scenario in JSON values (`docs/cli.md`, `muster simulate`).

    Args:
        seed: any number; the same seed gives the same scenario.
        fixed: a scenario whose group and events are used too; None = the group is random as well.
        connect: whether a random group may be one of connectors.
        changes: whether operators' changes may follow the events of a random group (`changes.py`);
            the events before them are the same with and without.
    """
    connect_rng = Random(f"connect/{seed}")  # noqa: S311 — no secret
    connect = connect and not fixed and connect_rng.random() < CONNECT_SHARE
    assignor = connect_rng.choice(CONNECT_ASSIGNORS) if connect else None
    rng = Random(f"lives/{seed}")  # noqa: S311 — no secret
    changes_rng = Random(f"changes/{seed}")  # noqa: S311 — no secret
    changes = changes and not fixed and changes_rng.random() < SHARE
    life = Life(rng, fixed or {}, assignor, connect_rng)
    return life.scenario(changes_rng if changes else None)


class Life:
    """Builds one scenario."""

    def __init__(
        self,
        rng: Random,
        fixed: Mapping[str, Any],
        connect_assignor: str | None,
        connect_rng: Random,
    ) -> None:
        self.rng, self.connect_rng = rng, connect_rng
        self.connect_assignor = connect_assignor
        self.racks = rng.random() < 0.3
        self.zones = rng.random() < 0.2
        self.restricted = rng.random() < 0.1 and connect_assignor is None
        self.mixed = rng.random() < 0.4
        self.kind = rng.choice(("exec", "ready", "lag"))
        self.fixed = fixed
        self.group: Row = fixed["group"] if "group" in fixed else self._group()
        if connect_assignor is not None:
            self.group = self._group_of_connectors(connect_assignor)
        assignor = self.group.get("assignor", DEFAULT_ASSIGNOR)
        settings = parse_settings(self.group.get("config", {}), assignor)
        self.heartbeat_ms = min(HEARTBEAT_MS, settings.session_timeout_ms // 3)
        self.units = [row["subtopology"] for row in self._subtopologies()]
        self.events: list[Row] = []
        self.at_ms = 0
        self.present: list[str] = []
        self.ended: list[str] = []
        self.static: set[str] = set()
        self.names = 0

    def scenario(self, changes_rng: Random | None = None) -> Row:
        """The scenario; with a generator of random numbers, changes follow the first events."""
        rng = self.rng
        at_once = rng.random() < 0.7
        for _ in range(rng.randint(1, 5)):
            self._join()
            self.at_ms += 0 if at_once else rng.choice(SPACINGS_MS[1:4])
        for _ in range(rng.randint(2, 7)):
            self.at_ms += rng.choice(SPACINGS_MS)
            self.add_random_event()
        if changes_rng is not None:
            Changes(self, changes_rng).add()
        self.events += self.fixed.get("events", [])
        self.events.sort(key=lambda row: int(row["at_ms"]))
        first = {PROBING_KEY: PROBING_MS, **self.group.get("config", {})}
        configs = [first, *(row.get("config", {}) for row in self.events)]
        probing_ms = max(int(row.get(PROBING_KEY, 0)) for row in configs)
        until_ms = self.events[-1]["at_ms"] + REST_MS + 4 * probing_ms
        return {**self.fixed, "group": self.group, "events": self.events, "until_ms": until_ms}

    # ------------------------------------------------------------------------------- the group

    def _group(self) -> Row:
        rng = self.rng
        assignor = rng.choice(ASSIGNORS)
        tasks = [self._unit(str(n)) for n in range(rng.choice((1, 1, 2, 3)))]
        if rng.random() < 0.15:
            tasks[0]["weight"] = rng.randint(2, 5)
        config: Row = {
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "num.standby.replicas": rng.choice((0, 1, 1, 2)),
        }
        if rng.random() < 0.3:
            config["max.warmup.replicas"] = rng.choice((1, 3, 100))
        if rng.random() < 0.3:
            config[PROBING_KEY] = 60_000
        if rng.random() < 0.2:
            config["acceptable.recovery.lag"] = rng.choice((0, 100_000))
        if self.racks:
            config["rack.aware.assignment.strategy"] = rng.choice(
                ("min_traffic", "balance_subtopology")
            )
        if self.zones:
            config["rack.aware.assignment.tags"] = "zone"
        if assignor == "learner" and rng.random() < 0.3:
            config["learner.partial.rebalance"] = False
        if rng.random() < 0.1:
            config["scale.down.timeout.ms"] = 60_000
        if rng.random() < 0.1:
            config["assignment.interval.ms"] = 5_000
        return {"assignor": assignor, "config": config, "tasks": tasks}

    def _group_of_connectors(self, assignor: str) -> Row:
        """The group, with connectors in place of subtopologies."""
        delay_ms = self.connect_rng.choice((0, 30_000, 300_000))
        config: Row = {
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
        }
        if assignor != "eager":
            config["scheduled.rebalance.max.delay.ms"] = delay_ms
        tasks = [
            {"connector": row["subtopology"], "tasks": row["partitions"]}
            for row in self.group["tasks"]
        ]
        return {"assignor": assignor, "config": config, "tasks": tasks}

    def _unit(self, name: str) -> Row:
        rng = self.rng
        partitions = rng.randint(1, 8)
        row: Row = {
            "subtopology": name,
            "partitions": partitions,
            "stateful": rng.random() < 0.7,
        }
        if self.racks:
            row["source_racks"] = [sorted(rng.sample(RACKS, 2)) for _ in range(partitions)]
            if row["stateful"]:
                row["changelog_racks"] = [sorted(rng.sample(RACKS, 2)) for _ in range(partitions)]
        return row

    def _subtopologies(self) -> list[Row]:
        return [row for row in self.group.get("tasks", []) if "subtopology" in row]

    # ------------------------------------------------------------------------------ what happens

    def event(self, **event: object) -> None:
        """Something happens now."""
        self.events.append({"at_ms": self.at_ms, **event})

    def add_random_event(self) -> None:
        """Something ordinary happens now."""
        ends = [partial(self._end, how) for how in ("leave", "crash")]
        choices: list[Callable[[], None]] = [self._join, self._join, *ends, self._restart]
        choices += [self._return] * (2 if self.ended else 0)
        choices += [self._drain, self._roll]
        choices += [] if self.fixed else [self._configure, self._grow]
        self.rng.choice(choices)()

    def _join(self) -> None:
        if len(self.present) >= MEMBERS_MAX:
            return
        rng, name = self.rng, f"M{self.names + 1}"
        self.names += 1
        row: Row = {"id": name, "heartbeat_ms": self.heartbeat_ms, **self._timing()}
        row["capacity"] = rng.choice((1, 1, 2, 3)) if self.mixed else 1
        if rng.random() < 0.25:
            row["instance_id"] = f"i-{name}"
            self.static.add(name)
        if self.racks:
            row["rack"] = rng.choice(RACKS)
        if self.zones:
            row["tags"] = {"zone": rng.choice(ZONES)}
        if self.restricted and self.units and rng.random() < 0.5:
            row["topics"] = sorted(rng.sample(self.units, rng.randint(1, len(self.units))))
        if self.connect_assignor == "static" and self.connect_rng.random() < 0.3:
            row["static"] = sorted(self._jobs(self.connect_rng.randint(1, 2)))
        self.present.append(name)
        self.event(join=row)

    def _timing(self) -> Row:
        """How long a member takes to stop and restore tasks, and how it reports a ready copy."""
        rng = self.rng
        kind = rng.choice(("exec", "ready", "lag")) if self.mixed else self.kind
        row: Row = {"tells": "lag" if kind == "lag" else "ready"}
        row["restore_ms"] = 0 if kind == "exec" else rng.choice((500, 5_000, 45_000))
        row["ack_ms"] = rng.choice((0, 0, 300, 3_000))
        row["ack_step_ms"] = rng.choice((0, 0, 20, 700))
        return row

    def _one(self) -> str | None:
        return self.rng.choice(self.present) if self.present else None

    def _end(self, how: str) -> None:
        name = self._one()
        if name is None:
            return
        self.present.remove(name)
        self.ended.append(name)
        self.event(**{how: name})

    def _restart(self) -> None:
        """A member ends and returns after a short or a longer time."""
        name = self._one()
        if name is None:
            return
        how = self.rng.choice(("leave", "crash"))
        temporary = how == "leave" and name in self.static
        self.event(**{how: name}, **({"temporary": True} if temporary else {}))
        self.at_ms += self.rng.choice((500, 4_000, 20_000, 90_000))
        self.event(**{"return": name})

    def _return(self) -> None:
        name = self.rng.choice(self.ended)
        self.ended.remove(name)
        self.present.append(name)
        self.event(**{"return": name})

    def _drain(self) -> None:
        name = self._one()
        if name is not None:
            self.event(drain=name)

    def _roll(self) -> None:
        """Every member is restarted, one after the other."""
        pause_ms = self.rng.choice((1_000, 5_000, 60_000))
        down_ms = self.rng.choice((500, 4_000, 20_000))
        for name in list(self.present):
            temporary = {"temporary": True} if name in self.static else {}
            self.event(leave=name, **temporary)
            self.at_ms += down_ms
            self.event(**{"return": name})
            self.at_ms += pause_ms

    def _jobs(self, count: int) -> list[str]:
        """Some jobs of the group: connectors and their tasks."""
        rows = self.latest_tasks()
        jobs = [row["connector"] for row in rows]
        jobs += [f"{row['connector']}-{n}" for row in rows for n in range(row["tasks"])]
        return self.connect_rng.sample(jobs, min(count, len(jobs)))

    def _configure(self) -> None:
        if self.connect_assignor is not None:
            self.event(config={"rebalance.timeout.ms": self.connect_rng.choice((10_000, 60_000))})
            return
        key, values = self.rng.choice(
            (("num.standby.replicas", (0, 1, 2)), ("max.warmup.replicas", (1, 2, 5)))
        )
        self.event(config={key: self.rng.choice(values)})

    def _grow(self) -> None:
        """A subtopology gets more partitions, or another is added; both for connectors."""
        tasks = [dict(row) for row in self.latest_tasks()]
        if self.connect_assignor is not None:
            tasks[0]["tasks"] += self.connect_rng.randint(1, 4)
            tasks.append({"connector": str(len(tasks)), "tasks": self.connect_rng.randint(1, 8)})
            self.event(tasks=tasks)
            return
        if self.racks or self.rng.random() < 0.5:
            self.units.append(str(len(tasks)))
            tasks.append(self._unit(str(len(tasks))))
        else:
            tasks[0]["partitions"] += self.rng.randint(1, 4)
        self.event(tasks=tasks)

    def member_row(self, name: str) -> Row:
        """The properties with which a member joined last."""
        joins = (row["join"] for row in reversed(self.events) if "join" in row)
        return dict(next(row for row in joins if row["id"] == name))

    def latest_tasks(self) -> list[Row]:
        """The group's tasks now."""
        for event in reversed(self.events):
            if "tasks" in event:
                latest: list[Row] = event["tasks"]
                return latest
        return list(self.group["tasks"])
