"""Build an image of the newest commit twice and compare what the two hold, file by file.

``python docker/reproducible.py worker|coordinator [--build-arg K=V …]``

Compared are names, types, modes, owners, links and contents of every layer, and the image's
settings. Times of files are told separately: what we make has SOURCE_DATE_EPOCH, but the times of
what a package manager unpacks, and of the folders between, are only set by builders that know
``rewrite-timestamp`` (BuildKit 0.13), with which the digests are equal as well. Exit code 1 when
any content differs. Packages come from their registries: another version there is another image.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TOLD_MAX = 20


class Member(NamedTuple):
    """One file, folder or link of a layer, but for its time."""

    kind: bytes
    mode: int
    owner: tuple[int, int]
    link: str
    content: str


class Image(NamedTuple):
    """What an image holds: settings, of each layer its members by name, and its unpacked bytes."""

    settings: dict[str, object]
    layers: list[dict[str, Member]]
    times: dict[tuple[int, str], int]
    sizes: list[int]


def commit(folder: Path) -> None:
    """Lay out what is committed: both images are to be built from the same sources."""
    archive = folder / "sources.tar"
    subprocess.run(["git", "-C", str(ROOT), "archive", "--output", archive, "HEAD"], check=True)
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    archive.unlink()


def build(sources: Path, role: str, tag: str, more: list[str]) -> None:
    """Build one of the images from nothing."""
    file = str(sources / "docker" / "Dockerfile")
    base = ["docker", "build", "--no-cache", "--quiet", "--file", file, "--target", role]
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    subprocess.run([*base, "--tag", tag, *more, str(sources)], check=True, env=environment)


def read(tag: str, folder: Path) -> Image:
    """Unpack an image as ``docker save`` writes it."""
    file = folder / "image.tar"
    subprocess.run(["docker", "save", "--output", str(file), tag], check=True)
    with tarfile.open(file) as image:
        (manifest,) = json.loads(_bytes(image, "manifest.json"))
        settings = json.loads(_bytes(image, manifest["Config"]))["config"]
        layers: list[dict[str, Member]] = []
        times: dict[tuple[int, str], int] = {}
        sizes: list[int] = []
        for number, name in enumerate(manifest["Layers"]):
            stream = image.extractfile(name)
            assert stream is not None
            members: dict[str, Member] = {}
            with tarfile.open(fileobj=stream) as layer:
                for each in layer:
                    members[each.name] = _member(layer, each)
                    times[number, each.name] = int(each.mtime)
                sizes.append(sum(each.size for each in layer.getmembers()))
            layers.append(members)
    file.unlink()
    return Image(settings, layers, times, sizes)


def _bytes(image: tarfile.TarFile, name: str) -> bytes:
    stream = image.extractfile(name)
    assert stream is not None
    return stream.read()


def _member(layer: tarfile.TarFile, each: tarfile.TarInfo) -> Member:
    stream = layer.extractfile(each) if each.isreg() else None
    content = "" if stream is None else hashlib.file_digest(stream, "sha256").hexdigest()
    return Member(each.type, each.mode, (each.uid, each.gid), each.linkname, content)


def differences(one: Image, other: Image) -> list[str]:
    """What the two do not have in common, times aside."""
    found: list[str] = []
    if one.settings != other.settings:
        found.append("settings of the image")
    if len(one.layers) != len(other.layers):
        return [*found, f"{len(one.layers)} layers, {len(other.layers)} layers"]
    for number, (first, second) in enumerate(zip(one.layers, other.layers, strict=True)):
        for name in sorted(first.keys() | second.keys()):
            if first.get(name) != second.get(name):
                absent = name not in first or name not in second
                found.append(f"layer {number}: /{name}{' (in one only)' if absent else ''}")
    return found


def main() -> int:
    """Build, read, compare, tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("role", choices=("worker", "coordinator"))
    args, more = parser.parse_known_args()
    tags = [f"muster-{args.role}:reproducible-{number}" for number in (1, 2)]
    images: list[Image] = []
    try:
        with tempfile.TemporaryDirectory() as sources, tempfile.TemporaryDirectory() as folder:
            commit(Path(sources))
            for tag in tags:
                build(Path(sources), args.role, tag, more)
                images.append(read(tag, Path(folder)))
    finally:
        subprocess.run(["docker", "rmi", "--force", *tags], capture_output=True, check=False)
    found = differences(*images)
    later = sum(images[0].times[key] != images[1].times.get(key) for key in images[0].times)
    megabytes = ", ".join(f"{size / 1e6:.1f}" for size in images[0].sizes)
    files = sum(len(layer) for layer in images[0].layers)
    lines = [
        f"{args.role}: {files} files, layers of {megabytes} MB",
        f"{len(found)} differ in content, {later} in their time only",
        *(f"  {line}" for line in found[:TOLD_MAX]),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
