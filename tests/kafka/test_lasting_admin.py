"""An admin client that is replaced after a failed question."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import OffsetSpec
from support.kafka.fake_admin import fake_cluster

from muster.discovery import measured_traffic
from muster.kafka.lasting_admin import LastingAdmin

PLACE = ("orders", 0)


def test_it_lasts_until_it_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client is made for the first question, and another one after a failed question."""
    cluster = fake_cluster(monkeypatch, {PLACE: 7})
    admin = LastingAdmin({}, logging.getLogger("test"))
    assert cluster.clients == 0
    assert admin.client is admin.client
    cluster.elect(PLACE)
    for _ in range(2):
        with pytest.raises(KafkaException):
            measured_traffic.offsets(admin.client, [PLACE], OffsetSpec.latest())
    admin.replace()
    assert measured_traffic.offsets(admin.client, [PLACE], OffsetSpec.latest()) == {PLACE: 7}
    assert cluster.clients == 2
