"""Look at a cluster and a running coordinator, and say what to do about what is wrong.

Checks topics and their settings, rights, the coordinator's claim, whether the job answers and its
clock runs, groups that do not settle, dead letters, and when certificates and signing keys end.
With --metrics URL it also checks the job's own figures. It changes nothing. The exit code is 1 if a
finding is FAIL; with warnings alone it is 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from muster.cli.options import add_format, add_kafka, kafka_settings
from muster.doctor import certificates_and_keys as doctor_dates
from muster.doctor.all_checks import all_findings
from muster.doctor.finding import Finding, Level
from muster.doctor.probes import base_of, metrics
from muster.errors import BadInput
from muster.output import json_line, table, wall_ms
from muster.signing.followed_key_file import add_signing_keys, keyring_path

STUCK_S = 300


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--metrics",
        metavar="URL",
        help="the job's metrics port, e.g. http://coordinator:8080 (default: not checked)",
    )
    parser.add_argument(
        "--stuck-s",
        type=int,
        metavar="N",
        default=STUCK_S,
        help="seconds that a group may take to settle (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="leave out findings that are OK")
    add_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Check everything and print the findings; 1 if one of them is FAIL."""
    if args.stuck_s < 0:
        raise BadInput(f"--stuck-s {args.stuck_s}: expected 0 or more")
    if args.metrics is not None:
        base_of(args.metrics)  # before anything is looked at: a fault would hide all findings
    settings, now_ms = kafka_settings(args), wall_ms()
    findings = [*doctor_dates.look(settings, keyring_path(args.signing_keys), now_ms)]
    findings += all_findings(settings, args.topic_prefix, args.stuck_s * 1000)
    if args.metrics is not None:
        findings += metrics(args.metrics)
    shown = [f for f in findings if not (args.quiet and f.level is Level.OK)]
    if args.format == "json":
        for finding in shown:
            print(json_line(finding.as_json()))
    elif shown:
        print(report(shown))
    return int(any(finding.level is Level.FAIL for finding in findings))


def report(findings: Sequence[Finding]) -> str:
    """The findings as a table, and below it what to do, failures first."""
    rows = [(f.level.upper(), f.check, f.subject, f.what) for f in findings]
    parts = [table(("STATUS", "CHECK", "SUBJECT", "FINDING"), rows)]
    actions = dict.fromkeys(
        (f.action, f.level) for f in findings if f.action and f.level is not Level.OK
    )
    by_level = sorted(actions, key=lambda action: action[1] is not Level.FAIL)
    if by_level:
        parts += ["", "what to do:", *(f"- {action}" for action, _ in by_level)]
    return "\n".join(parts)
