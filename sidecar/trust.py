"""Which CA bundle the sidecar trusts: first the configured one, later the one that the timekeeper offers.

The next connection tries an offered bundle first. The bundle replaces the established one once it has
verified the timekeeper's certificate; until then the established one is tried too, so a mistaken rotation
locks no pod out. A replacement is saved together with the configured bundle that it replaced, for a restarted
process. If the configured bundle (a mounted file) changes, it overrides the replacement.
"""

from __future__ import annotations

from timekeeper.edge.http_client import PEM
from timekeeper.edge.value import value


@value
class Trust:
    """Three CA bundles, as PEM texts."""

    configured: str  # by the operator
    established: str  # verified the timekeeper last
    offered: str | None  # by the timekeeper, not verified yet

    def bundles(self) -> tuple[str, ...]:
        """The bundles to try for the next connection, in order."""
        return (self.offered, self.established) if self.offered else (self.established,)


def start(configured: str, remembered: tuple[str, str] | None = None) -> Trust:
    """The trust of a new process. ``remembered``: a configured bundle and the one that replaced it."""
    text = configured.strip()
    if remembered and remembered[0] == text:
        return Trust(text, remembered[1], None)
    return Trust(text, text, None)


def offer(trust: Trust, bundle: str | None) -> Trust:
    """The trust after a reply that offers ``bundle``; the last offer counts. One without a certificate is
    ignored."""
    text = (bundle or "").strip()
    if PEM not in text or text == trust.offered:
        return trust
    return Trust(trust.configured, trust.established, None if text == trust.established else text)


def verified(trust: Trust, bundle: str) -> Trust:
    """The trust after ``bundle`` verified the timekeeper."""
    if bundle != trust.offered:
        return trust
    return Trust(trust.configured, bundle, None)


def reconfigured(trust: Trust, configured: str) -> Trust:
    """The trust after the configuration was read again."""
    return trust if configured.strip() == trust.configured else start(configured)
