"""Times single events: a member of a group of one task joins and leaves; prints milliseconds.

It is a process of its own, so the work of other members in the benchmark does not delay it.

``python bench/probe.py ADDRESS COUNT SECONDS`` prints ``ms NUMBER`` for each event, from the
produce call to the first record that the event causes; at most `COUNT` of them, and no more when
`SECONDS` are over. Pauses are random, so probes do not fall into step with anything.
"""

from __future__ import annotations

import random
import sys
import time

from bench_system import next_message, tail
from confluent_kafka import Producer

from muster.kafka.client_settings import client_settings
from muster.protocol.codec import encode
from muster.protocol.events import Join, Leave
from muster.protocol.ids import GroupId, MemberId
from muster.protocol.topics import TopicKind, topic_name

GROUP = "probe"
PAUSE_S = (0.02, 0.2)


def main() -> int:
    """Probe."""
    address, count, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    end_s = time.monotonic() + seconds
    clients, rng = client_settings(address), random.Random(GROUP)
    producer = Producer(clients.producer())
    reader = tail(clients, topic_name(TopicKind.ASSIGNMENTS))
    topic, group, member = topic_name(TopicKind.MEMBERSHIP), GroupId(GROUP), MemberId("P")
    for number in range(count // 2):
        if time.monotonic() > end_s:
            break
        incarnation = time.time_ns() + number
        for event in (
            Join(group=group, member=member, incarnation=incarnation),
            Leave(group=group, member=member, incarnation=incarnation),
        ):
            time.sleep(rng.uniform(*PAUSE_S))
            encoded = encode(event)
            began = time.perf_counter()
            producer.produce(topic, key=encoded.key, value=encoded.value)
            producer.flush()
            while not (next_message(reader).key() or b"").startswith(GROUP.encode()):
                pass
            print("ms", (time.perf_counter() - began) * 1000, flush=True)
    reader.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
