"""Runs the doctor's checks: first of the cluster, then of the job if its topics can be read."""

from __future__ import annotations

from collections.abc import Iterator

from muster.doctor import cluster as doctor_cluster
from muster.doctor import job as doctor_job
from muster.doctor.fact_reader import read_facts
from muster.doctor.finding import Finding, Level
from muster.errors import Unreachable
from muster.kafka import access_check
from muster.kafka.client_settings import ClientSettings


def all_findings(settings: ClientSettings, prefix: str, stuck_ms: int) -> Iterator[Finding]:
    """Check the cluster, then the job if the topics can be read."""
    is_unreachable = False
    for finding in doctor_cluster.look(settings, prefix):
        is_unreachable |= finding.level is Level.FAIL and finding.check == "kafka"
        yield finding
    if is_unreachable:
        return
    try:
        facts = read_facts(settings, prefix)
    except (Unreachable, access_check.Refused, access_check.NoTopics) as error:
        yield Finding("job", prefix, Level.SKIPPED, f"cannot be checked: {error}")
        return
    yield from doctor_job.look(facts, prefix, stuck_ms)
