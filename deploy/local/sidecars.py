"""Runs real sidecars for pods on kwok nodes, as a kubelet would: for each running governed pod a ``python -m
sidecar`` with a token bound to that pod, ended when the pod ends."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from deploy.local.api import ApiError
from deploy.local.ending import undisturbed
from deploy.local.kwok_stages import SIDECAR
from deploy.local.launcher import Launcher
from deploy.local.stack import Stack

_LOOK_EVERY_S = 0.25
_GOVERNED = "/api/v1/pods?labelSelector=bursar.dev%2Fgoverned%3Dtrue"


class Sidecars:
    """A context manager: serves the governed pods until exit. ``running``: processes by pod UID."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._folder = stack.folder / "sidecars"
        self._stopping = threading.Event()
        self._launcher = Launcher()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Sidecars":
        self._folder.mkdir()
        self._thread = threading.Thread(target=self._follow, name="sidecars", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with undisturbed():
            self._stopping.set()
            self._thread.join()
            self._launcher.close()

    def _follow(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            try:
                pods = self._stack.cp.api.call("GET", _GOVERNED)["items"]
                self._step({pod["metadata"]["uid"]: pod for pod in pods if _runs_sidecar(pod)})
            except (ApiError, OSError) as error:
                print(f"sidecars: the API server did not do what a kubelet needs: {error}", file=sys.stderr)

    def _step(self, wanted: dict[str, dict[str, Any]]) -> None:
        for uid in [uid for uid in self.running if uid not in wanted]:
            self.running.pop(uid).send_signal(signal.SIGTERM)
        for uid, pod in wanted.items():
            if self._stopping.is_set():  # the rest of many pods would delay the end by seconds
                return
            if uid not in self.running:
                self._start(uid, pod)

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        """The environment is the one that the webhook wrote into the pod, with this machine's paths."""
        folder = self._folder / uid
        folder.mkdir(exist_ok=True)
        token = folder / "token"
        try:
            token.write_text(self._bound_token(pod))
        except ApiError as error:
            print(f"sidecars: no token for a pod that is being deleted: {error}", file=sys.stderr)
            return
        with (folder / "log").open("ab") as log:
            command = [*self._stack.python("sidecar"), "-m", "sidecar"]
            self.running[uid] = self._launcher.start(
                command, log, env=_environment(pod, self._stack, folder, token)
            )

    def _bound_token(self, pod: dict[str, Any]) -> str:
        account = pod["spec"].get("serviceAccountName", "default")
        return self._stack.token(pod["metadata"]["namespace"], account, audience="bursar", pod=pod)

    def logs(self) -> str:
        """The logs of all sidecars."""
        return "".join(file.read_text(errors="replace") for file in sorted(self._folder.glob("*/log")))


def _runs_sidecar(pod: dict[str, Any]) -> bool:
    status = pod["status"]
    listed = status.get("initContainerStatuses", [])
    return status.get("phase") == "Running" and any(
        each["name"] == SIDECAR and "running" in each["state"] for each in listed
    )


def _environment(pod: dict[str, Any], stack: Stack, folder: Path, token: Path) -> dict[str, str]:
    (container,) = (each for each in pod["spec"]["initContainers"] if each["name"] == SIDECAR)
    written = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    cards = pod["metadata"]["annotations"].get("visible-devices.bursar.dev/bursar-sidecar", "")
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    return {
        **stack.environment(traced=False),
        **written,
        "PATH": os.environ.get("PATH", os.defpath),
        "NVIDIA_VISIBLE_DEVICES": cards,
        "BURSAR_TOKEN_FILE": str(token),
        "BURSAR_SPOOL": str(spool),
    }
