"""Which certificate authority the sidecar trusts: the configured one, then what the timekeeper names.

A bundle that an answer offers is tried first at the next connection and takes over once the timekeeper has
been verified by it; until then the established one still counts, so that a mistaken rotation locks nobody
out. A bundle taken over is remembered with the configured one it replaced, for a restarted process; a
configured bundle that has changed since (a mounted file) overrules it.
"""

from __future__ import annotations

from sidecar.value import value

PEM = "-----BEGIN CERTIFICATE-----"


@value
class Trust:
    """PEM texts: what the operator configured, what the timekeeper was last verified by, what it offers."""

    configured: str
    established: str
    offered: str | None

    def bundles(self) -> tuple[str, ...]:
        """The bundles to verify the next connection by, in order."""
        return (self.offered, self.established) if self.offered else (self.established,)


def start(configured: str, remembered: tuple[str, str] | None = None) -> Trust:
    """The trust of a new process; ``remembered``: a configured bundle, and the one that took its place."""
    text = configured.strip()
    if remembered and remembered[0] == text:
        return Trust(text, remembered[1], None)
    return Trust(text, text, None)


def offer(trust: Trust, bundle: str | None) -> Trust:
    """The trust after an answer that named ``bundle``: the last word counts; no certificate in it is no
    word."""
    text = (bundle or "").strip()
    if PEM not in text or text == trust.offered:
        return trust
    return Trust(trust.configured, trust.established, None if text == trust.established else text)


def verified(trust: Trust, bundle: str) -> Trust:
    """The trust after the timekeeper was verified by ``bundle``."""
    if bundle != trust.offered:
        return trust
    return Trust(trust.configured, bundle, None)


def reconfigured(trust: Trust, configured: str) -> Trust:
    """The trust after a look at the configuration."""
    return trust if configured.strip() == trust.configured else start(configured)
