"""Consume a topic whose partitions are shared by all processes that run this program.

``python consume_topic.py GROUP HOST:PORT``; docs/consume.md explains it. Each partition has a
thread and a consumer; offsets are committed to Kafka under the group's name.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from muster import Assignment, Task, Worker

running: dict[Task, Partition] = {}
SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


def process(task: Task, message: Message) -> None:
    """Your work. After a crash a message may arrive again, so processing it twice must be safe."""
    print(f"{worker.member_id} {task} {message.offset()} {message.value().decode()}")


class Partition(threading.Thread):
    """Reads one partition from its committed offset on, until `stopping` is set."""

    def __init__(self, task: Task) -> None:
        super().__init__(name=str(task))
        self.task = task
        self.stopping = threading.Event()

    def run(self) -> None:
        """Consume until stopped."""
        here = TopicPartition(self.task.unit, self.task.partition)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **SETTINGS})
        try:
            here.offset = self.committed(consumer, here)
            consumer.assign([here])  # never subscribe: muster decides who owns the partition
            while not self.stopping.is_set():
                message = consumer.poll(0.25)
                if message is None or message.error() is not None:
                    continue  # nothing new, or a broker is away: the consumer retries
                if self.is_ours():
                    process(self.task, message)
                    if worker.holds(self.task):
                        self.commit(consumer, message)
        finally:
            consumer.close()

    def is_ours(self) -> bool:
        """Wait until the lease holds again; False when `on_lost` has stopped this thread."""
        while not worker.holds(self.task):
            if self.stopping.wait(0.05):
                return False
        return True

    def committed(self, consumer: Consumer, here: TopicPartition) -> int:
        """The offset where the last owner stopped; retried while no broker answers."""
        while not self.stopping.is_set():
            try:
                return consumer.committed([here], timeout=5)[0].offset
            except KafkaException as error:
                print(f"{self.task}: {error}", file=sys.stderr)
        return here.offset

    def commit(self, consumer: Consumer, message: Message) -> None:
        """Commit the offset after a message. After a failure the next commit includes it."""
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            print(f"{self.task}: {error}", file=sys.stderr)


def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Start the partitions: this worker owns them now."""
    for task in tasks:
        running[task] = Partition(task)
        running[task].start()


def stop(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Stop the partitions; everything is committed when this returns and others get them."""
    ended = [running.pop(task) for task in tasks if task in running]
    for partition in ended:
        partition.stopping.set()
    for partition in ended:
        partition.join()
        worker.released(partition.task)


def lost(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Others may own them already: stop, and commit nothing, because `holds` is False now."""
    stop(tasks, assignment)


parser = argparse.ArgumentParser(
    description="A worker that consumes a topic together with the others of its group."
)
parser.add_argument("group", metavar="GROUP", help="the group that the worker joins")
parser.add_argument("servers", metavar="HOST:PORT", help="Kafka")
args = parser.parse_args()
group, servers = args.group, args.servers
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves the group on its way out
worker = Worker(
    group=group, bootstrap_servers=servers, on_assigned=start, on_revoked=stop, on_lost=lost
)
with worker:
    worker.wait()
