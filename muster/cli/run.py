"""Run the coordinator: the Spark job that assigns tasks, until SIGTERM or Ctrl-C.

Needs muster's topics (`muster topics create`) and a checkpoint folder. A restart with the same
folder goes on where it stopped; without it, the groups are read back from their topic and no task
moves. Give --topic-prefix several times to serve several sets of topics.
"""

from __future__ import annotations

import argparse

from muster.streams import job


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    job.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Run until told to stop."""
    return job.run_arguments(args)
