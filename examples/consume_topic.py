"""Consume a topic, its partitions shared by all who run this.

``python consume_topic.py GROUP HOST:PORT``. The page that goes with it: docs/consume.md. One thread
and one consumer a partition; offsets are committed to Kafka under the group's name.
"""

from __future__ import annotations

import signal
import sys
import threading

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from muster import Assignment, Task, Worker

running: dict[Task, Partition] = {}
SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest"}


def process(task: Task, message: Message) -> None:
    """Your work. After a crash a message may come once more, so it must bear that."""
    print(f"{worker.member_id} {task} {message.offset()} {message.value().decode()}")


class Partition(threading.Thread):
    """Reads one partition from its committed offset on, until it is told to stop."""

    def __init__(self, task: Task) -> None:
        super().__init__(name=str(task))
        self.task = task
        self.told_to_stop = threading.Event()

    def run(self) -> None:
        """The thread."""
        here = TopicPartition(self.task.unit, self.task.partition)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **SETTINGS})
        try:
            here.offset = self.committed(consumer, here)
            consumer.assign([here])  # never subscribe: muster says whose the partition is
            while not self.told_to_stop.is_set():
                message = consumer.poll(0.25)
                if message is None or message.error() is not None:
                    continue  # nothing new, or a broker is away: the consumer tries again
                if self.is_ours():
                    process(self.task, message)
                    if worker.holds(self.task):
                        self.commit(consumer, message)
        finally:
            consumer.close()

    def is_ours(self) -> bool:
        """Wait while the lease has run out: it goes on, or `on_lost` tells us to stop."""
        while not worker.holds(self.task):
            if self.told_to_stop.wait(0.05):
                return False
        return True

    def committed(self, consumer: Consumer, here: TopicPartition) -> int:
        """Where the last owner stopped; asked again while no broker answers."""
        while not self.told_to_stop.is_set():
            try:
                return consumer.committed([here], timeout=5)[0].offset
            except KafkaException as error:
                print(f"{self.task}: {error}", file=sys.stderr)
        return here.offset

    def commit(self, consumer: Consumer, message: Message) -> None:
        """Processed up to here. One that fails is made good by the next."""
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            print(f"{self.task}: {error}", file=sys.stderr)


def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """These partitions are ours."""
    for task in tasks:
        running[task] = Partition(task)
        running[task].start()


def stop(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Stop them; when this returns they are somebody else's, and all is committed."""
    ended = [running.pop(task) for task in tasks if task in running]
    for partition in ended:
        partition.told_to_stop.set()
    for partition in ended:
        partition.join()
        worker.released(partition.task)


def lost(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """They are somebody else's already: stop, and commit nothing. `holds` says no by now."""
    stop(tasks, assignment)


group, servers = sys.argv[1:3]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # leaves the group on its way out
worker = Worker(
    group=group, bootstrap_servers=servers, on_assigned=start, on_revoked=stop, on_lost=lost
)
with worker:
    worker.wait()
