"""A login by the provider, from its first step to a session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from flask import Request

from timekeeper import metrics
from timekeeper.dashboard.login.id_token import LoginRefusedError, ProviderAwayError, person_of
from timekeeper.dashboard.login.pending import PendingLogin, pending
from timekeeper.dashboard.login.provider import Provider
from timekeeper.edge.clock import monotonic_ms
from timekeeper.log import log
from timekeeper.runtime.oidc_settings import OidcSettings

_LOGGED_A_MINUTE = 30  # refusals, which need no rights


class SessionStore(Protocol):
    """Where sessions are. Each call raises a Problem, 503, while that is away."""

    def begin(self, username: str, groups: tuple[str, ...], until_ms: int) -> str:
        """The token of a new session."""

    def end(self, token: str) -> None:
        """End a session."""

    def name_of(self, token: str) -> str:
        """The name of the visitor with a token of whatever kind; "" if it is not known now."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A new session's token, and the path to go on with."""

    token: str
    onward: str


class OidcLogin:
    """One per process. ``clock``: milliseconds since 1970."""

    def __init__(self, settings: OidcSettings, sessions: SessionStore, clock: Callable[[], int]) -> None:
        self._settings, self._clock = settings, clock
        self.sessions, self.provider = sessions, Provider(settings, clock)
        self._minute, self._logged = 0, 0

    def first_step(self, login: PendingLogin) -> str:
        """The provider's address for this login. Raises ProviderAwayError."""
        try:
            return self.provider.authorization_url(login.state, login.nonce, login.challenge)
        except ProviderAwayError as error:
            self._failed("provider away", error)
            raise

    def last_step(self, request: Request) -> Begun:
        """The session of the user in the provider's answer. Raises LoginRefusedError,
        ProviderAwayError, or a Problem while the database is away."""
        try:
            return self._begin(request)
        except LoginRefusedError as error:
            self._failed("refused", error)
            raise
        except ProviderAwayError as error:
            self._failed("provider away", error)
            raise

    def end(self, token: str) -> str:
        """End the session; gives where the provider's own one ends, "": nowhere."""
        log("logged-out", user=self.sessions.name_of(token))
        self.sessions.end(token)
        return self.provider.logout_url()

    def _begin(self, request: Request) -> Begun:
        login, given = pending(request), request.args
        if login is None or not login.is_answered_by(given.get("state", "")):
            raise LoginRefusedError("this browser has begun no such login, or too long ago; begin again")
        if given.get("iss", self._settings.issuer) != self._settings.issuer:
            raise LoginRefusedError("another provider has answered")
        if "error" in given:
            said = given.get("error_description") or given["error"]
            raise LoginRefusedError(f"the provider says: {said[:200]}")
        claims = self.provider.claims(given.get("code", ""), login.verifier, login.nonce)
        person = person_of(claims, self._settings)
        now_ms = self._clock()
        until_ms = min(int(1000 * claims["exp"]), now_ms + self._settings.lifetime_ms)
        if until_ms <= now_ms:
            raise LoginRefusedError("the ID token is not valid: it has expired")
        token = self.sessions.begin(person.username, person.groups, until_ms)
        metrics.LOGINS.labels("accepted").inc()
        log("logged-in", user=person.username, groups=len(person.groups), for_s=(until_ms - now_ms) // 1000)
        return Begun(token, login.onward)

    def _failed(self, outcome: str, error: Exception) -> None:
        metrics.LOGINS.labels(outcome).inc()
        minute = monotonic_ms() // 60_000
        if minute != self._minute:
            self._minute, self._logged = minute, 0
        self._logged += 1
        if self._logged <= _LOGGED_A_MINUTE:
            log("login-failed", level="warning", outcome=outcome, reason=error)
