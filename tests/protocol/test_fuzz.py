"""The first inputs of every fuzz run: `fuzz.py` goes on from there for as long as one likes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
fuzz = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = fuzz
_SPEC.loader.exec_module(fuzz)


@pytest.mark.parametrize("name", fuzz.SUBJECTS)
def test_nothing_but_its_errors_comes_out(name: str) -> None:
    """Mutated inputs of a seed: a reader answers, or refuses with an error of ours."""
    for each in itertools.islice(fuzz.inputs(name, 7), 250):
        try:
            fuzz.SUBJECTS[name].read(each)
        except Exception as error:
            raise AssertionError(f"{name}: {each.hex()}") from error


@pytest.mark.parametrize("name", fuzz.SUBJECTS)
def test_good_inputs_are_read(name: str) -> None:
    """What is mutated is not refused to begin with: most of it is taken as it stands."""
    for each in fuzz.SUBJECTS[name].corpus():
        fuzz.SUBJECTS[name].read(each)
