"""Why Kafka refuses a worker is logged once, and no reason that passes by itself."""

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka import KafkaError

from muster.kafka import access_check
from muster.kafka.client_settings import client_settings
from muster.worker import kafka_refusals
from muster.worker.kafka_refusals import Refusals

ALL, LESS = "it lacks READ and WRITE", "it lacks WRITE"


@pytest.mark.parametrize(
    ("seen", "logged"),
    [
        ([ALL, ALL], [ALL]),
        ([ALL, LESS, None], [ALL]),  # a look while rights are granted, one by one
        ([ALL, LESS, LESS], [ALL, LESS]),
        ([None, ALL], [ALL]),
    ],
    ids=["the same", "being granted", "another", "none at first"],
)
def test_a_reason_is_logged_once(
    seen: list[str | None],
    logged: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another reason than before is logged only if it still holds a moment later."""
    left = [*seen]
    monkeypatch.setattr(access_check, "explained", lambda *_: left.pop(0))
    monkeypatch.setattr(kafka_refusals, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(kafka_refusals, "SETTLE_S", 0.0)
    hears = Refusals(client_settings("nowhere:1"), "muster")
    before = {*threading.enumerate()}
    with caplog.at_level(logging.ERROR, logger="muster.worker.kafka"):
        while left:
            hears.hear(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            for thread in {*threading.enumerate()} - before:
                thread.join(10)
    assert [record.getMessage() for record in caplog.records] == [
        f"{reason}; trying again" for reason in logged
    ]
