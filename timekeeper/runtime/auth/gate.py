"""Authentication and authorization: Kubernetes' TokenReview and SubjectAccessReview, cached for a while."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from timekeeper.core.json_values import mapping, sequence
from timekeeper.core.names import AGENTS_NAMESPACE, AUDIENCE, DOMAIN, NAMESPACE
from timekeeper.edge.reflector import UnreachableError
from timekeeper.runtime.api_server import ANSWER_S, Api, accepted
from timekeeper.runtime.auth.tokens import fault, is_login, subject_of
from timekeeper.runtime.http.problem_details import Problem, unavailable

Json = Mapping[str, Any]
Post = Callable[[str, Json], Json]
Count = Callable[[str, str], object]  # kind and outcome of a review, for metrics
Logins = Callable[[str], "Caller | None"]  # who has begun the session with this token; None: it has ended

GOOD_FOR_MS = 60_000
REFUSED_FOR_MS = 5_000
MAX_REMEMBERED = 50_000
METRICS = "/metrics"

_TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 -- a path, no password
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_GET_METRICS = {"path": METRICS, "verb": "get"}
_EXTRA = "authentication.kubernetes.io/"
_ACCOUNT = "system:serviceaccount:"
_ROLES = {
    f"{_ACCOUNT}{NAMESPACE}:bursar-webhook": "webhook",
    f"{_ACCOUNT}{NAMESPACE}:bursar-scheduler": "extender",
    f"{_ACCOUNT}{AGENTS_NAMESPACE}:bursar-node": "node agent",
}
_LASTS_MS = 10_000  # a role that ends may be refused before it has ended


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that a token is bound to, as the API server states."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller. ``pod`` None: the token is bound to no pod."""

    username: str
    uid: str
    groups: tuple[str, ...]
    extra: tuple[tuple[str, tuple[str, ...]], ...]
    pod: BoundPod | None

    @property
    def tenant(self) -> str:
        """The user; of a ServiceAccount its namespace, because a namespace can have many accounts."""
        return self.username.rpartition(":")[0] if self.username.startswith(_ACCOUNT) else self.username


class Gate:
    """Asks the API server through ``post(path, body)``, which raises UnreachableError. One per process."""

    def __init__(
        self,
        post: Post,
        audience: str,
        clock: Callable[[], int],
        most_remembered: int = MAX_REMEMBERED,
        count: Count = lambda _kind, _outcome: None,
        logins: Logins = lambda _token: None,
    ) -> None:
        """``most_remembered``: answers of each kind, of the current minute and of the one before."""
        self._post, self._count, self._logins = post, count, logins
        self._audience = audience
        self._clock = clock
        self._tokens = _Memory(clock, most_remembered)
        self._rights = _Memory(clock, most_remembered)
        self._refused: dict[str, tuple[int, int, str]] = {}  # by role: first and last time, and why

    def caller(self, authorization: str | None) -> Caller:
        """The caller that sends this header. Raises a Problem: 401, or 503 if the API server cannot
        answer. A login is not remembered, so that it ends everywhere at once."""
        token = _bearer(authorization)
        if is_login(token):
            if (person := self._logins(token)) is None:
                raise _unknown("the session has ended")
            return person
        try:
            self._check(token)
            return _taken(self._tokens.get(_digest(token), lambda: self._review(token)))
        except Problem as problem:
            if problem.status == 401 and (role := _ROLES.get(subject_of(token))):
                now_ms = self._clock()
                first_ms, last_ms, _ = self._refused.get(role, (now_ms, now_ms, ""))
                is_new = now_ms - last_ms > GOOD_FOR_MS
                self._refused[role] = now_ms if is_new else first_ms, now_ms, problem.detail
            raise

    def pod(self, authorization: str | None) -> BoundPod:
        """The pod that the token is bound to. Raises a Problem: 401, 403 if it is bound to no pod, or 503."""
        return _pod_of(self.caller(authorization))

    def node(self, authorization: str | None) -> str:
        """The node of the token's pod. Raises a Problem: 401, 403 if the token names no node, or 503."""
        named = dict(self.caller(authorization).extra).get(f"{_EXTRA}node-name", ())
        if len(named) != 1 or not named[0]:
            raise Problem(
                403, "the token does not name a node: it must be bound to a pod, by Kubernetes 1.30 or later"
            )
        return named[0]

    def known_pod(self, authorization: str | None) -> BoundPod | None:
        """Like `pod`, but only from the cache; None if the API server would have to be asked."""
        token = _bearer(authorization)
        self._check(token)
        known = self._tokens.known(_digest(token))
        return _pod_of(_taken(known[0])) if known else None

    def allow(
        self, authorization: str | None, verb: str, resource: str, namespace: str = "", name: str = ""
    ) -> Caller:
        """The caller, if it may do this to ``resource`` (or ``resource/subresource``) of API group
        ``bursar.dev`` in one namespace (empty: in all), to the object of this name (empty: any). Raises a
        Problem: 401, 403 or 503."""
        caller = self.caller(authorization)
        named = verb, resource, namespace, name
        if not self._rights.get(
            (caller, *named), lambda: self._may(caller, "resourceAttributes", _attributes(*named))
        ):
            where = f"in namespace {namespace}" if namespace else name or "in all namespaces"
            raise Problem(403, f"{caller.username} may not {verb} {resource}.{DOMAIN} {where}")
        return caller

    def allow_metrics(self, authorization: str | None) -> Caller:
        """The caller, if it may `get` the nonResourceURL ``/metrics``, the right that Kubernetes' own parts
        require for theirs. Raises a Problem: 401, 403 or 503."""
        caller = self.caller(authorization)
        if not self._rights.get(
            (caller, METRICS), lambda: self._may(caller, "nonResourceAttributes", _GET_METRICS)
        ):
            raise Problem(403, f"{caller.username} may not get the nonResourceURL {METRICS}")
        return caller

    def refused(self) -> Iterator[dict[str, int | str]]:
        """Bursar's roles that get 401 now, by what their tokens say, unverified: since when, and why."""
        for role, (first_ms, last_ms, why) in tuple(self._refused.items()):
            if last_ms - first_ms >= _LASTS_MS and self._clock() - last_ms <= GOOD_FOR_MS:
                yield {"caller": role, "since": first_ms, "error": why}

    def remembered(self) -> int:
        """The number of cached tokens."""
        return len(self._tokens)

    def _check(self, token: str) -> None:
        """Raises a Problem for a token that cannot be valid."""
        problem = fault(token, self._audience, self._clock())
        if problem:
            self._count("token", "spared")
            raise _unknown(f"the token is rejected: {problem}")

    def _review(self, token: str) -> Caller | None:
        spec = {"token": token, "audiences": [self._audience]}
        status = self._ask("token", _TOKEN_REVIEWS, "TokenReview", "authentication.k8s.io/v1", spec)
        is_ours = self._audience in sequence(status.get("audiences"))
        if status.get("authenticated") is not True or not is_ours:
            return None
        return _caller(mapping(status.get("user")))

    def _may(self, caller: Caller, kind: str, attributes: Json) -> bool:
        spec = {
            "user": caller.username,
            "uid": caller.uid,
            "groups": list(caller.groups),
            "extra": {name: list(values) for name, values in caller.extra},
            kind: attributes,
        }
        status = self._ask("access", _ACCESS_REVIEWS, "SubjectAccessReview", "authorization.k8s.io/v1", spec)
        return status.get("allowed") is True

    def _ask(self, kind: str, path: str, name: str, version: str, spec: Json) -> Json:
        try:
            answer = self._post(path, {"apiVersion": version, "kind": name, "spec": spec})
        except UnreachableError as error:
            self._count(kind, "failed")
            raise unavailable(
                "the API server is unreachable, so your identity and rights are unknown"
            ) from error
        self._count(kind, "asked")
        return mapping(answer.get("status"))


