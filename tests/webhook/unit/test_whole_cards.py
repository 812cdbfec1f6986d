"""`wholeCards: bursar`: what pods request of NVIDIA's plugin becomes whole cards of Bursar's nodes."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.worlds import POLICY, patched, requested, review
from tests.worlds import Json
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.admission.table import effective_policy
from timekeeper.core.request.request import parse
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.admission.warnings import KUEUES_CARDS, WHOLE_CARDS
from webhook.standings import decode
from webhook.wire.pod_review import AdmissionAnswer

TAKING = replace(POLICY, takes_whole_cards=True)


def pair(**spec: Any) -> Json:
    """A pod as the API server hands it on: requests are as limits."""

    def of(name: str, cards: str) -> Json:
        return {"name": name, "image": "i", "resources": {"limits": {"nvidia.com/gpu": cards}}}

    bare = {"name": "logs", "image": "i"}
    raw: Json = {
        "metadata": {"name": "p", "namespace": "team-a"},
        "spec": {"initContainers": [of("first", "1")], "containers": [bare, of("main", "2")], **spec},
    }
    for each in (*raw["spec"]["initContainers"], raw["spec"]["containers"][1]):
        each["resources"]["requests"] = dict(each["resources"]["limits"])
    return raw


def mutated(raw: Json, policy: AdmissionPolicy = TAKING, standing: str = "IN_BUDGET") -> AdmissionAnswer:
    return mutate(review(raw), lambda _: Standing(standing), policy)  # type: ignore[arg-type]


def resources(raw: Json) -> dict[str, Json]:
    listed = (*raw["spec"]["initContainers"], *raw["spec"]["containers"])
    return {each["name"]: each.get("resources", {}) for each in listed if each["name"] != "bursar-sidecar"}


def test_the_same_cards_are_requested_in_bursars_words_and_a_second_call_finds_nothing_to_do() -> None:
    answer = mutated(pair())

    after = patched(pair(), list(answer.operations))
    # a LimitRange's maximum is the default of what is absent, so zero of the plugin's resource stays
    one, two = ({"bursar.dev/gpu-percent": percent, "nvidia.com/gpu": "0"} for percent in ("100", "200"))
    assert resources(after) == {
        "first": {"limits": one, "requests": one},
        "logs": {},
        "main": {"limits": two, "requests": two},
    }
    before = parse(pair()).request
    assert before is not None
    assert requested(answer) == replace(before, dialect="bursar")
    assert answer.warnings[-1] == WHOLE_CARDS
    again = mutated(after)
    assert (again.operations, WHOLE_CARDS in again.warnings) == ((), False)
    for policy in (TAKING, POLICY):
        assert validate(review(after), policy).verdict == "valid", "also by a worker that does not know yet"


def annotated(name: str) -> Json:
    raw = pair()
    raw["metadata"]["annotations"] = {name: "T4"}
    return raw


@pytest.mark.parametrize(
    ("raw", "policy"),
    [
        (pair(), POLICY),
        (pair(), replace(TAKING, mode="observe")),
        (pair(schedulerName="bursar-scheduler"), replace(TAKING, mode="observe")),
        (pair(), replace(TAKING, mode="meter")),
        (pair(), replace(TAKING, places=False)),
        (pair(schedulerName="volcano"), replace(TAKING, other_schedulers=frozenset({"volcano"}))),
        (annotated("nvidia.com/use-gputype"), TAKING),
    ],
    ids=[
        "the default",
        "observing",
        "observing ours",
        "metering",
        "placement off",
        "another scheduler",
        "HAMi's annotation",
    ],
)
def test_other_pods_keep_their_resource(raw: Json, policy: AdmissionPolicy) -> None:
    answer = mutated(raw, policy)

    assert resources(patched(raw, list(answer.operations))) == resources(raw)
    assert WHOLE_CARDS not in answer.warnings


def queued(raw: Json, label: str = "kueue.x-k8s.io/queue-name") -> Json:
    raw["metadata"].setdefault("labels", {})[label] = "team-a"
    return raw


@pytest.mark.parametrize("label", ["kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed"])
def test_a_pod_that_kueue_counts_keeps_its_resource_and_is_told_what_it_needs(label: str) -> None:
    answer = mutated(queued(pair(), label))

    after = patched(queued(pair(), label), list(answer.operations))
    assert resources(after) == resources(pair())
    assert KUEUES_CARDS in answer.warnings
    assert validate(review(after), TAKING).refusal == ""
    assert KUEUES_CARDS not in mutated(queued(pair()), POLICY).warnings


def test_a_pod_that_kueues_webhook_queues_after_ours_gets_its_resource_back() -> None:
    first = patched(pair(), list(mutated(pair()).operations))

    answer = mutated(queued(first))

    after = patched(first, list(answer.operations))
    assert resources(after) == resources(pair())
    assert validate(review(after), TAKING).refusal == ""
    shared = queued(pair())
    shared["spec"]["initContainers"], shared["spec"]["containers"] = (
        [],
        [{"name": "main", "image": "i", "resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}],
    )
    assert mutated(shared).refusal == ""
    limits = patched(shared, list(mutated(shared).operations))["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"bursar.dev/gpu-percent": "50"}


def test_the_timekeepers_table_says_where() -> None:
    table = decode(orjson.dumps(standings(team_a=entry(wholeCards="bursar"), team_b=entry())), "", 0)

    takes = [effective_policy(POLICY, table, True, each).takes_whole_cards for each in ("team-a", "team-b")]
    assert (takes, effective_policy(POLICY, None).takes_whole_cards) == ([True, False], False)


def test_a_pod_that_is_refused_gets_no_patch() -> None:
    raw = pair(nodeName="n")

    answer = mutated(raw)

    assert ("names its node" in answer.refusal, answer.operations) == (True, ())
