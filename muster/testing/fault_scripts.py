"""Faults as values, scripts of them, and a hypothesis strategy that invents scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.errors import BadInput

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

WORKERS = ("W1", "W2", "W3")
NAMES = (
    *("freeze", "partition", "kill", "restart", "stop", "drain", "undrain"),
    *("restart_coordinator", "lose_checkpoint", "coordinator_away", "kafka_away"),
)
OF_A_WORKER = frozenset(NAMES[:7])
LASTING = frozenset({"freeze", "partition", "restart", "coordinator_away", "kafka_away"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        what: one of `NAMES`.
        worker: the worker it happens to; None for the others.
        lasts_s: seconds that it lasts, or that a process is away.
        pause_s: seconds until the next fault.

    Raises:
        BadInput: there is no such fault, or it needs a worker, or it has none.
    """

    what: str
    worker: str | None = None
    lasts_s: int = 0
    pause_s: int = 0

    def __post_init__(self) -> None:
        if self.what not in NAMES:
            raise BadInput(f"fault {self.what!r}: expected one of {', '.join(NAMES)}")
        if (self.worker is not None) != (self.what in OF_A_WORKER):
            expected = "the worker's name" if self.what in OF_A_WORKER else "None"
            raise BadInput(f"fault {self.what!r}: worker {self.worker!r}: expected {expected}")

    def __str__(self) -> str:
        about = "" if self.worker is None else f" {self.worker}"
        lasts = f" for {self.lasts_s} s" if self.what in LASTING else ""
        return f"{self.what}{about}{lasts}, then {self.pause_s} s"


@dataclass(frozen=True, slots=True)
class Script:
    """Faults, one after the other; `Environment.play` carries them out."""

    faults: tuple[Fault, ...]

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.faults)

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults)) or "no faults"


def faults(
    workers: Sequence[str] = WORKERS,
    *,
    kinds: Sequence[str] = NAMES,
    most: int = 8,
    lasts_s: int = 90,
    pause_s: int = 60,
) -> SearchStrategy[Script]:
    """A hypothesis strategy of fault scripts; a failing script is shrunk to few, short faults.

    Args:
        workers: member ids to which faults happen.
        kinds: which faults, of `NAMES`.
        most: greatest number of faults.
        lasts_s: longest time in seconds that one lasts.
        pause_s: longest time in seconds between two.

    Raises:
        ImportError: hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st  # only those who call this need it
    except ImportError as missing:
        raise ImportError("pip install 'muster-kafka[testing]' installs hypothesis") from missing

    def one(what: str) -> SearchStrategy[Fault]:
        given: dict[str, SearchStrategy[Any]] = {"pause_s": st.integers(0, pause_s)}
        if what in OF_A_WORKER:
            given["worker"] = st.sampled_from(list(workers))
        if what in LASTING:
            given["lasts_s"] = st.integers(1, lasts_s)
        return st.builds(Fault, what=st.just(what), **given)

    return st.lists(st.one_of([one(what) for what in kinds]), max_size=most).map(
        lambda moments: Script(tuple(moments))
    )
