"""Large group batches without child processes: a test says when their results are there."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from muster.state.assignor_outcome import Aside, Question
from muster.streams import processor
from muster.streams.batch import batches_aside


class Desk:
    """Stands in for `Asides`: computes an answer when it is asked first, and gives it when it may.

    Attributes:
        is_ready: whether it gives its answers.
        is_full: whether no more batches may be asked for.
        failure: what it gives in place of them; None = it gives them.
        begun: the questions, each once.
    """

    def __init__(self) -> None:
        self.is_ready = self.is_full = False
        self.failure: str | None = None
        self.begun: list[Question] = []
        self._answers: dict[Question, bytes] = {}
        self._processor: processor.GroupProcessor | None = None

    def of(self, prefix: str) -> Aside:
        """`ask` for the groups of a topic prefix."""
        return lambda question, work: self.ask((f"{prefix} {question[0]}", *question[1:]), work)

    def serve(self, run: processor.GroupProcessor) -> None:
        """Compute the large group batches of a processor."""
        run._placements, run._batches = self.of, self  # type: ignore[assignment]
        self._processor = run

    def ask(self, question: Question, work: Callable[[], Any]) -> Any:
        """Begin to compute an answer, or give it; what the work changes in memory is lost."""
        if question not in self._answers:
            self.begun.append(question)
            before = dict(vars(self._processor))
            self._answers[question] = pickle.dumps(work())
            vars(self._processor).update(before)
            return None
        if self.failure is not None:
            return self.failure
        return pickle.loads(self._answers.pop(question)) if self.is_ready else None


def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group batch with a config is large."""
    monkeypatch.setattr(batches_aside, "LARGE_CONFIG_BYTES", 0)
