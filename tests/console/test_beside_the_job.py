"""`muster run --console`: which console is started beside the job."""

from __future__ import annotations

import argparse

from muster.cli import console, run


def test_the_console_shows_the_groups_of_the_job() -> None:
    """Its address, topics and metrics port are those of the job; its own command takes them."""
    job = argparse.ArgumentParser()
    run.configure(job)
    asked = "--checkpoint x --bootstrap-server kafka:9 --topic-prefix a --topic-prefix b"
    asked += " --conf muster.metrics.port=8080 --console 8099"
    args = job.parse_args(asked.split(" "))
    words = run.console_command(args)
    assert words[1:4] == ["-m", "muster.cli.main", "console"]
    own = argparse.ArgumentParser()
    console.configure(own)
    taken = own.parse_args(words[4:])
    assert (taken.port, taken.bootstrap_server, taken.topic_prefix, taken.metrics) == (
        8099,
        "kafka:9",
        ["a", "b"],
        "http://127.0.0.1:8080",
    )


def test_without_the_option_no_console_is_started() -> None:
    """The port is 8090 if none is given."""
    job = argparse.ArgumentParser()
    run.configure(job)
    assert job.parse_args(["--checkpoint", "x"]).console is None
    assert job.parse_args(["--checkpoint", "x", "--console"]).console == 8090
