"""Follows what the API server says about its front proxy."""

from threading import Event, Thread

from timekeeper.core.json_values import mapping
from timekeeper.core.kube.reflector import UnreachableError
from timekeeper.runtime.api_server import ANSWER_S, Api, accepted
from timekeeper.runtime.auth.front_proxy import FrontProxy, read_front_proxy
from timekeeper.runtime.log import log

CONFIG_MAP = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_LOOK_INTERVAL_S = 10.0


class FrontProxyWatch:
    """What the ConfigMap says now, looked at every ten seconds. While it cannot be read the last one counts.
    One per process, made after the fork."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stop = Event()
        self._trouble = ""
        self.now: FrontProxy | None = None  # None: there is none, and no caller is believed

    def start(self) -> None:
        """Look from now on, in a thread."""
        Thread(target=self._run, name="front-proxy", daemon=True).start()

    def _run(self) -> None:
        self.look()
        while not self._stop.wait(_LOOK_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Look once. Each trouble is logged once."""
        trouble = ""
        try:
            found = accepted(self._api.call("GET", CONFIG_MAP, timeout_s=ANSWER_S))
            self.now = read_front_proxy(mapping(found.get("data")))
        except UnreachableError as error:
            trouble = str(error)
        except ValueError as error:
            trouble, self.now = str(error), None
        if trouble and trouble != self._trouble:
            log("front-proxy-unknown", level="error", error=trouble)
        self._trouble = trouble
