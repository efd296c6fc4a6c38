"""What services log: fields, formats, levels and hidden secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from muster import logs


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the tests' own logging, because `set_up` is for whole processes."""
    root, ours = logging.getLogger(), logging.getLogger("muster")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], _, _ = before
    root.setLevel(before[1])
    ours.setLevel(before[2])
    for name in ("py4j", "asyncio", "muster.kafka", "muster.worker.kafka"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_json_lines_hold_fields_whichever_way_they_were_logged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Structlog's fields and the standard library's extras become keys of the JSON line."""
    logs.set_up("json")
    structlog.get_logger("muster.streams").info("generation", group="g", generation=7, moves=2)
    extra = {"group": "g", "generation": 7}
    logging.getLogger("muster.worker").warning("%s lost it", "w1", extra=extra)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for line in lines:
        assert line.pop("timestamp").endswith("Z")
    assert lines == [
        {
            "level": "info",
            "logger": "muster.streams",
            "event": "generation",
            "generation": 7,
            "group": "g",
            "moves": 2,
        },
        {
            "level": "warning",
            "logger": "muster.worker",
            "event": "w1 lost it",
            "generation": 7,
            "group": "g",
        },
    ]


def test_an_exception_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A log line with a traceback is one JSON line."""
    logs.set_up("json")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("muster.worker").exception("failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]


def test_console_lines_name_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    """A console line has event, logger and fields, and no colours outside a terminal."""
    logs.set_up("console")
    structlog.get_logger("muster.streams").info("generation", group="g", generation=7)
    line = capsys.readouterr().err
    assert line.endswith("generation [muster.streams] generation=7 group=g\n")
    assert "\x1b" not in line


@pytest.mark.parametrize("form", logs.FORMATS)
@pytest.mark.parametrize("key", ["sasl.password", "client_secret", "sasl.jaas.config", "token"])
def test_secrets_are_hidden(form: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A field with a secret's name does not show its value."""
    logs.set_up(form)
    structlog.get_logger("muster.streams").info("settings", **{key: "hunter2"})
    logging.getLogger("muster.worker").info("settings", extra={key: "hunter2"})
    shown = capsys.readouterr().err
    assert ("hunter2" in shown, shown.count("(hidden)")) == (False, 2)


@pytest.mark.parametrize("form", logs.FORMATS)
def test_secrets_are_hidden_however_deep(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Secrets in nested settings are hidden, and the caller's settings stay unchanged."""
    logs.set_up(form)
    settings = {"sasl.username": "worker", "sasl.password": "hunter2"}
    log = structlog.get_logger("muster.streams")
    log.info("clients", kafka=settings, all=[{"spark": settings}, 7])
    logging.getLogger("muster.worker").info("clients", extra={"kafka": settings})
    shown = capsys.readouterr().err
    assert ("hunter2" in shown, shown.count("(hidden)"), shown.count("worker")) == (False, 3, 4)
    assert settings["sasl.password"] == "hunter2"  # the caller's own stays unchanged


def test_quiet_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """By default muster logs from INFO on; libraries and Kafka's client do not log INFO."""
    logs.set_up()
    logging.getLogger("py4j.clientserver").info("every call")
    logging.getLogger("another.library").info("every request")
    logging.getLogger("muster.worker.kafka").info("every reconnect")
    logging.getLogger("muster.worker").debug("detail")
    logging.getLogger("muster.worker").info("news")
    assert [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()] == [
        "news [muster.worker]"
    ]


def test_the_last_set_up_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """A second `set_up` does not double the lines."""
    logs.set_up("console")
    logs.set_up("json")
    logging.getLogger("muster.worker").warning("once")
    assert len(capsys.readouterr().err.splitlines()) == 1
