"""Carries out faults of a script, and ends those that last when their time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.testing.fault_scripts import Fault

if TYPE_CHECKING:
    from muster.testing.environment import Environment


class Player:
    """Carries out faults in an environment."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        # (fault, worker) -> when it ends; of two that overlap, the later end counts.
        self._ends_s: dict[tuple[str, str], float] = {}

    def carry_out(self, fault: Fault) -> None:
        """Carry out a fault; nothing happens if its worker has ended."""
        name = fault.worker
        if name is None:
            self._carry_out_for_all(fault)
            return
        worker = self._env.workers.get(name)
        if worker is None or worker.has_ended:
            return
        env = self._env
        match fault.what:
            case "freeze":
                env.freeze(name)
                self._end_later(fault, name, lambda: env.thaw(name))
            case "partition":
                env.partition(name)
                self._end_later(fault, name, lambda: env.heal(name))
            case "kill":
                self._kill(name)
            case "restart":
                self._kill(name)
                self._end_later(fault, name, lambda: env.start(name))
            case "stop":
                if worker.is_reachable:
                    env.ask_to_leave(name)
            case "drain" | "undrain":
                env.drain(name, on=fault.what == "drain")

    def forget_ends(self) -> None:
        """Every fault has ended: none is ended later."""
        self._ends_s.clear()

    def _carry_out_for_all(self, fault: Fault) -> None:
        match fault.what:
            case "restart_coordinator":
                self._env.restart_coordinator(written=50)
            case "lose_checkpoint":
                self._env.lose_checkpoint()
            case "coordinator_away":
                self._env.coordinator_away(fault.lasts_s)
            case "kafka_away":
                self._env.kafka_away(fault.lasts_s)

    def _kill(self, name: str) -> None:
        for what in ("freeze", "partition"):  # of the process that ends here
            self._ends_s.pop((what, name), None)
        self._env.kill(name)

    def _end_later(self, fault: Fault, name: str, end: Callable[[], object]) -> None:
        key = (fault.what, name)
        ends_s = self._env.now + fault.lasts_s
        self._ends_s[key] = max(ends_s, self._ends_s.get(key, 0.0))

        def end_if_over() -> None:
            if self._ends_s.get(key) == ends_s:
                del self._ends_s[key]
                end()

        self._env.later(fault.lasts_s, end_if_over)
