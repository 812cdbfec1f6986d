"""Passes connections on, in place of kube-proxy: `forward.py ADDRESS PORT HOST PORT`."""

import asyncio
import sys


async def main(address: str, port: str, host: str, to: str) -> None:
    """Until it is killed."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, calls = await asyncio.open_connection(host, int(to))
        await asyncio.gather(copy(reader, calls), copy(answers, writer), return_exceptions=True)

    async with await asyncio.start_server(serve, address, int(port)) as server:
        await server.serve_forever()


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until the source ends."""
    try:
        while part := await source.read(65_536):
            target.write(part)
            await target.drain()
    finally:
        target.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
