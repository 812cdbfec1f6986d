"""``POST /v1/heartbeats``: a pod's sidecar reports that the pod runs. The token alone identifies the pod."""

from collections.abc import Callable

import msgspec
from flask import Flask

from timekeeper import metrics
from timekeeper.accounts.card_use.figures import CardSample
from timekeeper.api.http.bodies import Body
from timekeeper.api.http.routes import JSON, ApiRoute
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.heartbeat_writer import WrittenPost
from timekeeper.api.ledger.outages import NO_DATABASE
from timekeeper.log import log_exception
from timekeeper.runtime.auth.gate import BoundPod
from timekeeper.runtime.http.problem_details import Problem, unavailable
from timekeeper.store.engine.engine import UnavailableError
from timekeeper.store.heartbeats import HeartbeatPost, PostOutcome, PostResult
from timekeeper.wire.heartbeats import BeatDevice, HeartbeatAnswer, Heartbeats

BODY = Body(Heartbeats)


def _sample(device: BeatDevice) -> CardSample:
    return CardSample(device.uuid, device.utilisation, device.memory_mib, device.scope == "exclusive")


PATH = "/v1/heartbeats"

# A sidecar receives the CA bundle with every n-th post, so a changed one arrives long before the old one
# expires. If heartbeats are far apart, more of them carry it.
_CA_EACH = 50
_CA_WITHIN_MS = 300_000


class HeartbeatHandler:
    """Handles posts of heartbeats for the server's own loop, which must not wait."""

    def __init__(self, services: Services) -> None:
        self._gate = services.gate
        self._beating = services.beating
        self._clock = services.clock
        self._ca = services.ca
        self._outages = services.outages

    def clock(self) -> int:
        """The moment of a receipt, in milliseconds."""
        return self._clock()

    def known(self, authorization: str) -> BoundPod | None:
        """The pod whose token this is, where it was asked about a moment ago. Raises a Problem."""
        return self._gate.known_pod(authorization)

    def pod(self, authorization: str | None) -> BoundPod:
        """The pod whose token this is; asks the API server where it must. Raises a Problem."""
        return self._gate.pod(authorization)

    def submit(
        self, pod: BoundPod, body: bytes, received_ms: int, callback: Callable[[bytes | Problem], None]
    ) -> None:
        """Store a body of heartbeats; ``callback`` is called with the answer, in another thread. Raises a
        Problem if the body is malformed."""
        post = _post(pod, body, received_ms)
        self._beating.submit(post, lambda outcome: callback(self._answer_to(post, outcome)))

    def _answer_to(self, post: HeartbeatPost, outcome: WrittenPost | Exception) -> bytes | Problem:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return self._answer(post, outcome)
        except Problem as problem:
            return problem
        except UnavailableError as error:
            self._outages.failed("write", PATH, error)
            return unavailable(NO_DATABASE)
        except Exception as error:  # the writing thread continues
            log_exception("internal-error", error, route=PATH)
            return Problem(500, "internal error; the timekeeper's log has the details")

    def _answer(self, post: HeartbeatPost, written: WrittenPost) -> bytes:
        answered = written.answered
        self._outages.worked("write")
        _count(answered)
        ca = self._ca() if carries_the_ca(post.sequence, written.interval_ms) else ""
        in_budget = written.standing != "OVER_BUDGET"
        return msgspec.json.encode(
            HeartbeatAnswer(1, written.interval_ms, in_budget, over=answered.over, ca=ca)
        )


def carries_the_ca(sequence: int, interval_ms: int) -> bool:
    """True if the answer to this post carries the CA bundle."""
    each = max(1, min(_CA_EACH, _CA_WITHIN_MS // interval_ms))
    return sequence % each == 1 % each


HEARTBEATS = ApiRoute(
    method="POST",
    path="/v1/heartbeats",
    about="a pod's sidecar reports that the pod runs; requires the token of a governed pod",
    right=None,
    answers={JSON: HeartbeatAnswer},
    body=BODY,
    refuses=(404,),
)
ROUTES = (HEARTBEATS,)


def register(_app: Flask, _services: Services) -> None:
    """Adds nothing: the loop has the route (`timekeeper.serving.gunicorn_app`)."""
    for outcome in PostOutcome:  # all are there from the first scrape on
        metrics.HEARTBEATS.labels(outcome.value)


def store_post(services: Services, post: HeartbeatPost) -> tuple[PostResult, str]:
    """Store a post; returns its outcome and its namespace's standing. Raises a Problem if the ledger has no
    session of the pod: the sidecar then keeps its heartbeats and tries again."""
    done = services.beating.record(post)
    _count(done.answered)
    return done.answered, done.standing


def _post(pod: BoundPod, body: bytes, received_ms: int) -> HeartbeatPost:
    """The post in this body. Raises a Problem that names the field.

    Only the form of figures is checked: they are the tenant's own data, and nothing is charged by them.
    """
    post = BODY.read(body)
    ages_ms = tuple([beat.age_ms for beat in post.beats])
    figures = tuple([tuple(map(_sample, beat.devices)) for beat in post.beats])
    return HeartbeatPost(
        pod.uid, post.boot, post.sequence, ages_ms, received_ms, figures if any(figures) else ()
    )


def _count(answered: PostResult) -> None:
    """Raises a Problem where the ledger does not know the pod."""
    metrics.HEARTBEATS.labels(answered.outcome.value).inc()
    if answered.outcome is PostOutcome.UNKNOWN:
        raise Problem(404, "the ledger has no session of this pod (yet)", "pod")
