"""Answers that are in work: who share one, how many bytes they have, and whom they do not keep waiting."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from flask import Flask, Response
from sqlalchemy import event

from deploy.local.limits import LONGEST_S
from tests.support.waiting import eventually
from tests.timekeeper.worlds import Town, budgets
from timekeeper.api.http.shared_answers import SharedAnswers
from timekeeper.api.resources.health import probes
from timekeeper.api.resources.heartbeats import HeartbeatHandler
from timekeeper.runtime.http.connection import HttpConnection
from timekeeper.runtime.http.problem_details import Problem
from timekeeper.runtime.http.queues import HandlerPools
from timekeeper.runtime.http.service import HttpAnswer, HttpLimits, HttpService
from timekeeper.serving.gunicorn_app import heartbeat_route


class Kitchen:
    """Makes answers, each of which waits for `done`."""

    def __init__(self, shared: SharedAnswers) -> None:
        self._shared, self.begun, self.done = shared, 0, Event()

    def ask(self, key: str, kind: str = "large", size: int = 8) -> bytes:
        def make() -> Response:
            self.begun += 1
            number = self.begun
            assert self.done.wait(LONGEST_S)
            return Response(f"{number}".ljust(size))

        return self._shared.get(key, kind, make).get_data().strip()


def waiting(shared: SharedAnswers) -> int:
    """How many wait for an answer that is not begun."""
    futures: list[Any] = list(shared._awaited.values())
    leaders: Any = shared._changed
    return len(leaders._waiters) + sum(len(future._condition._waiters) for future in futures)


def together(*calls: Callable[[], Any]) -> tuple[ThreadPoolExecutor, list[Any]]:
    pool = ThreadPoolExecutor(len(calls))
    return pool, [pool.submit(call) for call in calls]


def test_those_who_wait_share_the_next_answer_and_nobody_gets_one_begun_before_he_came() -> None:
    shared = SharedAnswers()
    kitchen = Kitchen(shared)
    first, (answer,) = together(lambda: kitchen.ask("a"))
    eventually(lambda: kitchen.begun == 1)
    pool, others = together(*[lambda: kitchen.ask("a")] * 20)
    eventually(lambda: waiting(shared) == 20)
    kitchen.done.set()

    assert answer.result() == b"1"
    assert {each.result() for each in others} == {b"2"}
    assert kitchen.begun == 2
    first.shutdown()
    pool.shutdown()


def test_the_bytes_in_work_are_bounded_and_what_finds_no_room_is_refused() -> None:
    shared = SharedAnswers(most_bytes=20, wait_s=0)
    kitchen = Kitchen(shared)
    kitchen.done.set()
    assert kitchen.ask("a") == b"1"  # now it is known how large they are
    kitchen.done.clear()
    pool, two = together(lambda: kitchen.ask("b"), lambda: kitchen.ask("c"))
    eventually(lambda: kitchen.begun == 3)

    with pytest.raises(Problem) as refused:
        kitchen.ask("d")
    kitchen.done.set()

    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "2"})
    assert sorted(each.result() for each in two) == [b"2", b"3"]
    assert kitchen.ask("d") == b"4"
    pool.shutdown()


def test_what_cannot_be_made_fails_for_all_who_wait_and_is_made_for_the_next() -> None:
    shared = SharedAnswers()

    def fail() -> Response:
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            shared.get("a", "k", fail)
    assert shared.get("a", "k", lambda: Response("x")).get_data() == b"x"


def test_a_list_that_many_ask_for_at_once_is_read_for_the_first_and_for_all_others(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.begin(("configmaps", budgets(**{f"team_{number}": "gpuHours: 9" for number in range(30)})))
    town.get("/v1/budgets")
    read, goes_on = list[str](), Event()

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "FROM entry_errors" in statement:
            read.append(statement)
            assert goes_on.wait(LONGEST_S)

    event.listen(town.store.engine, "before_cursor_execute", count)
    pool, answers = together(*[lambda: town.get("/v1/budgets")] * 20)
    eventually(lambda: waiting(town.services.shared) == 19)
    goes_on.set()

    assert {answer.result().status_code for answer in answers} == {200}
    assert len({answer.result().get_data() for answer in answers}) == 1
    assert len(read) == 2 * 2  # the accounts, and entries that are broken
    pool.shutdown()
    town.close()


def test_probes_and_reviews_of_heartbeats_wait_for_no_thread_of_other_requests(tmp_path: Path) -> None:
    town = Town(tmp_path)
    held, app = Event(), Flask("held")
    heartbeats = heartbeat_route(HeartbeatHandler(town.services))
    pools = HandlerPools(HttpService(app, 1, HttpLimits(1), (heartbeats, *probes(town.services.readiness))))
    others = pools.find("GET", "/v1/budgets").threads
    assert others is not None
    others.submit(held.wait, LONGEST_S)

    assert [pools.find("GET", path).threads for path in ("/livez", "/readyz")] == [None, None]
    assert pools.later_threads.submit(str, 1).result(LONGEST_S) == "1"
    held.set()
    pools.close()
    town.close()


def test_a_large_body_is_one_in_memory_however_many_are_sent_it() -> None:
    body = bytes(8 * 1024 * 1024)
    ours, theirs = socket.socketpair()
    connections = [HttpConnection(ours, ("", 0), 1024, 0.0) for _ in range(100)]
    for connection in connections:
        connection.compose(HttpAnswer(HTTPStatus.OK, "text/plain", body), False)

    assert sum(len(connection.outbox) for connection in connections) < 5 * len(body)
    taken = Thread(target=connections[0].send)
    taken.start()
    received = 0
    while received < len(body):
        received += len(theirs.recv(1024 * 1024))
    taken.join()
    assert not connections[0].outbox
    ours.close()
    theirs.close()
