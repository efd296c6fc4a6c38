"""Run the coordinator: the Spark job that assigns tasks, until SIGTERM or Ctrl-C.

It needs muster's topics (`muster topics create`) and a checkpoint folder. A restart with the same
folder continues where the job stopped. With a new folder the job reads the groups back from their
topic, and no task moves. Give --topic-prefix several times to serve several sets of topics.
"""

from __future__ import annotations

import argparse

from muster.streams import job


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    job.configure(parser)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM or Ctrl-C."""
    return job.run_arguments(args)
