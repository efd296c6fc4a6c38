"""The first inputs of every fuzz run; `fuzz.py` runs for any time."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pytest
from support.suite.examples import examples

_SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
fuzz = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = fuzz
_SPEC.loader.exec_module(fuzz)


@pytest.mark.parametrize("name", fuzz.SUBJECTS)
def test_readers_raise_only_their_errors(name: str) -> None:
    """Mutated inputs of a seed: a reader answers or raises one of muster's errors."""
    for each in itertools.islice(fuzz.inputs(name, 7), examples(1_200)):
        try:
            fuzz.SUBJECTS[name].read(each)
        except Exception as error:
            raise AssertionError(f"{name}: {each.hex()}") from error


@pytest.mark.parametrize("name", fuzz.SUBJECTS)
def test_valid_inputs_are_read(name: str) -> None:
    """The inputs that are mutated are valid, most of them at least."""
    for each in fuzz.SUBJECTS[name].corpus():
        fuzz.SUBJECTS[name].read(each)


def test_every_valid_problem_has_an_answer() -> None:
    """Damage to a problem would show nothing if the problem was refused before."""
    for each in fuzz.good_problems():
        assert fuzz.solve(json.loads(each))
