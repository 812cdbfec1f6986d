"""A worker's threads."""

import http.client
import logging
import os
import socket
import threading
from http import HTTPStatus
from typing import Any

import pytest
from gunicorn.config import Config

from scheduler_ext.serving import worker
from scheduler_ext.serving.connection import Said


class App:
    """What the worker serves: a call that ends its thread, and one that does not."""

    def __init__(self) -> None:
        self.ended: list[threading.Thread] = []
        self.calls = {"/exit": self.exit, "/filter": lambda body: Said(HTTPStatus.OK, "text/plain", body)}

    def exit(self, _body: bytes) -> Said:
        """As a library may that gives up."""
        self.ended.append(threading.current_thread())
        raise SystemExit

    def sends_away(self) -> bool:
        """Each connection is kept."""
        return False


def posted(port: int, path: str) -> bytes:
    """The answer to a POST on a connection of its own."""
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        caller.request("POST", path, b"{}")
        return caller.getresponse().read()
    finally:
        caller.close()


# what ends the thread is what this is about
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_call_that_ends_its_thread_leaves_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MOST_CONNECTIONS", 2)
    log: Any = logging.getLogger("a worker")
    app = App()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        served = worker.ConnectionWorker(1, os.getppid(), [listener], app, 30, Config(), log)
        served.PIPE = os.pipe()
        thread = threading.Thread(target=served.run, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            for _ in range(4):
                with pytest.raises((http.client.HTTPException, ConnectionError)):
                    posted(port, "/exit")
            assert posted(port, "/filter") == b"{}"
            for ended in app.ended:
                ended.join()  # else its end would be told in the middle of another test
        finally:
            served.handle_exit(15, None)
            os.write(served.PIPE[1], b".")
            thread.join()
            for end in served.PIPE:
                os.close(end)
            served.tmp.close()
