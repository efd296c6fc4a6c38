"""A TCP proxy between a process and its broker that causes network faults.

=========  ==========================================================================
`mend`     bytes pass
`cut`      connections are reset, new ones refused: the far host is gone
`stall`    connections stand, and nothing passes: a network that drops packets. What
           was under way arrives when it is mended. One direction alone can be stalled
`delay`    every chunk waits: a slow network, or a slow broker
=========  ==========================================================================

All of it runs on one thread with an event loop of its own; faults may be set from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from muster.broker.embedded_kafka import HOST

T = TypeVar("T")
CHUNK = 65_536
TO_BROKER, FROM_BROKER = "to the broker", "from the broker"
BOTH = frozenset({TO_BROKER, FROM_BROKER})


class Proxy:
    """Ports that forward to other ports, all with the same fault; a context manager.

    Args:
        routes: port listened on → port it leads to, on loopback.
    """

    def __init__(self, routes: dict[int, int]) -> None:
        self._routes = dict(routes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._is_cut = False
        self._delay_s = 0.0
        self._passes = dict.fromkeys(BOTH, asyncio.Event())

    def mend(self) -> None:
        """End the fault: let everything pass."""
        self._run(self._set(cut=False, stalled=frozenset(), delay_s=0.0))

    def cut(self) -> None:
        """Reset every connection, refuse new ones."""
        self._run(self._set(cut=True, stalled=frozenset(), delay_s=0.0))

    def stall(self, *directions: str) -> None:
        """Hold all bytes back, or those of one direction."""
        held = frozenset(directions) or BOTH
        self._run(self._set(cut=False, stalled=held, delay_s=0.0))

    def delay(self, each_s: float) -> None:
        """Delay every chunk, in both directions."""
        self._run(self._set(cut=False, stalled=frozenset(), delay_s=each_s))

    # ---- on the loop

    async def _set(self, *, cut: bool, stalled: frozenset[str], delay_s: float) -> None:
        self._is_cut, self._delay_s = cut, delay_s
        for direction, passes in self._passes.items():
            if direction in stalled:
                passes.clear()
            else:
                passes.set()
        if cut:
            for connection in self._connections:
                connection.cancel()

    async def _open(self) -> None:
        self._passes = {direction: asyncio.Event() for direction in BOTH}
        for passes in self._passes.values():
            passes.set()
        for port, target in self._routes.items():

            def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int = target
            ) -> None:
                connection = asyncio.ensure_future(self._carry(reader, writer, target))
                self._connections.add(connection)
                connection.add_done_callback(self._connections.discard)

            self._servers.append(await asyncio.start_server(serve, HOST, port))

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int
    ) -> None:
        """Serve one connection."""
        far: asyncio.StreamWriter | None = None
        try:
            if self._is_cut:
                return
            answers, far = await asyncio.open_connection(HOST, target)
            # When one side ends, close both: Kafka's clients never close only one half.
            pumps = [
                asyncio.ensure_future(self._pump(reader, far, TO_BROKER)),
                asyncio.ensure_future(self._pump(answers, writer, FROM_BROKER)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        while chunk := await reader.read(CHUNK):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._passes[direction].wait()
            writer.write(chunk)
            await writer.drain()

    async def _shut(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):
            self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
