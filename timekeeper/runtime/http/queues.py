"""Which handler answers a request, and in which threads."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import Generic, NamedTuple, TypeVar

from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.service import Handler, HttpService
from timekeeper.runtime.http.wsgi_gateway import wsgi_handler


class HandlerPool(NamedTuple):
    """A handler and its threads; None: the loop calls it."""

    handler: Handler
    threads: ThreadPoolExecutor | None


class HandlerPools:
    """The routes of a service, each with its threads; the WSGI application gets all other requests."""

    def __init__(self, service: HttpService) -> None:
        self.later_threads = _threads(service.app_threads)  # of handlers that the loop's handlers return
        self._others = HandlerPool(
            wsgi_handler(service.app, "https" if service.tls else "http"), _threads(service.app_threads)
        )
        self._routes = {
            (each.method, each.path): HandlerPool(
                each.handler, _threads(each.threads) if each.threads else None
            )
            for each in service.routes
        }

        methods: dict[str, list[str]] = {}
        for each in service.routes:
            methods.setdefault(each.path, []).append(each.method)
        self._other_methods = {path: HandlerPool(_refused(known), None) for path, known in methods.items()}

    def find(self, method: str, path: str) -> HandlerPool:
        """The handler of this request. The path of a route has no other methods than the routes'."""
        return self._routes.get((method, path)) or self._other_methods.get(path, self._others)

    def close(self) -> None:
        """End the threads; what waits for one is not begun."""
        pools = (self.later_threads, self._others.threads, *(pool.threads for pool in self._routes.values()))
        for threads in pools:
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)


def _refused(methods: Sequence[str]) -> Handler:
    problem = Problem(
        HTTPStatus.METHOD_NOT_ALLOWED,
        "The method is not allowed for the requested URL.",
        headers={"Allow": ", ".join(sorted(methods))},
    )
    answer = problem.http_answer()
    return lambda _: answer


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="http")


T = TypeVar("T")


class ReplyQueue(Generic[T]):
    """``pipe``: its two ends, not blocking; a byte in it wakes the loop, once for all replies that wait."""

    def __init__(self, pipe: tuple[int, int]) -> None:
        self.fileno, self._wakes = pipe
        self._waiting: deque[T] = deque()
        self._wake_is_sent = False

    def put(self, reply: T) -> None:
        """In any thread; the loop takes the reply at its next turn, whatever wakes it."""
        self._waiting.append(reply)

    def wake(self) -> None:
        """In any thread: the loop has its next turn at once."""
        if not self._wake_is_sent:
            self._wake_is_sent = True
            with suppress(BlockingIOError):  # the pipe is full, so the loop wakes anyway
                os.write(self._wakes, b".")

    def woken(self) -> None:
        """In the loop, once ``fileno`` can be read, before `take`."""
        os.read(self.fileno, 4096)
        self._wake_is_sent = False

    def take(self) -> Iterator[T]:
        """In the loop: all replies that wait."""
        while self._waiting:
            yield self._waiting.popleft()
