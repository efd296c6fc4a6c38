"""A coroutine per task, on one event loop. ``python asyncio_worker.py GROUP HOST:PORT``."""

from __future__ import annotations

import argparse
import asyncio
import signal

from muster import Assignment, Task, Worker

running: dict[Task, asyncio.Task[None]] = {}


async def work(task: Task, assignment: Assignment) -> None:
    """Do the task's work in small steps."""
    while True:
        print(f"{task}: a step, generation {assignment.generation}")
        await asyncio.sleep(1)


async def start(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Start the tasks: this worker owns them now."""
    for task in tasks:
        running[task] = asyncio.create_task(work(task, assignment))


async def end(tasks: tuple[Task, ...], assignment: Assignment) -> None:
    """Stop the tasks: when this returns, other members may get them."""
    ended = [running.pop(task) for task in tasks if task in running]
    for coroutine in ended:
        coroutine.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def main(group: str, servers: str) -> None:
    """Work until SIGTERM or Ctrl-C."""
    signalled = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, signalled.set)
    async with Worker(
        group=group, bootstrap_servers=servers, on_assigned=start, on_revoked=end
    ) as worker:
        ended = asyncio.create_task(worker.ended())
        await asyncio.wait(
            [ended, asyncio.create_task(signalled.wait())], return_when=asyncio.FIRST_COMPLETED
        )


parser = argparse.ArgumentParser(description="A worker with a coroutine per task.")
parser.add_argument("group", metavar="GROUP", help="the group that the worker joins")
parser.add_argument("servers", metavar="HOST:PORT", help="Kafka")
args = parser.parse_args()
asyncio.run(main(args.group, args.servers))
