"""The four prescribed folders, their links, and the package table agree."""

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
    """Static tools see a room through muster/<room>: the link is relative and leads there."""
    link = ROOT / "muster" / room
    assert link.is_symlink()
    assert os.readlink(link) == f"../{room}"


@pytest.mark.parametrize("room", ROOMS)
def test_room_is_built_from_its_folder(room: str) -> None:
    """The wheel takes muster.<room> from the prescribed folder, not through the link."""
    assert SETUP["package-dir"][f"muster.{room}"] == room


def test_every_package_is_listed() -> None:
    """A package on disk that the table lacks would be missing from the wheel."""
    below_muster = {
        f"muster.{path.parent.name}"
        for path in (ROOT / "muster").glob("*/__init__.py")
        if not path.parent.is_symlink()
    }
    rooms = {f"muster.{room}" for room in ROOMS}
    assert set(SETUP["packages"]) == {"muster"} | below_muster | rooms


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_are_flat(package: str) -> None:
    """Rooms have no subpackages, so that the table stays short."""
    assert not [p for p in (ROOT / package).glob("*/__init__.py") if not p.parent.is_symlink()]
