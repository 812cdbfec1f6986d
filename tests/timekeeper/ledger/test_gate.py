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
    Town,
    gpu_pod,
    pod_status,
    token,
    user_status,
)
from timekeeper.api.resources.findings import keep_reporting
from timekeeper.core.texts import moment
from timekeeper.edge.reflector import UnreachableError
from timekeeper.runtime.auth.gate import MAX_REMEMBERED, Gate
from timekeeper.runtime.auth.tokens import fault
from timekeeper.runtime.http.problem_details import Problem

GOOD = token("good")


class Door:
    """A gate with its reviews and its clock."""

    def __init__(self, most_remembered: int = MAX_REMEMBERED) -> None:
        self.clock = Clock(T0)
        self.reviews = Reviews({GOOD: user_status("someone")})
        self.gate = Gate(self.reviews.post, "bursar", self.clock, most_remembered)

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
        token("t", expiry_ms=T0 - 2 * MINUTE),
        encoded({"alg": "x"}, [1], "s"),
        encoded({"alg": "x"}, b"\xff\xfe\xff", "s"),
        encoded(b"not json", CLAIMS, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "exp": "never"}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "exp": None}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "aud": None}, "s"),
        encoded({"alg": "x"}, {**CLAIMS, "aud": {"bursar": 1}}, "s"),
    ],
)
def test_a_token_that_cannot_be_good_costs_no_question(door: Door, junk: str) -> None:
    assert door.status(junk) == 401
    assert door.reviews.asked == []


@given(st.text() | st.text(alphabet="ey.JhbGciOi_-", max_size=200))
def test_reading_a_token_never_raises(text: str) -> None:
    assert isinstance(fault(text, "bursar", T0), str)


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", GOOD])
def test_only_a_bearer_token_is_taken(door: Door, header: str | None) -> None:
    with pytest.raises(Problem) as refusal:
        door.gate.caller(header)

    assert refusal.value.status == 401


def test_the_scheme_is_not_case_sensitive(door: Door) -> None:
    assert door.gate.caller(f"bearer {GOOD}").username == "someone"


def test_one_audience_as_text_will_do() -> None:
    assert fault(encoded({"alg": "x"}, {**CLAIMS, "aud": "bursar"}, "s"), "bursar", T0) == ""


@pytest.mark.parametrize("issuer", ["test", "another", "https://oidc.example.com/cluster"])
def test_the_api_server_alone_decides_which_issuers_count(door: Door, issuer: str) -> None:
    """Several are accepted for a while when a cluster changes it, and our own token may be of any of them."""
    known, foreign = token("t", issuer=issuer), token("forged", issuer=issuer)
    door.reviews.tokens[known] = user_status("someone")

    assert (door.status(known), door.status(foreign)) == (200, 401)
    assert door.reviews.asked == ["TokenReview", "TokenReview"]


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

    gate = Gate(post, "bursar", clock)
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


WEBHOOK = token("system:serviceaccount:bursar-system:bursar-webhook")


def polls(town: Town, bearer: str, seconds: int) -> set[int]:
    """The statuses that a role gets that asks each second, of one of several processes, which reports."""
    answers, waits = set(), iter([False, True])
    for _ in range(seconds):
        answers.add(
            town.client.get("/v1/standings", headers={"Authorization": f"Bearer {bearer}"}).status_code
        )
        town.advance(SECOND)
    keep_reporting(town.served, lambda _: next(waits))
    return answers


def refused(town: Town) -> list[Json]:
    """What another process lists of it."""
    town.serve()
    found = town.get("/v1/findings").get_json()["findings"]
    return [finding for finding in found if finding["code"] == "token-refused"]


def test_a_role_that_gets_401_is_a_finding_of_every_process_until_it_is_answered(town: Town) -> None:
    town.begin()
    since_ms = town.clock()

    assert polls(town, WEBHOOK, 20) == {401}

    (finding,) = refused(town)
    assert (finding["role"], finding["level"]) == ("timekeeper", "error")
    assert finding["sentence"].startswith(
        f"the timekeeper answers the webhook 401 since {moment(since_ms)}: the API server rejected the token;"
    )
    town.clock.turn(MINUTE)
    town.reviews.tokens[WEBHOOK] = user_status("system:serviceaccount:bursar-system:bursar-webhook")
    assert polls(town, WEBHOOK, 20) == {200}
    assert refused(town) == []


@pytest.mark.parametrize(
    ("bearer", "seconds"),
    [(WEBHOOK, 5), (token("system:serviceaccount:team-a:bursar-webhook"), 20), (token("someone"), 20)],
    ids=["that has ended", "of another namespace", "of nobody's"],
)
def test_a_token_that_ends_with_its_pod_and_those_of_others_are_no_finding(
    town: Town, bearer: str, seconds: int
) -> None:
    town.begin()

    assert polls(town, bearer, seconds) == {401}

    assert refused(town) == []
