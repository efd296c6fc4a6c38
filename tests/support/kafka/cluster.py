"""Three brokers that form one Kafka: KRaft, every node broker and controller, replication 3.

Made of `EmbeddedKafka` with settings of their own; each node can be killed, frozen, stopped and
started again by itself. Beside the listener of all clients there are further ones, each behind a
`Proxy`: a client that is given such an address talks to all three nodes through that proxy alone,
because the nodes advertise the proxy's ports to it. So one party can be cut off and no other.
"""

from __future__ import annotations

import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from support.kafka.brokers import PARTITIONS, Topics
from support.kafka.proxy import Proxy
from support.suite.waiting import until

from muster.broker.embedded_kafka import HOST, EmbeddedKafka, free_port
from muster.protocol.topics import TOPICS

NODES = (1, 2, 3)
START_S = 240.0
"""Long enough for three JVMs on a busy machine, so that it finds hangs and not slowness."""
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}
JVM_OPTIONS = (
    "-Xms64m",
    "-Xmx320m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)


class KafkaCluster:
    """Three nodes, and a proxy for each party; a context manager.

    Args:
        parties: names of those who talk through a proxy of their own.

    Attributes:
        nodes: by node id.
        proxies: by party.
    """

    def __init__(self, parties: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="muster-kafka-")
        self._parties = tuple(parties)
        taken: set[int] = set()

        def port() -> int:
            port = free_port()
            while port in taken:
                port = free_port()
            taken.add(port)
            return port

        self._controllers = {node: port() for node in NODES}
        self._plain = {node: port() for node in NODES}
        self._behind = {party: {node: port() for node in NODES} for party in parties}
        self._before = {party: {node: port() for node in NODES} for party in parties}
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")
        self.nodes = {
            node: EmbeddedKafka(
                Path(self._folder.name) / str(node),
                port=self._plain[node],
                properties={**REPLICATED, **self._properties(node)},
                format_arguments=("-t", cluster),
                jvm_options=JVM_OPTIONS,
            )
            for node in NODES
        }
        self.proxies = {
            party: Proxy(
                {self._before[party][node]: self._behind[party][node] for node in NODES},
            )
            for party in parties
        }
        self._stack = ExitStack()

    def _properties(self, node: int) -> dict[str, str]:
        """Listeners: plain, controller, and one for each party behind its proxy."""
        behind = [f"{party}://{HOST}:{self._behind[party][node]}" for party in self._parties]
        before = [f"{party}://{HOST}:{self._before[party][node]}" for party in self._parties]
        plain = f"PLAINTEXT://{HOST}:{self._plain[node]}"
        names = ["CONTROLLER", "PLAINTEXT", *self._parties]
        voters = [f"{n}@{HOST}:{self._controllers[n]}" for n in NODES]
        return {
            "node.id": str(node),
            "controller.quorum.voters": ",".join(voters),
            "listeners": ",".join(
                [plain, f"CONTROLLER://{HOST}:{self._controllers[node]}", *behind]
            ),
            "advertised.listeners": ",".join([plain, *before]),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        }

    def address(self, party: str | None = None) -> str:
        """Bootstrap servers; those of a party are its proxy's ports."""
        ports = self._plain if party is None else self._before[party]
        return ",".join(f"{HOST}:{port}" for port in ports.values())

    def topics(self, party: str | None = None) -> Topics:
        """Create all of muster's topics under a new prefix, with three replicas each."""
        prefix = f"t{uuid.uuid4().hex[:8]}"
        new = [
            NewTopic(
                topic.name(prefix),
                num_partitions=topic.partitions or PARTITIONS,
                replication_factor=len(NODES),
                config=dict(topic.settings),
            )
            for topic in TOPICS
        ]
        admin = AdminClient({"bootstrap.servers": self.address()})
        for future in admin.create_topics(new).values():
            future.result(30)
        self.in_sync()
        return Topics(self.address(party), prefix)

    def in_sync(self) -> None:
        """Wait until every partition has a leader and all replicas are in sync."""
        admin = AdminClient({"bootstrap.servers": self.address()})

        def whole() -> bool:
            listed = admin.list_topics(timeout=10)
            return len(listed.brokers) == len(NODES) and all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for topic in listed.topics.values()
                for partition in topic.partitions.values()
            )

        until(whole, "every replica is in sync", pause_s=0.2)

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition."""
        admin = AdminClient({"bootstrap.servers": self.address()})

        def leader() -> int:
            listed = admin.list_topics(topic, timeout=10).topics[topic].partitions
            return max(int(listed[partition].leader), 0)

        return until(leader, f"{topic}-{partition} has a leader")

    def each(self, work: Callable[[EmbeddedKafka], object]) -> None:
        """Call something for all nodes concurrently: no node is ready before there is a quorum."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            for done in [pool.submit(work, node) for node in self.nodes.values()]:
                done.result()

    def __enter__(self) -> KafkaCluster:
        try:
            for proxy in self.proxies.values():
                self._stack.enter_context(proxy)
            self.each(lambda node: node.start(START_S))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all nodes: their data are thrown away."""
        for node in self.nodes.values():
            node.thaw()
            node.kill()
        self._stack.close()
        self._folder.cleanup()
