"""A connection to the API server whose answers come late: watches lag, and what renews the Lease too."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from deploy.local.real_node import GATEWAY
from tests.kubelet.worlds import World

Late = asyncio.Queue[tuple[float, bytes]]


class Line:
    """Between kubelet and API server. ``lag_s``: how late each answer is from now on."""

    def __init__(self, port: int) -> None:
        self.lag_s, self.port, self._to = 0.0, 0, port
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._is_open.wait()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._serve, GATEWAY, 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._is_open.set()
            await self._stop.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, calls = await asyncio.open_connection(GATEWAY, self._to)
        late = Late()
        parts = _copy(reader, calls), self._receive(answers, late), self._deliver(late, writer)
        try:
            await asyncio.gather(*parts)
        except (OSError, asyncio.CancelledError):
            return
        finally:
            for each in (calls, writer):
                each.close()
                with suppress(OSError):
                    await each.wait_closed()

    async def _receive(self, answers: asyncio.StreamReader, late: Late) -> None:
        while part := await answers.read(65_536):
            late.put_nowait((self._loop.time() + self.lag_s, part))
        late.put_nowait((0.0, b""))

    async def _deliver(self, late: Late, writer: asyncio.StreamWriter) -> None:
        while True:
            due_s, part = await late.get()
            await asyncio.sleep(due_s - self._loop.time())
            if not part:
                writer.close()
                return
            writer.write(part)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while part := await source.read(65_536):
        target.write(part)
    target.close()


@contextmanager
def lagging(world: World) -> Iterator[Line]:
    """The kubelet, started anew, speaks over such a line."""
    before = world.stack.cp.node_kubeconfig(world.node.name).read_text()
    port = urlsplit(world.stack.cp.api.url).port or 443
    line = Line(port)
    try:
        restart(world, before.replace(f":{port}", f":{line.port}"))
        yield line
    finally:
        line.lag_s = 0
        restart(world, before)
        line.close()


def restart(world: World, kubeconfig: str) -> None:
    """Start the kubelet with this kubeconfig."""
    world.node.stop_kubelet()
    world.stack.cp.node_kubeconfig(world.node.name).write_text(kubeconfig)
    world.node.start_kubelet()
    world.node.wait_until_ready()
