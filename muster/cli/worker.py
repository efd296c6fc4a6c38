"""Join a group and run one process per active task.

The worker starts CMD for each task it gets, starts it again when it dies, and stops it (SIGTERM,
then SIGKILL) before the task moves. Each process has MUSTER_GROUP, MUSTER_MEMBER_ID, MUSTER_TASK,
MUSTER_ROLE, MUSTER_GENERATION and MUSTER_MEMBER_EPOCH in its environment. If the worker dies,
hangs, is frozen or cannot reach Kafka, a small guard process ends the processes before another
member may run the tasks. SIGTERM or Ctrl-C stops all processes and leaves the group; a second
signal does not wait.
"""

from __future__ import annotations

import argparse
import logging

from muster import logs
from muster.cli.options import add_kafka, add_repeatable, check_ms, kafka_settings, key_values
from muster.errors import BadInput
from muster.protocol.settings import CONNECT_PROTOCOLS
from muster.signing.followed_key_file import add_signing_keys
from muster.stop_signals import LOOK_S, stop_signals
from muster.worker.exec_tasks import PLACE, STOP_TIMEOUT_S, Processes
from muster.worker.worker import Worker

CLOSE_MARGIN_S = 20.0
"""Time beyond the stop timeout, for the exchange with Kafka when the member leaves."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--group", required=True, metavar="G", help="the group to join")
    parser.add_argument(
        "--exec",
        required=True,
        metavar="CMD",
        help=f"shell command of a task; {PLACE} in it is the task's id, e.g. './run.sh {PLACE}'",
    )
    parser.add_argument("--member-id", metavar="ID", help="default: a random one")
    parser.add_argument(
        "--instance-id",
        metavar="ID",
        help="a name that outlives this process: its tasks wait for it when it stops for a moment",
    )
    parser.add_argument(
        "--leave-for-good",
        action="store_true",
        help="with --instance-id: when it stops, the group does not wait for its return",
    )
    parser.add_argument("--rack", metavar="R", help="where it runs (client.rack)")
    parser.add_argument(
        "--capacity",
        type=int,
        default=1,
        metavar="N",
        help="weight relative to other members (default: %(default)s)",
    )
    add_repeatable(parser, "--tag", "K=V", "client.tag.K; may be repeated")
    parser.add_argument(
        "--topic",
        action="append",
        metavar="NAME",
        help="a subtopology it can run; may be repeated (default: all)",
    )
    parser.add_argument(
        "--static",
        action="append",
        metavar="JOB",
        help="a job it is pinned to (KIP-987); may be repeated",
    )
    parser.add_argument(
        "--connect-protocol",
        choices=CONNECT_PROTOCOLS,
        help="the newest of Connect's protocols it supports, with all older ones; the group uses "
        "the newest that all members support (default: all)",
    )
    parser.add_argument(
        "--stop-timeout-ms",
        type=int,
        default=int(STOP_TIMEOUT_S * 1000),
        metavar="N",
        help="milliseconds between SIGTERM and SIGKILL when a task is to stop"
        " (default: %(default)s)",
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append each start and stop of a task, one JSON object a line"
    )
    parser.add_argument("--quiet", action="store_true", help="log only warnings and errors")
    logs.add_log_format(parser)
    add_signing_keys(add_kafka(parser))


def run(args: argparse.Namespace) -> int:
    """Work until SIGTERM, Ctrl-C, or the coordinator refuses the member."""
    check_ms("--stop-timeout-ms", args.stop_timeout_ms)
    if not args.exec.strip():
        raise BadInput(f"--exec: expected a shell command; {PLACE} in it is the task's id")
    if args.leave_for_good and args.instance_id is None:
        raise BadInput(
            "--leave-for-good: it is for a worker with --instance-id; without one a worker always "
            "leaves for good"
        )
    logs.set_up(args.log_format, logging.WARNING if args.quiet else logging.INFO)
    clients = kafka_settings(args)
    processes = Processes(args.exec, stop_timeout_s=args.stop_timeout_ms / 1000, log_file=args.log)
    try:
        worker = Worker(
            group=args.group,
            member_id=args.member_id,
            instance_id=args.instance_id,
            rack=args.rack,
            capacity=args.capacity,
            tags=key_values(args.tag, "--tag"),
            topics=args.topic,
            static=args.static,
            protocols=spoken(args.connect_protocol),
            topic_prefix=args.topic_prefix,
            config=clients.values,
            signing_keys=args.signing_keys,
            on_assigned=processes.on_assigned,
            on_revoked=processes.on_revoked,
            on_lost=processes.on_lost,
            on_lease=processes.on_lease,
        )
        processes.released = worker.released
        logging.getLogger("muster.worker").info(
            "joining %s as %s",
            args.group,
            worker.member_id,
            extra={"group": args.group, "member": worker.member_id},
        )
        temporary = False if args.leave_for_good else None
        _work(worker, processes, args.stop_timeout_ms / 1000 + CLOSE_MARGIN_S, temporary)
    finally:
        processes.close()
    return 0


def spoken(best: str | None) -> tuple[str, ...] | None:
    """The protocols of a worker with this `connect.protocol`, best first (S0-F02); None = all."""
    return None if best is None else CONNECT_PROTOCOLS[CONNECT_PROTOCOLS.index(best) :]


def _work(worker: Worker, processes: Processes, close_s: float, temporary: bool | None) -> None:
    with stop_signals() as stop:
        worker.start()
        while not worker.wait(0) and not stop.wait(LOOK_S):
            pass
        processes.stop_all()  # also those whose `on_revoked` has to wait for one that is running
        # A second signal ends the worker; then the guard stops the tasks.
        worker.close(close_s, temporary=temporary)
    if worker.error is not None:
        raise worker.error
