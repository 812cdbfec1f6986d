"""What the client says where no answer comes."""

import pytest
import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError

from timekeeper.cli.client import _why


class Connection(HTTPConnection):
    """As the one that leads to a socket."""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (NewConnectionError(Connection("localhost"), "/s: no such file"), "/s: no such file"),
        (NewConnectionError(urllib3.connection.HTTPSConnection("a"), "refused"), "refused"),
        (
            ProtocolError("Connection aborted.", ConnectionResetError(104, "Connection reset by peer")),
            "Connection aborted: [Errno 104] Connection reset by peer",
        ),
    ],
    ids=["socket", "TLS", "aborted"],
)
def test_a_failure_is_a_sentence_without_objects(error: HTTPError, sentence: str) -> None:
    assert _why(error) == sentence
