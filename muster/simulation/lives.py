"""Random lives of ordinary fleets, as scenarios that `muster simulate` reads: a seed, a life.

A fleet starts; then members join, leave, crash, come back, are drained or restarted one after the
other, and the config changes. Members are of three tempers: some can serve a copy at once and say
so, some restore and say when they are done, some tell how far behind their copies are. They stop
tasks at different speeds. After the last event the life goes on for hours, in which the group must
come to rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

ASSIGNORS = ("high-availability",) * 4 + ("sticky",) * 2 + ("learner",) * 2 + ("fallback",)
RACKS = ("r0", "r1", "r2")
ZONES = ("a", "b", "c")
MEMBERS_MAX = 8
SPACINGS_MS = (0, 200, 3_000, 30_000, 120_000, 700_000)
"""How far two events of a life may be apart."""
HEARTBEAT_MS, SESSION_MS = 15_000, 60_000
REST_MS = 3_600_000
"""How long a life goes on after its last event, at least."""
PROBING_KEY, PROBING_MS = "probing.rebalance.interval.ms", 600_000

Row = dict[str, Any]


def invented(seed: int, given: Mapping[str, Any] | None = None) -> Row:
    """A life as a scenario in JSON values (`docs/cli.md`, `muster simulate`).

    Args:
        seed: any number; the same number, the same life.
        given: a scenario whose group it is, and what happens besides; None = the group is invented,
            too.
    """
    return _Life(Random(f"lives/{seed}"), given or {}).scenario()  # noqa: S311 — no secret


class _Life:
    """Events in the making."""

    def __init__(self, chance: Random, given: Mapping[str, Any]) -> None:
        self.chance = chance
        self.racks = chance.random() < 0.3
        self.zones = chance.random() < 0.2
        self.restricted = chance.random() < 0.1
        self.mixed = chance.random() < 0.4
        self.temper = chance.choice(("exec", "ready", "lag"))
        self.given = given
        self.group: Row = given["group"] if "group" in given else self._group()
        self.units = [row["subtopology"] for row in self._subtopologies()]
        self.events: list[Row] = []
        self.at_ms = 0
        self.here: list[str] = []
        self.gone: list[str] = []
        self.static: set[str] = set()
        self.names = 0

    def scenario(self) -> Row:
        """The whole life."""
        chance = self.chance
        at_once = chance.random() < 0.7
        for _ in range(chance.randint(1, 5)):
            self._join()
            self.at_ms += 0 if at_once else chance.choice(SPACINGS_MS[1:4])
        for _ in range(chance.randint(2, 7)):
            self.at_ms += chance.choice(SPACINGS_MS)
            self._something()
        self.events += self.given.get("events", [])
        self.events.sort(key=lambda row: int(row["at_ms"]))
        probing_ms = int(self.group.get("config", {}).get(PROBING_KEY, PROBING_MS))
        until_ms = self.events[-1]["at_ms"] + REST_MS + 4 * probing_ms
        return {**self.given, "group": self.group, "events": self.events, "until_ms": until_ms}

    # ------------------------------------------------------------------------------- the group

    def _group(self) -> Row:
        chance = self.chance
        assignor = chance.choice(ASSIGNORS)
        tasks = [self._unit(str(n)) for n in range(chance.choice((1, 1, 2, 3)))]
        if chance.random() < 0.15:
            tasks[0]["weight"] = chance.randint(2, 5)
        config: Row = {
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "session.timeout.ms": SESSION_MS,
            "num.standby.replicas": chance.choice((0, 1, 1, 2)),
        }
        if chance.random() < 0.3:
            config["max.warmup.replicas"] = chance.choice((1, 3, 100))
        if chance.random() < 0.3:
            config[PROBING_KEY] = 60_000
        if chance.random() < 0.2:
            config["acceptable.recovery.lag"] = chance.choice((0, 100_000))
        if self.racks:
            config["rack.aware.assignment.strategy"] = chance.choice(
                ("min_traffic", "balance_subtopology")
            )
        if self.zones:
            config["rack.aware.assignment.tags"] = "zone"
        if assignor == "learner" and chance.random() < 0.3:
            config["learner.partial.rebalance"] = False
        if chance.random() < 0.1:
            config["scale.down.timeout.ms"] = 60_000
        if chance.random() < 0.1:
            config["assignment.interval.ms"] = 5_000
        return {"assignor": assignor, "config": config, "tasks": tasks}

    def _unit(self, name: str) -> Row:
        chance = self.chance
        partitions = chance.randint(1, 8)
        row: Row = {
            "subtopology": name,
            "partitions": partitions,
            "stateful": chance.random() < 0.7,
        }
        if self.racks:
            row["source_racks"] = [sorted(chance.sample(RACKS, 2)) for _ in range(partitions)]
            if row["stateful"]:
                row["changelog_racks"] = [
                    sorted(chance.sample(RACKS, 2)) for _ in range(partitions)
                ]
        return row

    def _subtopologies(self) -> list[Row]:
        return [row for row in self.group.get("tasks", []) if "subtopology" in row]

    # ------------------------------------------------------------------------------ what happens

    def _add(self, **event: object) -> None:
        self.events.append({"at_ms": self.at_ms, **event})

    def _something(self) -> None:
        deeds = [self._join, self._join, self._leave, self._crash, self._restart]
        deeds += [self._return] * (2 if self.gone else 0)
        deeds += [self._drain, self._roll]
        deeds += [] if self.given else [self._configure, self._grow]
        self.chance.choice(deeds)()

    def _join(self) -> None:
        if len(self.here) >= MEMBERS_MAX:
            return
        chance, name = self.chance, f"M{self.names + 1}"
        self.names += 1
        row: Row = {"id": name, "heartbeat_ms": HEARTBEAT_MS, **self._temper()}
        row["capacity"] = chance.choice((1, 1, 2, 3)) if self.mixed else 1
        if chance.random() < 0.25:
            row["instance_id"] = f"i-{name}"
            self.static.add(name)
        if self.racks:
            row["rack"] = chance.choice(RACKS)
        if self.zones:
            row["tags"] = {"zone": chance.choice(ZONES)}
        if self.restricted and self.units and chance.random() < 0.5:
            row["topics"] = sorted(chance.sample(self.units, chance.randint(1, len(self.units))))
        self.here.append(name)
        self._add(join=row)

    def _temper(self) -> Row:
        """How a member stops tasks, and how it tells that it has caught up."""
        chance = self.chance
        temper = chance.choice(("exec", "ready", "lag")) if self.mixed else self.temper
        row: Row = {"tells": "lag" if temper == "lag" else "ready"}
        row["restore_ms"] = 0 if temper == "exec" else chance.choice((500, 5_000, 45_000))
        row["ack_ms"] = chance.choice((0, 0, 300, 3_000))
        row["ack_step_ms"] = chance.choice((0, 0, 20, 700))
        return row

    def _one(self) -> str | None:
        return self.chance.choice(self.here) if self.here else None

    def _goes(self, how: str, *, temporary: bool = False) -> str | None:
        name = self._one()
        if name is None:
            return None
        self.here.remove(name)
        self.gone.append(name)
        self._add(**{how: name}, **({"temporary": True} if temporary else {}))
        return name

    def _leave(self) -> None:
        self._goes("leave")

    def _crash(self) -> None:
        self._goes("crash")

    def _restart(self) -> None:
        """A member ends and is back soon, or not so soon."""
        name = self._one()
        if name is None:
            return
        how = self.chance.choice(("leave", "crash"))
        temporary = how == "leave" and name in self.static
        self._add(**{how: name}, **({"temporary": True} if temporary else {}))
        self.at_ms += self.chance.choice((500, 4_000, 20_000, 90_000))
        self._add(**{"return": name})

    def _return(self) -> None:
        name = self.chance.choice(self.gone)
        self.gone.remove(name)
        self.here.append(name)
        self._add(**{"return": name})

    def _drain(self) -> None:
        name = self._one()
        if name is not None:
            self._add(drain=name)

    def _roll(self) -> None:
        """Every member is restarted, one after the other."""
        pause_ms = self.chance.choice((1_000, 5_000, 60_000))
        down_ms = self.chance.choice((500, 4_000, 20_000))
        for name in list(self.here):
            temporary = {"temporary": True} if name in self.static else {}
            self._add(leave=name, **temporary)
            self.at_ms += down_ms
            self._add(**{"return": name})
            self.at_ms += pause_ms

    def _configure(self) -> None:
        key, values = self.chance.choice(
            (("num.standby.replicas", (0, 1, 2)), ("max.warmup.replicas", (1, 2, 5)))
        )
        self._add(config={key: self.chance.choice(values)})

    def _grow(self) -> None:
        """A subtopology gets partitions, or another one comes."""
        tasks = [dict(row) for row in self._latest()]
        if self.racks or self.chance.random() < 0.5:
            self.units.append(str(len(tasks)))
            tasks.append(self._unit(str(len(tasks))))
        else:
            tasks[0]["partitions"] += self.chance.randint(1, 4)
        self._add(tasks=tasks)

    def _latest(self) -> list[Row]:
        for event in reversed(self.events):
            if "tasks" in event:
                latest: list[Row] = event["tasks"]
                return latest
        return list(self.group["tasks"])
