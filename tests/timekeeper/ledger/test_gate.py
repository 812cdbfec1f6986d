"""Who calls: what is asked of the API server, what is remembered, and what costs no question."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.timekeeper.worlds import (
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Json,
    Reviews,
    gpu_pod,
    pod_status,
    token,
    user_status,
)
from timekeeper.edge.reflector import UnreachableError
from timekeeper.runtime.auth.gate import MAX_REMEMBERED, Gate
from timekeeper.runtime.auth.tokens import Expected, fault, issuer_of
from timekeeper.runtime.http.problem_details import Problem

GOOD = token("good")
EXPECTED = Expected("bursar", "test")


class Door:
    """A gate with its reviews and its clock."""

    def __init__(self, issuer: str = "test", most_remembered: int = MAX_REMEMBERED) -> None:
        self.clock = Clock(T0)
        self.reviews = Reviews({GOOD: user_status("someone")})
        self.gate = Gate(self.reviews.post, Expected("bursar", issuer), self.clock, most_remembered)

    def status(self, bearer: str, *right: str) -> int:
        """200, or the status of the refusal."""
        try:
            header = f"Bearer {bearer}"
            if right:
                self.gate.allow(header, *right)
            else:
                self.gate.caller(header)
        except Problem as problem:
            return problem.status
        return 200


@pytest.fixture
def door() -> Door:
    return Door()


def encoded(*parts: object) -> str:
    texts = (part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts)
    return ".".join(base64.urlsafe_b64encode(text).rstrip(b"=").decode() for text in texts)


CLAIMS = {"aud": ["bursar"], "iss": "test", "exp": T0 // 1000 + 60}


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "x",
        "a.b",
        "a.b.c.d",
        "ä.ö.ü",
        "....",
        "x" * 100_000,
        token("t", audience="another"),
        token("t", issuer="another"),
        token("t", expiry_ms=T0 - 2 * MINUTE),
        encoded({"alg": "x"}, [1], "s"),
        encoded({"alg": "x"}, b"\xff\xfe\xff", "s"),
        encoded(b"not json", CLAIMS, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "exp": "never"}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "exp": None}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "aud": None}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "aud": {"bursar": 1}}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "iss": ["test"]}, "s"),
    ],
)
def test_a_token_that_cannot_be_good_costs_no_question(door: Door, junk: str) -> None:
    assert door.status(junk) == 401
    assert door.reviews.asked == []


@given(st.text() | st.text(alphabet="ey.JhbGciOi_-", max_size=200))
def test_reading_a_token_never_raises(text: str) -> None:
    assert isinstance(fault(text, EXPECTED, T0), str)
    assert isinstance(issuer_of(text), str)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", GOOD])
def test_only_a_bearer_token_is_taken(door: Door, header: str | None) -> None:
    with pytest.raises(Problem) as refusal:
        door.gate.caller(header)

    assert refusal.value.status == 401


def test_the_scheme_is_not_case_sensitive(door: Door) -> None:
    assert door.gate.caller(f"bearer {GOOD}").username == "someone"


def test_one_audience_as_text_will_do() -> None:
    assert fault(encoded({"alg": "x"}, {**CLAIMS, "aud": "bursar"}, "s"), EXPECTED, T0) == ""


def test_where_no_issuer_is_known_any_will_do() -> None:
    door = Door(issuer="")
    other = token("t", issuer="another")
    door.reviews.tokens[other] = user_status("someone")

    assert door.status(other) == 200


def test_the_issuer_of_our_own_token_is_read_from_it() -> None:
    assert issuer_of(token("t", issuer="https://kubernetes.default.svc")) == "https://kubernetes.default.svc"
    assert issuer_of("opaque") == ""


def test_a_valid_token_is_reviewed_once_a_minute(door: Door) -> None:
    for _ in range(4):
        door.clock.turn(29 * SECOND)
        assert door.status(GOOD) == 200

    assert door.reviews.asked == ["TokenReview", "TokenReview"]


def test_a_refused_token_is_reviewed_again_after_five_seconds(door: Door) -> None:
    stranger = token("stranger")
    assert [door.status(stranger) for _ in range(3)] == [401] * 3
    assert door.reviews.asked == ["TokenReview"]

    door.reviews.tokens[stranger] = user_status("someone")
    door.clock.turn(5 * SECOND)

    assert door.status(stranger) == 200


def test_a_token_that_expires_is_refused_though_it_is_remembered(door: Door) -> None:
    short = token("short", expiry_ms=T0 + SECOND)
    door.reviews.tokens[short] = user_status("someone")
    assert door.status(short) == 200

    door.clock.turn(59 * SECOND)
    assert door.status(short) == 200
    door.clock.turn(3 * SECOND)

    assert door.status(short) == 401


def test_a_right_is_kept_for_a_minute_and_a_refusal_for_five_seconds(door: Door) -> None:
    door.reviews.denied.add(("someone", "get", "usage", ""))
    for _ in range(3):
        assert door.status(GOOD, "get", "budgets", "team-a") == 200
        assert door.status(GOOD, "get", "usage") == 403
    assert door.reviews.asked.count("SubjectAccessReview") == 2

    door.reviews.denied.clear()
    door.clock.turn(5 * SECOND)

    assert door.status(GOOD, "get", "usage") == 200


def test_a_right_in_one_namespace_is_none_in_another(door: Door) -> None:
    door.reviews.denied.add(("someone", "get", "budgets", "team-b"))

    assert door.status(GOOD, "get", "budgets", "team-a") == 200
    assert door.status(GOOD, "get", "budgets", "team-b") == 403


def test_a_clock_turned_back_makes_nothing_remembered_for_longer(door: Door) -> None:
    assert door.status(GOOD) == 200

    door.clock.turn(-HOUR)
    door.reviews.tokens.clear()

    assert door.status(GOOD) == 401


def test_an_answer_for_another_audience_is_no_answer(door: Door) -> None:
    """An API server that knows no audiences answers for its own; such a token is not for us."""
    door.reviews.tokens[GOOD] = {**user_status("someone"), "audiences": ["https://kubernetes.default.svc"]}

    assert door.status(GOOD) == 401


@pytest.mark.parametrize("status", [{}, {"authenticated": "true"}, {"audiences": ["bursar"]}])
def test_an_answer_that_does_not_say_yes_says_no(door: Door, status: Json) -> None:
    door.reviews.tokens[GOOD] = status

    assert door.status(GOOD) == 401


def test_while_the_api_server_is_away_no_caller_is_refused_for_good() -> None:
    clock, answers = Clock(T0), Reviews({GOOD: user_status("someone")})
    away = [True]

    def post(path: str, body: Any) -> Json:
        if away:
            raise UnreachableError("no route")
        return answers.post(path, body)

    gate = Gate(post, EXPECTED, clock)
    with pytest.raises(Problem) as refusal:
        gate.caller(f"Bearer {GOOD}")
    assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "2"})

    away.clear()

    assert gate.caller(f"Bearer {GOOD}").username == "someone"


def test_a_pods_token_names_its_pod(door: Door) -> None:
    door.reviews.tokens[GOOD] = pod_status(gpu_pod("p", namespace="team-b"))

    pod = door.gate.pod(f"Bearer {GOOD}")

    assert (pod.namespace, pod.name, pod.uid) == ("team-b", "p", "uid-p")


@pytest.mark.parametrize(
    "user",
    [
        {"username": "someone", "extra": {"authentication.kubernetes.io/pod-uid": ["u"]}},
        {"username": "system:serviceaccount:a:b"},
        {
            "username": "someone",
            "extra": {
                "authentication.kubernetes.io/pod-uid": ["u"],
                "authentication.kubernetes.io/pod-name": ["p"],
            },
        },
        {
            "username": "system:serviceaccount:a:b",
            "extra": {
                "authentication.kubernetes.io/pod-uid": ["u", "v"],
                "authentication.kubernetes.io/pod-name": ["p"],
            },
        },
    ],
)
def test_half_a_pod_is_no_pod(door: Door, user: Json) -> None:
    door.reviews.tokens[GOOD] = {"authenticated": True, "audiences": ["bursar"], "user": user}

    with pytest.raises(Problem) as refusal:
        door.gate.pod(f"Bearer {GOOD}")

    assert refusal.value.status == 403


def test_a_pod_that_is_not_remembered_is_known_only_after_a_query(door: Door) -> None:
    door.reviews.tokens[GOOD] = pod_status(gpu_pod("p"))
    header = f"Bearer {GOOD}"
    assert door.gate.known_pod(header) is None
    assert door.reviews.asked == []

    asked = door.gate.pod(header)

    assert door.gate.known_pod(header) == asked
    door.clock.turn(MINUTE)
    assert door.gate.known_pod(header) is None


@pytest.mark.parametrize(("bearer", "status"), [("junk", 401), (GOOD, 403), (token("forged"), 401)])
def test_what_is_remembered_of_a_refusal_is_refused_without_a_question(
    door: Door, bearer: str, status: int
) -> None:
    door.status(bearer)
    asked = list(door.reviews.asked)

    with pytest.raises(Problem) as refusal:
        door.gate.known_pod(f"Bearer {bearer}")

    assert refusal.value.status == status
    assert door.reviews.asked == asked


def test_tokens_that_are_no_longer_used_are_forgotten() -> None:
    """However many tokens come, memory holds those of the last two minutes at most, and so many."""
    door = Door(most_remembered=10)
    for number in range(100):
        door.status(token(f"stranger-{number}"))
        assert door.gate.remembered() <= 20

    for _ in range(2):
        door.clock.turn(MINUTE)
        door.status(GOOD)

    assert door.gate.remembered() == 2
