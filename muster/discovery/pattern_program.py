"""Matches patterns against names of topics, as a program: ``python pattern_program.py``.

Reads a JSON line ``[pattern, [name, ...]]`` for each pattern. Writes a JSON line for each: the
places of the names that match, or a text that says why there is no answer. A pattern that takes
more than `CPU_S` of CPU time ends the program with SIGPROF, also where Python runs no handler.

It imports the standard library alone, so that it starts within some 20 ms.
"""

import json
import os
import re
import resource
import signal
import sys

CPU_S = 1.0
BYTES_MAX = 1 << 29


def answer(pattern: str, names: list[str]) -> list[int] | str:
    """Places of the names that match as a whole; or why there is no answer."""
    try:
        compiled = re.compile(pattern)
        return [place for place, name in enumerate(names) if compiled.fullmatch(name)]
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is no regular expression: {error}"
    except MemoryError:
        return "it needs too much memory"


def main() -> None:
    """Answer all lines of standard input."""
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_MAX, BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        sys.stdout.write(json.dumps(answer(*asked)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
