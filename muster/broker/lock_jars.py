"""Rewrite ``jars.lock``: ``python -m muster.broker.lock_jars`` (for maintainers; needs Maven).

Maven resolves the dependencies of the roots in a scratch folder, and this writes the result to the
lock file. PySpark ships its own compression and logging libraries, so its set is the roots alone.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"
ROOTS: dict[str, tuple[str, ...]] = {
    "kafka": (
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        # Kafka asks for slf4j 1.7; the binding must be of log4j-core's own version.
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    "spark": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
        # The one of 4.2.0 is not in every mirror; this one works with the 4.2.0 connector.
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",
    ),
    # Workers of a real Connect cluster, for tests and measurements of `muster adopt`.
    "connect": (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    # Consumers of an older Java client.
    "clients": (
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.slf4j:slf4j-api:1.7.36",
    ),
    # What bench/java runs: Kafka's assignors and the jars they need.
    "bench": (
        "com.fasterxml.jackson.core:jackson-annotations:2.21",
        "com.fasterxml.jackson.core:jackson-core:2.21.2",
        "com.fasterxml.jackson.core:jackson-databind:2.21.2",
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-group-coordinator-api:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-group-coordinator:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-server-common:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",
        "org.slf4j:slf4j-api:1.7.36",
    ),
}
ALONE = ("spark", "bench", "clients")
"""Sets whose roots are taken without their dependencies."""
HEADER = """\
# Jars muster runs on: coordinate -> sha256 and size. Resolved with Maven from the roots named in
# lock_jars.py (beside this file), which also rewrites this file: python -m muster.broker.lock_jars
"""
COORDINATE = re.compile(r"([\w.\-]+):([\w.\-]+):jar:([\w.\-]+):")


def main() -> None:
    """Resolve every set and write the lock file beside this one."""
    with tempfile.TemporaryDirectory(prefix="muster-jars-") as scratch:
        parts = [_set(name, Path(scratch) / name) for name in ROOTS]
    Path(__file__).with_name("jars.lock").write_text(HEADER + "".join(parts))


def _set(name: str, folder: Path) -> str:
    folder.mkdir()
    (folder / "pom.xml").write_text(_pom(ROOTS[name], alone=name in ALONE))
    _maven(folder, "dependency:tree", "-DoutputFile=tree.txt", "-Dscope=runtime")
    _maven(
        folder, "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"
    )
    rows = [f"\n[{name}]\n"]
    for group, artifact, version in sorted(COORDINATE.findall((folder / "tree.txt").read_text())):
        content = (folder / "jars" / f"{artifact}-{version}.jar").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        row = f'{{ sha256 = "{digest}", bytes = {len(content)} }}'
        rows.append(f'"{group}:{artifact}:{version}" = {row}\n')
    return "".join(rows)


def _pom(roots: tuple[str, ...], *, alone: bool) -> str:
    everything = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = f"<exclusions>{everything}</exclusions>" if alone else ""
    dependencies = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId>"
        f"<version>{v}</version>{exclusions}</dependency>"
        for g, a, v in (root.split(":") for root in roots)
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId>"
        f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}"
        "</dependencies></project>"
    )


def _maven(folder: Path, *words: str) -> None:
    command = ["mvn", "-q", "-B", *words]
    if subprocess.run(command, cwd=folder, check=False).returncode:
        sys.exit(f"lock_jars: {' '.join(command)} failed in {folder}")


if __name__ == "__main__":
    main()
