"""Which replica should lead: a look at a Lease in the API server.

The answer is only a hint. Fencing (`scheduler_ext.leadership.takeover`) keeps two replicas that both believe
they lead from giving out a card twice, so nothing here needs a clock that replicas agree on.
"""

import time
from typing import Protocol

from scheduler_ext.log import Log
from scheduler_ext.settings import ElectionSettings
from timekeeper.edge.lease import CALL_S, LeaseElection, LeaseName, read_lease
from timekeeper.runtime.api_server import Answered, Api, lease_caller

FOLLOW_S = 2.0  # kube-scheduler renews its own each two seconds


class Election(Protocol):
    """Says whether this replica should lead. ``every_s``: the interval between looks."""

    every_s: float

    def look(self) -> bool | None:
        """True if this replica should lead; None if that is unknown, and nothing changes."""

    def give_back(self) -> None:
        """This replica ends: another may lead at once."""


class Unelected:
    """The only replica, which leads."""

    every_s = 60.0

    def look(self) -> bool | None:
        """Always True."""
        return True

    def give_back(self) -> None:
        """There is no other replica."""


class SchedulersLease:
    """Each kube-scheduler has an extender beside it: the extender whose kube-scheduler holds the Lease leads.
    kube-scheduler's identity is its host's name, ``_`` and a random word."""

    every_s = FOLLOW_S

    def __init__(self, api: Api, lease: LeaseName, host: str) -> None:
        self._api, self._path, self._mine = api, lease.path, f"{host}_"

    def look(self) -> bool | None:
        """True if this host's kube-scheduler holds the Lease."""
        reply = self._api.call("GET", self._path, timeout_s=CALL_S)
        if isinstance(reply, Answered) and reply.status == 200:
            return read_lease(reply.body).holder.startswith(self._mine)
        return False if isinstance(reply, Answered) and reply.status == 404 else None

    def give_back(self) -> None:
        """Nothing to do: the Lease is kube-scheduler's."""


class OwnLease(LeaseElection):
    """Replicas behind one Service elect among themselves."""

    _renewed_s: float | None = None

    def look(self) -> bool | None:
        """As `LeaseElection.look`. A Lease that could not be renewed for as long as it lasts counts as
        lost."""
        holds = super().look()
        now_s = self._now_s()
        if holds:
            self._renewed_s = now_s
        elif holds is None and self._renewed_s is not None and now_s - self._renewed_s >= self._duration_s:
            holds = False
        if holds is False:
            self._renewed_s = None
        return holds


def election_of(api: Api, wanted: ElectionSettings, log: Log) -> Election:
    """The election that the settings name."""
    if wanted.form == "scheduler":
        return SchedulersLease(api, LeaseName(*wanted.lease), wanted.identity)
    if wanted.form == "lease":
        seconds = wanted.lease_duration_ms // 1000
        calls, name = lease_caller(api), LeaseName(*wanted.lease)
        return OwnLease(calls, name, wanted.identity, seconds, time.monotonic, log)
    return Unelected()
