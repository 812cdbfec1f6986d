"""A client of the timekeeper that takes posts, or fails."""

from pathlib import Path

from timekeeper.edge.timekeeper_client import PostRefusedError, TimekeeperClient, TimekeeperError


class PostClient(TimekeeperClient):
    """``away``: each post fails; ``refuses``: a body with this in it is refused; ``posts``: what it took."""

    def __init__(self) -> None:
        super().__init__("https://127.0.0.1:1", "/", Path("/nowhere"), lambda: None)
        self.away, self.posts, self.refuses = False, list[bytes](), b"nothing"

    def post(self, body: bytes) -> None:
        if self.away:
            raise TimekeeperError("away")
        if self.refuses in body:
            raise PostRefusedError("the timekeeper answered 400")
        self.posts.append(body)