def gate_of(
    api: Api,
    count: Count = lambda _kind, _outcome: None,
    logins: Logins = lambda _token: None,
) -> Gate:
    """The gate of a process that may create reviews."""
    return Gate(reviews(api), AUDIENCE, api.clock.now_ms, count=count, logins=logins)


def reviews(api: Api) -> Post:
    """How a gate asks this API server."""
    return lambda path, body: accepted(api.call("POST", path, body, timeout_s=ANSWER_S))


class _Memory:
    """Answers by key, each with its lifetime: positive ones live longer than negative ones. Keys unused for a
    minute or two are dropped."""

    def __init__(self, clock: Callable[[], int], most: int) -> None:
        self._clock = clock
        self._most = most
        self._lock = Lock()
        self._young: dict[Hashable, tuple[int, object]] = {}
        self._old: dict[Hashable, tuple[int, object]] = {}
        self._turned_ms = 0

    def get(self, key: Hashable, ask: Callable[[], object]) -> object:
        """The cached answer, or a new one. An exception of ``ask`` is not cached."""
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
        """The cached answer; None if there is none that is still valid."""
        now_ms = self._clock()
        with self._lock:
            until_ms, answer = self._young.get(key) or self._old.get(key) or (0, None)
        return (answer,) if now_ms < until_ms <= now_ms + GOOD_FOR_MS else None

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


def _attributes(verb: str, resource: str, namespace: str, name: str) -> Json:
    """Of a right to ``resource`` or ``resource/subresource`` of our API group."""
    resource, _, subresource = resource.partition("/")
    part = {"subresource": subresource} if subresource else {}
    return {
        "group": DOMAIN,
        "resource": resource,
        **part,
        "verb": verb,
        "namespace": namespace,
        "name": name,
    }


def _bearer(authorization: str | None) -> str:
    """The token in the header. Raises a Problem."""
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise _unknown("a bearer token is required")
    return token.strip()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _taken(caller: object) -> Caller:
    """The authenticated user. Raises a Problem if the API server rejected the token."""
    if not isinstance(caller, Caller):
        raise _unknown("the API server rejected the token")
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
    """A pod's token belongs to its service account, in the pod's namespace."""
    uids, pods = extra.get(f"{_EXTRA}pod-uid", ()), extra.get(f"{_EXTRA}pod-name", ())
    if not username.startswith(_ACCOUNT) or len(uids) != 1 or len(pods) != 1:
        return None
    namespace = username.removeprefix(_ACCOUNT).partition(":")[0]
    return BoundPod(namespace, pods[0], uids[0])
