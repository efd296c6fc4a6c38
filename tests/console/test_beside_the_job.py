"""`muster run --console`: which console is started beside the job."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from muster.cli import console, run
from muster.cli.options import kafka_settings


def console_of(job_options: str, folder: Path) -> argparse.Namespace:
    """What the console reads from the command line that the job starts it with."""
    job, own = argparse.ArgumentParser(), argparse.ArgumentParser()
    run.configure(job)
    console.configure(own)
    args = job.parse_args(["--checkpoint", "x", "--console", *job_options.split()])
    return own.parse_args(run.console_command(args, folder)[4:])


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("10.0.0.7", "http://10.0.0.7:8080"),
        ("coordinator", "http://coordinator:8080"),
        ("::1", "http://[::1]:8080"),
    ],
)
def test_metrics_are_read_where_the_job_serves_them(
    host: str, address: str, tmp_path: Path
) -> None:
    """The console asks the interface that muster.metrics.host names."""
    given = f" --conf muster.metrics.host={host}" if host else ""
    taken = console_of(f"--conf muster.metrics.port=8080{given}", tmp_path)
    assert taken.metrics == address


def test_a_free_metrics_port_is_not_known_before_it_is_taken(tmp_path: Path) -> None:
    """With port 0 the console has no address rather than a wrong one."""
    assert console_of("--conf muster.metrics.port=0", tmp_path).metrics is None


def test_client_settings_of_the_job_are_the_consoles_too(tmp_path: Path) -> None:
    """Those of --conf kafka.… win over the file, as in the job."""
    file = tmp_path / "own.properties"
    file.write_text("security.protocol=PLAINTEXT\nsasl.username=a\\u00e4\n")
    told = "--conf kafka.bootstrap.servers=kafka:9 --conf kafka.security.protocol=SSL"
    clients = kafka_settings(console_of(f"--command-config {file} {told}", tmp_path))
    assert dict(clients.values) == {
        "bootstrap.servers": "kafka:9", "security.protocol": "SSL", "sasl.username": "aä"
    }  # fmt: skip


def test_the_console_shows_the_groups_of_the_job(tmp_path: Path) -> None:
    """Its address and topics are those of the job."""
    taken = console_of("--bootstrap-server kafka:9 --topic-prefix a --topic-prefix b", tmp_path)
    assert (taken.port, taken.bootstrap_server) == (8090, "kafka:9")
    assert taken.topic_prefix == ["a", "b"]
    assert (taken.metrics, taken.command_config, [*tmp_path.iterdir()]) == (None, None, [])


def test_without_the_option_no_console_is_started() -> None:
    """The port is 8090 if none is given."""
    job = argparse.ArgumentParser()
    run.configure(job)
    assert job.parse_args(["--checkpoint", "x"]).console is None
    assert job.parse_args(["--checkpoint", "x", "--console"]).console == 8090
