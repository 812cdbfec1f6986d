"""A small client of the API server for the local control plane and its tests. Standard library; one
connection per call.
"""

import http.client
import json
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class ApiError(Exception):
    """The API server answered with an error; `status` is the HTTP code, the text its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The API server at `url`, trusted by the CA in `ca_file`, called with a bearer token."""

    url: str
    ca_file: Path
    token: str = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float = 30,
    ) -> Any:
        """Make a call with `body` as JSON. Returns the answer: decoded if it is JSON, else its text. Raises
        ApiError or OSError.
        """
        target = urlsplit(self.url)
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection(
            target.hostname or "", target.port, context=tls, timeout=timeout_s
        )
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        if response.status >= 300:
            raise ApiError(response.status, json.loads(text).get("message", text) if is_json else text)
        return json.loads(text) if is_json else text

    def answers(self, path: str) -> bool:
        """Whether a GET succeeds now; False for every refusal and failure to connect."""
        try:
            self.call("GET", path, timeout_s=5)
        except (ApiError, OSError, http.client.HTTPException):
            return False
        return True
