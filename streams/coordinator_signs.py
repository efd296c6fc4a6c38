"""Signs of life: what a coordinator process says about itself once a second.

They go to ``<prefix>.clock`` (`protocol.records.CoordinatorSign`), which the query does not read,
so they make no micro-batch. A standby that reads none for a while claims (`standby_coordinator`).
Nothing else depends on them: a sign that is late or lost can cause a needless takeover, never a
wrong decision.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from muster.kafka.client_settings import ClientSettings
from muster.kafka.lasting_producer import LastingProducer
from muster.kafka.reader import read
from muster.logs import KAFKA
from muster.protocol import codec
from muster.protocol.codec import Encoded
from muster.protocol.errors import DecodeError
from muster.protocol.keys import SIGN_GROUP, key_of
from muster.protocol.records import CoordinatorRole, CoordinatorSign
from muster.protocol.topics import TopicKind, topic_name
from muster.streams.background_thread import Complaints, Loop

INTERVAL_MS = 1_000
SILENT_MS = 3_000
"""How late a sign of life may be."""
DELIVERY_TIMEOUT_S = 60.0


class Signed(NamedTuple):
    """A sign of life and its timestamp (epoch milliseconds)."""

    at_ms: int
    sign: CoordinatorSign

    def is_old(self, now_ms: int) -> bool:
        """Whether the process should have written another sign since."""
        return now_ms - self.at_ms > self.sign.interval_ms + SILENT_MS


def read_signs(settings: ClientSettings, prefix: str, since_ms: int) -> list[Signed]:
    """The newest sign of life of each coordinator process since then.

    Raises:
        Unreachable, Refused, NoTopics: the topic cannot be read.
    """
    newest: dict[str, Signed] = {}
    for row in read(settings, topic_name(TopicKind.CLOCK, prefix), since_ms=since_ms):
        with suppress(DecodeError):
            record = codec.decode_record(TopicKind.CLOCK, row.key, row.value)
            if isinstance(record, CoordinatorSign):
                newest[record.job] = Signed(row.at_ms, record)
    return [*newest.values()]


class Signs(Loop):
    """Writes signs of life of a process (`job`) in a thread, while it `is_well`.

    It begins with `stands_by` or `runs`, and stops with `stops`, `ends` or the exit.
    """

    def __init__(
        self,
        clients: ClientSettings,
        prefixes: Sequence[str],
        job: str,
        is_well: Callable[[], bool],
    ) -> None:
        super().__init__("muster-signs")
        self.job = job
        self._prefixes = tuple(prefixes)
        self._is_well = is_well
        self._role: CoordinatorRole | None = None
        self._epochs: Mapping[str, int] = {}
        self._changed = threading.Event()
        self._complaints = Complaints()
        self._settings = clients.producer({"message.timeout.ms": int(DELIVERY_TIMEOUT_S * 1000)})
        replaced = partial(self._complaints.replaced, "the producer of signs of life")
        self._producer = LastingProducer(self._settings, KAFKA, replaced)

    @property
    def is_over(self) -> bool:
        """Whether no more signs are wanted: the process ends."""
        return self._closing.is_set()

    def stands_by(self) -> None:
        """From now on, say that this process stands by."""
        self._becomes(CoordinatorRole.STANDBY)

    def runs(self, epochs: Mapping[str, int]) -> None:
        """From now on, say that this process is the coordinator, with these epochs by prefix."""
        self._epochs = dict(epochs)
        self._becomes(CoordinatorRole.RUNNING)

    def stops(self) -> None:
        """As `ends`, after a signal: an end in order, if the process was well until now."""
        self.ends(CoordinatorRole.STOPPED if self._is_well() else CoordinatorRole.ENDED)

    def ends(self, role: CoordinatorRole = CoordinatorRole.ENDED) -> None:
        """Say at once that this process ends, and write no sign after it; from any thread."""
        if self._role is CoordinatorRole.RUNNING:
            self._becomes(role)
        self._closing.set()
        self._changed.set()

    def _becomes(self, role: CoordinatorRole) -> None:
        self._role = role
        self._changed.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._changed.clear()
            if self._is_well():
                self._write()
            self._producer.serve(0)
            self._changed.wait(INTERVAL_MS / 1000)
        self._write()
        self._producer.close(1)

    def _write(self) -> None:
        role = self._role
        if role is None:
            return
        for prefix in self._prefixes:
            topic = topic_name(TopicKind.CLOCK, prefix)
            if role is CoordinatorRole.STANDBY and self._closing.is_set():
                self._produce(topic, Encoded(key_of(SIGN_GROUP, self.job), None, ()))
                continue
            self._produce(topic, codec.encode(self.sign(role, self._epochs.get(prefix, -1))))

    def _produce(self, topic: str, record: Encoded) -> None:
        """Write a sign; if that fails, the next sign says the same."""
        try:
            self._producer.produce(topic, record, self._delivered)
        except BufferError:
            return  # no broker takes them
        except KafkaException as error:
            self._complaints.refused("no sign of life", topic, error.args[0])

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._complaints.refused("no sign of life", str(message.topic()), error)

    def sign(self, role: CoordinatorRole, epoch: int = -1) -> CoordinatorSign:
        """A sign of this process."""
        return CoordinatorSign(
            job=self.job,
            host=platform.node(),
            version=version("muster-kafka"),
            role=role,
            epoch=epoch,
            interval_ms=0 if role.is_over else INTERVAL_MS,
        )

    def __exit__(self, *_: object) -> None:
        self.ends()
        super().__exit__()
