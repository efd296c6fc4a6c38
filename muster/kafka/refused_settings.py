"""Names the client setting that librdkafka does not accept, and a file of it that cannot be read.

librdkafka refuses a wrong setting when a client is made. For a file that is missing it gives the
error of OpenSSL only, without the file's name, so muster looks at the files itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaException

from muster.errors import BadInput
from muster.kafka.client_settings import ClientSettings

_NO_FILE = "probe"
"""A value of ``ssl.ca.location`` with which librdkafka looks for the system's authorities."""


def refused(clients: ClientSettings, error: KafkaException) -> BadInput:
    """The error for a client that was not made from these settings."""
    return BadInput(f"a client setting is not accepted: {why(clients, error)}")


def why(clients: ClientSettings, error: KafkaException) -> str:
    """What librdkafka does not accept, and which files of the settings cannot be read."""
    reason = clients.hidden(str(error.args[0].str()))
    return "; ".join((reason, *_unreadable(clients)))


def _unreadable(clients: ClientSettings) -> Iterator[str]:
    for key, value in clients.values.items():
        if not key.endswith((".location", ".keytab")) or value == _NO_FILE or Path(value).is_dir():
            continue
        try:
            Path(value).open("rb").close()
        except OSError as error:
            yield f"{key}: {value} cannot be read ({error.strerror})"
