"""Kubernetes Events on pods that are evicted for overuse, so that `kubectl describe pod` shows the reason."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from timekeeper.accounts.card_use.evictions import EvictionCandidate
from timekeeper.core import names
from timekeeper.core.kube.reflector import ExpiredError, UnreachableError
from timekeeper.runtime.api_server import ANSWER_S, Api, accepted
from timekeeper.runtime.log import log

EVICTED = "GPUMemoryEviction"
PROTECTED = "GPUMemoryEvictionRefused"

REPORTER = f"{names.DOMAIN}/timekeeper"
_MOST_NOTE_BYTES = 1024  # the API server's limit
_MOST_NAME = 253
_MOST_INSTANCE = 128


@dataclass(frozen=True, slots=True)
class PodNotice:
    """An Event for a pod: a reason word, and a sentence."""

    namespace: str
    name: str
    uid: str
    reason: str
    note: str
    at_ms: int


class Telling:
    """Posts Events as ``instance``. Events that cannot be posted are in the log."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance

    def tell(self, notice: PodNotice) -> None:
        """Post it once, without a retry."""
        path = f"/apis/events.k8s.io/v1/namespaces/{notice.namespace}/events"
        try:
            accepted(self._api.call("POST", path, pod_event(notice, self._instance), timeout_s=ANSWER_S))
        except (UnreachableError, ExpiredError) as error:
            log("event-not-posted", level="warning", namespace=notice.namespace, pod=notice.name, error=error)


def evicted(candidate: EvictionCandidate, now_ms: int) -> PodNotice:
    return _notice(candidate, EVICTED, f"Evicted by Bursar: {_why(candidate)}", now_ms)


def protected(candidate: EvictionCandidate, now_ms: int) -> PodNotice:
    note = f"A PodDisruptionBudget prevents the eviction of this pod: {_why(candidate)}"
    return _notice(candidate, PROTECTED, note, now_ms)


def pod_event(notice: PodNotice, instance: str) -> Mapping[str, Any]:
    """The Event object. Its name contains a hash of message and time, so names do not clash."""
    at = datetime.fromtimestamp(notice.at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    text = f"{notice.uid} {notice.reason} {notice.at_ms}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    stem = re.sub(r"[-.]+$", "", notice.name[: _MOST_NAME - len(digest) - 1])
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{stem}.{digest}", "namespace": notice.namespace},
        "eventTime": at,
        "reportingController": REPORTER,
        "reportingInstance": instance[:_MOST_INSTANCE],
        "action": notice.reason,
        "reason": notice.reason,
        "type": "Warning",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": notice.namespace,
            "name": notice.name,
            "uid": notice.uid,
        },
        "note": notice.note.encode(errors="replace")[:_MOST_NOTE_BYTES].decode(errors="ignore"),
    }


def _notice(candidate: EvictionCandidate, reason: str, note: str, now_ms: int) -> PodNotice:
    over = candidate.over
    return PodNotice(over.namespace, over.name, over.uid, reason, note, now_ms)


def _why(candidate: EvictionCandidate) -> str:
    episode = candidate.over.episode
    since = datetime.fromtimestamp(episode.since_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = (each.excess for each in episode.cards)
    cards = ", ".join(f"{each.memory_mib} MiB of {each.uuid} (share {each.share_mib} MiB)" for each in found)
    grace_s = (candidate.grace_ms or 0) / 1000
    used = f"the pod has used more GPU memory than its share since {since}, now {cards}"

    return f"{used}; overuseGrace is {grace_s:g}s"
