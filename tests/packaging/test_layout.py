"""The four source folders, their links in `muster/`, and the table of packages agree."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("protocol", "assignor", "state", "streams")
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


@pytest.mark.parametrize("room", ROOMS)
def test_link_leads_to_the_room(room: str) -> None:
    """Static tools read a folder through muster/<room>, a relative link to it."""
    link = ROOT / "muster" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_built_from_its_folder(room: str) -> None:
    """The wheel takes muster.<room> from the folder itself, not through the link."""
    assert SETUP["package-dir"][f"muster.{room}"] == room


def test_every_package_is_listed() -> None:
    """The table lists every package on disk; a missing one would be missing in the wheel."""
    below_muster = {
        f"muster.{path.parent.name}"
        for path in (ROOT / "muster").glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    rooms = {f"muster.{room}" for room in ROOMS}
    below_rooms = {
        "muster." + ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).glob("*/**/__init__.py")
    }
    assert set(SETUP["packages"]) == {"muster"} | below_muster | rooms | below_rooms


@pytest.mark.parametrize("room", sorted(set(ROOMS) - {"assignor", "streams"}))
def test_rooms_are_flat(room: str) -> None:
    """Only `assignor` and `streams` have packages below them, so the table stays short."""
    assert not list((ROOT / room).glob("*/**/__init__.py"))
