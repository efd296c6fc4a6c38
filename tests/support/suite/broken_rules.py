"""Breaks a rule in the product's code, to show that a test finds it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable

import pytest


def broken_source(function: Callable[..., object], old: str, new: str) -> str:
    """The source of a function in which one expression is replaced by another.

    Raises:
        AssertionError: the expression is not there once, or the new source cannot be compiled.
    """
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has changed: {old}"
    broken = source.replace(old, new)
    try:
        compile(broken, function.__qualname__, "exec")
    except SyntaxError as error:
        raise AssertionError(f"{function.__qualname__} with {new!r} is no Python") from error
    return broken


def break_function(
    function: Callable[..., object],
    old: str,
    new: str,
    monkeypatch: pytest.MonkeyPatch,
    packages: tuple[str, ...] = ("muster.",),
) -> Callable[..., object]:
    """Replace one expression of a function or method, in every module that has imported it.

    Args:
        function: the function that holds the rule.
        old: the expression; it must occur once in the function's source.
        new: what replaces it.
        monkeypatch: undoes the replacement at the end of the test.
        packages: beginnings of the names of the modules in which it is replaced.

    Returns:
        The broken function.
    """
    source = broken_source(function, old, new)
    module = sys.modules[function.__module__]
    defined: dict[str, Callable[..., object]] = {}
    exec(source, vars(module), defined)
    (broken,) = defined.values()
    owner, _, name = function.__qualname__.rpartition(".")
    if owner:
        monkeypatch.setattr(getattr(module, owner), name, broken)
    for other in list(sys.modules.values()):
        if other.__name__.startswith(packages) and getattr(other, name, None) is function:
            monkeypatch.setattr(other, name, broken)
    return broken
