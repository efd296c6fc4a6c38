"""Log lines of muster's services: one event a line on standard error, for people or for machines.

The code logs through Python's `logging`, because a library must not decide how its user logs; the
coordinator uses structlog on top of it. A line's fields name its subject: ``group``,
``generation``, ``member``, ``job``. `set_up` is for programs: it renders all lines alike, as
``console`` or ``json``. Services log what changes, one line each, and nothing while nothing does.

A field whose name marks a secret is hidden, whichever library logged it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from muster.kafka.client_settings import HIDDEN, is_secret
from muster.kafka.log_filter import drop_noise

FORMATS = ("console", "json")

KAFKA = logging.getLogger("muster.kafka")
"""The logger of the coordinator's Kafka clients, which otherwise write to standard error."""
# In a broker's first seconds an idempotent producer asks again until it has its number.
KAFKA.addFilter(lambda record: "Coordinator load in progress: retrying" not in record.getMessage())
drop_noise(KAFKA)

_LEVELS = {
    # At INFO these log every batch, request or connection.
    "py4j": logging.WARNING,
    "asyncio": logging.WARNING,
    # At INFO Kafka's client logs each retry while a broker is away; its warnings are enough.
    "muster.kafka": logging.WARNING,
    "muster.worker.kafka": logging.WARNING,
    "muster.adopt.kafka": logging.WARNING,
}


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """Add ``--log-format console|json``."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default=FORMATS[0],
        help="format of log lines on standard error (default: %(default)s)",
    )


def set_up(form: str = FORMATS[0], level: int = logging.INFO) -> None:
    """Render this process's log lines on standard error in this form (`FORMATS`), from this level.

    It replaces any earlier set-up.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _hidden,
                *_renderers(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [lines]
    root.setLevel(logging.WARNING)
    logging.getLogger("muster").setLevel(level)
    for name, lowest in _LEVELS.items():
        logging.getLogger(name).setLevel(max(lowest, level))


def _renderers(form: str) -> list[structlog.typing.Processor]:
    if form == "json":
        return [
            structlog.processors.format_exc_info,
            _ordered,
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            pad_event_to=0,
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _hidden(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = _shown(key, value)
    return event


def _shown(key: object, value: object) -> object:
    """A field's value, with secrets hidden at any depth."""
    if is_secret(str(key)):
        return HIDDEN
    if isinstance(value, Mapping):
        return {inner_key: _shown(inner_key, inner) for inner_key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(key, item) for item in value]
    return value


def _ordered(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    first = ("timestamp", "level", "logger", "event")
    return {key: event[key] for key in [*first, *sorted(event.keys() - first)] if key in event}
