"""What takes time and chance out of the images, without building one."""

from __future__ import annotations

import hashlib
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cacerts() -> ModuleType:
    """The script beside the Dockerfile."""
    spec = importlib.util.spec_from_file_location("cacerts", ROOT / "docker" / "cacerts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def store(*entries: tuple[str, int, bytes], kind: int = 2) -> bytes:
    """A JKS store of (name, added at, certificate), as `keytool` writes it."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries))
    for name, at_s, certificate in entries:
        body += struct.pack(">IH", kind, len(name)) + name.encode()
        body += struct.pack(">q", at_s * 1000) + struct.pack(">H", 5) + b"X.509"
        body += struct.pack(">I", len(certificate)) + certificate
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(salt + body).digest()


def test_a_trust_store_without_time_and_chance(cacerts: ModuleType) -> None:
    """Two stores of the same certificates become the same bytes, which are a store of their own."""
    one = store(("b", 100, b"BB"), ("a", 200, b"A"))
    other = store(("a", 300, b"A"), ("b", 400, b"BB"))
    assert cacerts.settled(one, 7) == cacerts.settled(other, 7)
    assert cacerts.settled(one, 7) == store(("a", 7, b"A"), ("b", 7, b"BB"))


def test_other_stores_are_refused(cacerts: ModuleType) -> None:
    """A store of another format, or one that holds a key, is left alone."""
    with pytest.raises(ValueError, match="not a JKS store"):
        cacerts.settled(b"\x30\x82" + bytes(20), 7)
    with pytest.raises(ValueError, match="holds a key"):
        cacerts.settled(store(("a", 1, b"A"), kind=1), 7)


def test_what_the_build_copies_is_let_in() -> None:
    """Every file the Dockerfile takes from the context passes .dockerignore, and exists."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    wanted: set[str] = set()
    for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            wanted |= set(words[1:-1])
        if "--mount=type=bind" in line:
            wanted.add(line.partition("source=")[2].partition(",")[0])
    assert wanted <= allowed
    assert not [name for name in wanted if not (ROOT / name).exists()]


def test_every_package_is_copied() -> None:
    """The rooms that make the wheel are all there when it is built."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for room in ("muster", "protocol", "assignor", "state", "streams"):
        assert f"COPY {room} {room}\n" in text
