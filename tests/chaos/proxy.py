"""A TCP proxy between the clients and a server, whose behaviour is switched while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

Way = Literal["requests", "replies"]
_CHUNK = 64 << 10
_TICK_S = 0.002
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST in place of FIN.


@dataclass
class Rules:
    """What happens to the bytes that go one way.

    Args:
        delay_s: Each byte arrives so much later.
        freeze: Nothing arrives, and what was sent waits.
        freeze_after: The same after so many chunks, counted over all connections.
        bury_after: The connection that brings the next chunk but so many goes silent for ever.
        dribble: ``(bytes, seconds)``: so many at a time, with a pause after each.
        cut_after: A connection is reset after so many bytes, counted from when it began or from
            when this was set.
        cut_by: Reset, or closed in an orderly way.
        flip: ``(first, every)``: in each chunk, from this offset on, about one bit in so many
            bytes is flipped.
        seed: Which ones.
    """

    delay_s: float = 0.0
    freeze: bool = False
    freeze_after: int | None = None
    bury_after: int | None = None
    dribble: tuple[int, float] | None = None
    cut_after: int | None = None
    cut_by: Literal["reset", "close"] = "reset"
    flip: tuple[int, int] | None = None
    seed: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def flipped(self, data: bytes) -> tuple[bytes, int]:
        """The bytes with some bits flipped, and how many."""
        if self.flip is None:
            return data, 0
        first, every = self.flip
        changed, count, place = bytearray(data), 0, first + self.random.randrange(every)
        while place < len(changed):
            changed[place] ^= 1 << self.random.randrange(8)
            count += 1
            place += 1 + self.random.randrange(2 * every)
        return bytes(changed), count


class _Link:
    """One client's connection, and ours to the server in its place."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.ends = [client]
        self.dead = False
        """Nothing goes through it any more, and neither end is told."""
        self.hung_up = False
        """Whether an end was closed by its process."""

    def break_off(self, how: str) -> None:
        for end in self.ends:
            sock = end.get_extra_info("socket")
            if how == "reset" and sock is not None and sock.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(OSError, RuntimeError):
                if how == "reset":
                    end.transport.abort()
                else:
                    end.close()


class Proxy:
    """Listens on a port of loopback and passes on to a Unix socket, on a thread of its own.

    Args:
        target: The server's socket file. May be changed: new connections go to the new one.
        port: Where to listen.
    """

    def __init__(self, target: str, port: int) -> None:
        self.target = target
        self.port = port
        self.requests, self.replies = Rules(), Rules()
        self.silent = False
        """Whether new connections are accepted and then hear nothing."""
        self.counts: Counter[str] = Counter()
        self._links: set[_Link] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{port}")
        self._thread.start()
        try:
            self.listen()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Its store URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def listen(self) -> None:
        """Accepts connections, again if it refused them."""
        self._do(self._listen)

    def refuse(self) -> None:
        """Nobody listens any more: connecting is refused. Connections that are there stay."""
        self._do(self._refuse)

    def break_off(self, how: Literal["reset", "close"] = "reset") -> int:
        """Ends every connection. Returns how many there were."""
        return int(self._do(lambda: self._break_off(how)))

    def bury(self) -> int:
        """Every connection that is there goes silent for ever. Returns how many."""
        return int(self._do(self._bury))

    def set(self, way: Way, rules: Rules) -> None:
        """What happens to bytes from now on; `Rules()` for nothing."""
        setattr(self, way, rules)

    def close(self) -> None:
        """Ends all of it."""
        if not self._loop.is_closed():
            self._do(self._shut_down)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def _do(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = work()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _break_off(self, how: str) -> int:
        links = list(self._links)
        for link in links:
            link.break_off(how)
        return len(links)

    def _bury(self) -> int:
        for link in self._links:
            link.dead = True
        return len(self._links)

    async def _shut_down(self) -> None:
        await self._refuse()
        await self._break_off("reset")
        ours = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not ours]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for _ in range(3):  # Transports close their sockets a little later.
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        self.counts["connections"] += 1
        try:
            while self.silent:
                self.counts["silenced"] += 1
                await asyncio.sleep(_TICK_S)
            there, back = await asyncio.open_unix_connection(self.target)
            link.ends.append(back)
            pumps = [
                asyncio.ensure_future(self._pump("requests", reader, back, link)),
                asyncio.ensure_future(self._pump("replies", there, writer, link)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # The server is down, or an end is gone: the other one learns of it below.
        finally:
            self._links.discard(link)
            link.break_off("close")

    async def _pump(
        self, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter, link: _Link
    ) -> None:
        loop, cut = asyncio.get_running_loop(), _Cut()
        # A queue between arriving and leaving: a delay must not make a slow line of a fast one.
        arrived: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def read() -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(_CHUNK):
                    await arrived.put((loop.time(), data))
            link.hung_up = True
            await arrived.put((loop.time(), b""))

        reading = asyncio.ensure_future(read())
        try:
            while True:
                came, data = await arrived.get()
                rules = await self._wait(way, came, link)
                if not data:
                    return
                if rules.freeze_after is not None:
                    rules.freeze = rules.freeze_after <= 0
                    rules.freeze_after -= 1
                if rules.bury_after is not None:
                    link.dead = rules.bury_after <= 0
                    rules.bury_after = None if link.dead else rules.bury_after - 1
                async for part in self._altered(way, rules, data):
                    await self._wait(way, came, link)
                    left = cut.left(self._rules(way), len(part))
                    sink.write(part[:left])
                    await sink.drain()
                    self.counts[f"{way}: bytes"] += left
                    if left < len(part):
                        self.counts["cut"] += 1
                        link.break_off(rules.cut_by)
                        return
        except OSError:
            return
        finally:
            reading.cancel()

    def _rules(self, way: Way) -> Rules:
        return self.requests if way == "requests" else self.replies

    async def _wait(self, way: Way, came: float, link: _Link) -> Rules:
        """Until the bytes may go on. The rules may change meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            rules = self._rules(way)
            late = came + rules.delay_s - loop.time()
            if not rules.freeze and not link.dead and late <= 0:
                return rules
            if link.dead and link.hung_up:
                raise ConnectionAbortedError("given up by a client")
            self.counts[f"{way}: held up"] += 1
            held = rules.freeze or link.dead
            await asyncio.sleep(_TICK_S if held else min(late, 10 * _TICK_S))

    async def _altered(self, way: Way, rules: Rules, data: bytes) -> AsyncIterator[bytes]:
        data, flips = rules.flipped(data)
        self.counts["flips"] += flips
        while data:
            slow = self._rules(way).dribble
            if slow is None:
                yield data
                return
            size, pause = slow
            yield data[:size]
            data = data[size:]
            self.counts[f"{way}: dribbles"] += 1
            await asyncio.sleep(pause)


class _Cut:
    """Counts what one connection was sent since its rules were set."""

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._sent = 0

    def left(self, rules: Rules, size: int) -> int:
        """How many of the next bytes may still go."""
        if rules is not self._rules:
            self._rules, self._sent = rules, 0
        if rules.cut_after is None:
            return size
        allowed = min(size, rules.cut_after - self._sent)
        self._sent += allowed
        return allowed
