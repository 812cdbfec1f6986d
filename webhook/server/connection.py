"""A client's connection, and where the requests in what it sends begin and end."""

import re
import selectors
import ssl
import time
from typing import Any

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 8 * 1024 * 1024  # the API server itself takes objects of 3 MiB; a review holds two at most

FIRST_WORD_S = 10.0  # for a handshake and the first request

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)


class Connection:
    """A client: what it has sent that is not answered yet, what it is still to be sent, and until when it may
    take its time. gunicorn's responses write to it as to a socket; the worker sends it on."""

    def __init__(self, sock: ssl.SSLSocket, client: Any, server: Any) -> None:
        self.sock, self.client, self.server = sock, client, server
        self.until = time.monotonic() + FIRST_WORD_S
        self.greeted = False  # the handshake is through
        self.ending = False  # nothing more is answered
        self.said_all = False  # and the last answer is sent
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.awaited = 0  # bytes of the request that the inbox begins with, once its head is there
        self.head = b""  # its head, with a length of 0
        self.head_bytes = 0  # how many of the bytes are its head
        self.wants = selectors.EVENT_READ

    def sendall(self, data: bytes) -> None:
        """Takes what is to be sent."""
        self.outbox += data

    send = sendall

    def gettimeout(self) -> float:
        """Nothing written here ever waits."""
        return 0.0

    def allow(self, seconds: float) -> None:
        """Until when the next thing must have happened."""
        self.until = time.monotonic() + seconds


def measure(connection: Connection) -> tuple[int, str, str] | None:
    """Sets how long the request at the inbox's beginning is, once its head is there; gives the refusal (code,
    reason, sentence) of one that cannot be taken."""
    end = connection.inbox.find(b"\r\n\r\n")
    if end < 0:
        too_long = len(connection.inbox) > MOST_HEAD_BYTES
        return (431, "Request Header Fields Too Large", "the head is too long") if too_long else None
    head = bytes(connection.inbox[: end + 2])
    if _CHUNKED.search(head):
        return 411, "Length Required", "send the body with its Content-Length"
    told = _LENGTH.search(head)
    length = int(told[1]) if told else 0
    if length > MOST_BODY_BYTES:
        return 413, "Content Too Large", f"a body may have {MOST_BODY_BYTES} bytes"
    connection.awaited = end + 4 + length
    connection.head_bytes = end + 4
    connection.head = (head[: told.start(1)] + b"0" + head[told.end(1) :] if told else head) + b"\r\n"
    return None
