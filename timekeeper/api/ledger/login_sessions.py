"""Sessions of people who logged in to the dashboard by OpenID Connect. They are in the database, so every
worker and replica knows them, and a logout ends one everywhere."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from timekeeper.api.ledger.outages import NO_DATABASE
from timekeeper.runtime.auth.gate import Caller
from timekeeper.runtime.auth.tokens import is_login, new_login, subject_of
from timekeeper.runtime.http.problem_details import Problem, unavailable
from timekeeper.store import logins
from timekeeper.store.engine.engine import ConflictError, Store, UnavailableError

# The API server adds it to the groups of each user.
AUTHENTICATED = "system:authenticated"


class LoginSessions:
    """``clock``: milliseconds since 1970. Each call raises a Problem, 503, while the database is away."""

    def __init__(self, store: Store, clock: Callable[[], int]) -> None:
        self._store, self._clock = store, clock

    def begin(self, username: str, groups: tuple[str, ...], until_ms: int) -> str:
        """The token of a new session."""
        token = new_login()
        with _available(), self._store.writing() as connection:
            logins.begin(connection, _digest(token), username, groups, self._clock(), until_ms)
        return token

    def caller(self, token: str) -> Caller | None:
        """Who has the session; None if it has ended."""
        with _available(), self._store.reading() as connection:
            found = logins.find(connection, _digest(token), self._clock())
        if found is None:
            return None
        username, groups = found
        return Caller(username, uid="", groups=(*groups, AUTHENTICATED), extra=(), pod=None)

    def end(self, token: str) -> None:
        """End the session."""
        with _available(), self._store.writing() as connection:
            logins.end(connection, _digest(token))

    def name_of(self, token: str) -> str:
        """The name of the visitor with this token, of whatever kind; "" if it is not known now."""
        if not is_login(token):
            return subject_of(token)
        try:
            caller = self.caller(token)
        except Problem:
            return ""
        return caller.username if caller else ""


@contextmanager
def _available() -> Iterator[None]:
    try:
        yield
    except (UnavailableError, ConflictError) as error:
        raise unavailable(NO_DATABASE) from error


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
