"""Which handler answers a request, and in which threads."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from timekeeper.runtime.http.service import Handler, HttpService
from timekeeper.runtime.http.wsgi_gateway import wsgi_handler


class HandlerPool(NamedTuple):
    """A handler and its threads; None: the loop calls it."""

    handler: Handler
    threads: ThreadPoolExecutor | None


class HandlerPools:
    """The routes of a service, each with its threads; the WSGI application gets all other requests."""

    def __init__(self, service: HttpService) -> None:
        self.app_threads = _threads(service.app_threads)
        self._others = HandlerPool(
            wsgi_handler(service.app, "https" if service.tls else "http"), self.app_threads
        )
        self._routes = {
            (each.method, each.path): HandlerPool(
                each.handler, _threads(each.threads) if each.threads else None
            )
            for each in service.routes
        }

    def find(self, method: str, path: str) -> HandlerPool:
        """The handler of this request."""
        return self._routes.get((method, path), self._others)

    def close(self) -> None:
        """End the threads; what waits for one is not begun."""
        for pool in (self._others, *self._routes.values()):
            if pool.threads is not None:
                pool.threads.shutdown(wait=False, cancel_futures=True)


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="http")
