"""Keeps the match condition that spares calls to /validate as it should be, while webhooks come and go."""

import threading
from collections.abc import Callable

from webhook import log
from webhook.controller import checks
from webhook.controller.cluster import Cluster, UnreachableError
from webhook.settings.settings import CertificateSettings

_LOOK_S = 10  # and a watch that has died in silence, a new leader or a policy is noticed by then
_PAUSE_S = 0.1  # nothing that happens in it is missed: the watch begins where the list ended
_AGAIN_S = 1.0


class Sparing:
    """Has /validate asked about new pods as `webhook.controller.checks` would have it, by a thread of its
    own: each time a configuration of mutating webhooks is changed, and every few seconds.

    Whoever leads spares calls; whoever sees that a call is needed sees to it, whether he leads or not.
    """

    def __init__(self, cluster: Cluster, settings: CertificateSettings, leads: Callable[[], bool]) -> None:
        self._cluster, self._name, self._leads = cluster, settings.configuration, leads
        self._all = settings.checks == "all"
        self._told: tuple[str, str] = ("", "")

    def keep(self, ended: threading.Event) -> None:
        """Until the process ends."""
        while not ended.is_set():
            try:
                version = self.set_right()
                ended.wait(_PAUSE_S)
                if version:
                    self._cluster.await_change(version, _LOOK_S)
            except UnreachableError as error:
                self._tell("checks-not-set", str(error))
                ended.wait(_AGAIN_S)

    def set_right(self) -> str:
        """One look. The version of the list to wait from; empty where another was faster with a write, so
        that all must be read anew. Raises UnreachableError."""
        policies = self._cluster.policies()
        configurations, version, now = self._cluster.mutating()
        check, its_version = self._cluster.checking(self._name)
        why = "--checks=all" if self._all else checks.obstacle(configurations, self._name, check, policies)
        if why:
            if check is not None and checks.spared_until(check) is not None:
                self._cluster.spare(self._name, None)
            self._tell("checks-all", why)
            return version
        until = checks.renewed(check or {}, now)
        if until is not None and self._leads():
            if not self._cluster.spare(self._name, until, its_version):
                return ""
            self._tell("checks-spared", "nobody may change a pod after ours")
        return version

    def _tell(self, event: str, why: str) -> None:
        """Says what has changed since it last did."""
        if (event, why) != self._told:
            log.to_stderr(event, why=why)
        self._told = event, why
