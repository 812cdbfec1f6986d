"""Who calls, and whether they may: Kubernetes' own TokenReview and SubjectAccessReview, remembered for a
while."""

import hashlib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from timekeeper import metrics
from timekeeper.api.auth.tokens import Expected, fault
from timekeeper.api.problem import Problem, unavailable
from timekeeper.core.kube.reflector import UnreachableError
from timekeeper.core.names import DOMAIN
from timekeeper.core.request.request import mapping, sequence

Json = Mapping[str, Any]
Post = Callable[[str, Json], Json]

GOOD_FOR_MS = 60_000
REFUSED_FOR_MS = 5_000
MOST_REMEMBERED = 50_000

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 -- a path, no password
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_EXTRA = "authentication.kubernetes.io/"
_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that a token is bound to, by the API server's word."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone whose token the API server took. ``pod`` None: the token is bound to none."""

    username: str
    uid: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...]
    pod: BoundPod | None


class Gate:
    """Asks the API server through ``post(path, body)``, which raises UnreachableError; one per process."""

    def __init__(
        self,
        post: Post,
        expected: Expected,
        clock: Callable[[], int],
        most_remembered: int = MOST_REMEMBERED,
    ) -> None:
        """``most_remembered``: answers of each kind, of the last minute and of the one before."""
        self._post = post
        self._expected = expected
        self._clock = clock
        self._tokens = _Memory(clock, most_remembered)
        self._rights = _Memory(clock, most_remembered)

    def caller(self, authorization: str | None) -> Caller:
        """Who sends this header. Raises a Problem: 401, or 503 where nobody can tell."""
        token = self._token(authorization)
        return _taken(self._tokens.get(_digest(token), lambda: self._review(token)))

    def pod(self, authorization: str | None) -> BoundPod:
        """The pod whose token this is. Raises a Problem: 401, 403 where the token is bound to no pod, or
        503."""
        return _pod_of(self.caller(authorization))

    def node(self, authorization: str | None) -> str:
        """The node that this token's pod runs on. Raises a Problem: 401, 403 where the token names none, or
        503."""
        named = dict(self.caller(authorization).extra).get(f"{_EXTRA}node-name", ())
        if len(named) != 1 or not named[0]:
            raise Problem(
                403, "the token names no node: it must be bound to a pod, by Kubernetes 1.30 or later"
            )
        return named[0]

    def known_pod(self, authorization: str | None) -> BoundPod | None:
        """As `pod`, without a question to anyone: None where one would have to be asked."""
        known = self._tokens.known(_digest(self._token(authorization)))
        return _pod_of(_taken(known[0])) if known else None

    def allow(
        self, authorization: str | None, verb: str, resource: str, namespace: str = "", name: str = ""
    ) -> Caller:
        """The caller, who may do this to ``resource`` of group ``bursar.dev``, in one namespace or, where
        that is empty, in all; there to the one of this name, or to any. Raises a Problem: 401, 403 or 503."""
        caller = self.caller(authorization)
        key = (caller, verb, resource, namespace, name)
        if not self._rights.get(key, lambda: self._may(caller, verb, resource, namespace, name)):
            where = f"in namespace {namespace}" if namespace else name or "in all namespaces"
            raise Problem(403, f"{caller.username} may not {verb} {resource}.{DOMAIN} {where}")
        return caller

    def remembered(self) -> int:
        """How many tokens' answers are kept."""
        return len(self._tokens)

    def _token(self, authorization: str | None) -> str:
        """The token in the header, where it may be good. Raises a Problem."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise _unknown("a bearer token is needed")
        token = token.strip()
        problem = fault(token, self._expected, self._clock())
        if problem:
            metrics.REVIEWS.labels("token", "spared").inc()
            raise _unknown(f"the token is refused: {problem}")
        return token

    def _review(self, token: str) -> Caller | None:
        spec = {"token": token, "audiences": [self._expected.audience]}
        status = self._ask("token", _TOKEN_REVIEWS, "TokenReview", "authentication.k8s.io/v1", spec)
        is_ours = self._expected.audience in sequence(status.get("audiences"))
        if status.get("authenticated") is not True or not is_ours:
            return None
        return _caller(mapping(status.get("user")))

    def _may(self, caller: Caller, verb: str, resource: str, namespace: str, name: str) -> bool:
        spec = {
            "user": caller.username,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {name: list(values) for name, values in caller.extra},
            "resourceAttributes": {
                "group": DOMAIN,
                "resource": resource,
                "verb": verb,
                "namespace": namespace,
                "name": name,
            },
        }
        status = self._ask("access", _ACCESS_REVIEWS, "SubjectAccessReview", "authorization.k8s.io/v1", spec)
        return status.get("allowed") is True

    def _ask(self, kind: str, path: str, name: str, version: str, spec: Json) -> Json:
        try:
            answer = self._post(path, {"apiVersion": version, "kind": name, "spec": spec})
        except UnreachableError as error:
            metrics.REVIEWS.labels(kind, "failed").inc()
            raise unavailable("the API server could not be asked who you are and what you may do") from error
        metrics.REVIEWS.labels(kind, "asked").inc()
        return mapping(answer.get("status"))


class _Memory:
    """Answers by key, each for its time: what is granted longer than what is refused. What nobody asked for
    in the last minute or two is forgotten."""

    def __init__(self, clock: Callable[[], int], most: int) -> None:
        self._clock = clock
        self._most = most
        self._lock = Lock()
        self._young: dict[Hashable, tuple[int, object]] = {}
        self._old: dict[Hashable, tuple[int, object]] = {}
        self._turned_ms = 0

    def get(self, key: Hashable, ask: Callable[[], object]) -> object:
        """The remembered answer, or a new one. What ``ask`` raises is not remembered."""
        known = self.known(key)
        if known:
            return known[0]
        now_ms = self._clock()
        answer = ask()
        with self._lock:
            if abs(now_ms - self._turned_ms) >= GOOD_FOR_MS or len(self._young) >= self._most:
                self._old, self._young, self._turned_ms = self._young, {}, now_ms
            self._young[key] = (now_ms + (GOOD_FOR_MS if answer else REFUSED_FOR_MS), answer)
        return answer

    def known(self, key: Hashable) -> tuple[object] | None:
        """The remembered answer; None where there is none, or none that is good still."""
        now_ms = self._clock()
        with self._lock:
            until_ms, answer = self._young.get(key) or self._old.get(key) or (0, None)
        return (answer,) if now_ms < until_ms <= now_ms + GOOD_FOR_MS else None

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _taken(caller: object) -> Caller:
    """Whom the API server took. Raises a Problem where it took nobody."""
    if not isinstance(caller, Caller):
        raise _unknown("the token is refused by the API server")
    return caller


def _pod_of(caller: Caller) -> BoundPod:
    if caller.pod is None:
        raise Problem(403, "the token is not bound to a pod")
    return caller.pod


def _unknown(detail: str) -> Problem:
    return Problem(401, detail, headers={"WWW-Authenticate": "Bearer"})


def _caller(user: Json) -> Caller:
    extra = {
        str(name): tuple(map(str, sequence(values))) for name, values in mapping(user.get("extra")).items()
    }
    username = str(user.get("username", ""))
    return Caller(
        username=username,
        uid=str(user.get("uid", "")),
        groups=tuple(map(str, sequence(user.get("groups")))),
        extra=tuple(sorted(extra.items())),
        pod=_bound_pod(username, extra),
    )


def _bound_pod(username: str, extra: Mapping[str, tuple[str, ...]]) -> BoundPod | None:
    """A pod's token is its service account's, which lives in the pod's namespace."""
    uids, pods = extra.get(f"{_EXTRA}pod-uid", ()), extra.get(f"{_EXTRA}pod-name", ())
    if not username.startswith(_ACCOUNT) or len(uids) != 1 or len(pods) != 1:
        return None
    namespace = username.removeprefix(_ACCOUNT).partition(":")[0]
    return BoundPod(namespace, pods[0], uids[0])
