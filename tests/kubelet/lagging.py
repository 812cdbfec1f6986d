"""A connection to the API server whose answers come late: watches lag, and what renews the Lease too."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from deploy.local.real_node import GATEWAY
from tests.kubelet.worlds import World


class Line:
    """Between kubelet and API server. ``lag_s``: how late each answer is from now on."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.lag_s, self._target = 0.0, target
        self.connections = 0  # that carried an answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, GATEWAY, 0), self._loop)
        self.port: int = made.result().sockets[0].getsockname()[1]

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, calls = await asyncio.open_connection(*self._target)
        self.connections += 1
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        await asyncio.gather(
            _copy(reader, calls),
            self._receive(answers, late),
            self._deliver(late, writer),
            return_exceptions=True,
        )

    async def _receive(
        self, answers: asyncio.StreamReader, late: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        while part := await answers.read(65_536):
            late.put_nowait((self._loop.time() + self.lag_s, part))
        late.put_nowait((0.0, b""))

    async def _deliver(
        self, late: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
    ) -> None:
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
    file = world.stack.cp.node_kubeconfig(world.node.name)
    before, url = file.read_text(), world.stack.cp.api.url
    parts = urlsplit(url)
    line = Line((GATEWAY, parts.port or 443))
    restart(world, before.replace(f":{parts.port}", f":{line.port}"))
    try:
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
