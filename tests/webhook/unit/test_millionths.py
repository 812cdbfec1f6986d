"""What an autoscaler adds up of a pod, in millionths of a card's memory."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.worlds import POLICY, admitted, patched, review
from tests.worlds import Json, of_resources
from timekeeper.core.admission.policy import AdmissionPolicy, Standing
from timekeeper.core.request.host import CardHost
from timekeeper.core.request.request import parse
from webhook.admission.pods import mutate
from webhook.admission.validation import validate
from webhook.wire.pod_review import AdmissionAnswer

NAME = "cards.bursar.dev/millionths"
MIB = 80_000  # of the cluster's largest card
ROOM = CardHost(64_000, 1 << 40, 16_000, MIB)
SEEING = replace(POLICY, card_host=ROOM, takes_whole_cards=True)
BLIND = replace(SEEING, card_host=replace(ROOM, most_card_mib=0))  # some node does not advertise it yet


def asking(*of_containers: Json, **fields: Any) -> Json:
    """A pod as the API server hands it on: requests are as limits."""
    raw = admitted(*(of_resources(each, f"c{at}") for at, each in enumerate(of_containers)), **fields)
    for container in raw["spec"]["containers"]:
        container["resources"]["requests"] = dict(container["resources"]["limits"])
    return raw


def ours(**limits: object) -> Json:
    return {f"bursar.dev/gpu-{name}": str(amount) for name, amount in limits.items()}


def mutated(raw: Json, policy: AdmissionPolicy = SEEING) -> AdmissionAnswer:
    return mutate(review(raw), lambda _: Standing("IN_BUDGET"), policy)


def stored(raw: Json, policy: AdmissionPolicy = SEEING) -> Json:
    return patched(raw, list(mutated(raw, policy).operations))


def limits_of(raw: Json) -> list[Json]:
    """Of the user's containers, whose requests are the same."""
    resources = [container.get("resources", {}) for container in raw["spec"]["containers"]]
    assert all(resource.get("limits") == resource.get("requests") for resource in resources)
    return [resource.get("limits", {}) for resource in resources]


@pytest.mark.parametrize(
    ("limits", "millionths"),
    [
        (ours(percent=30), 299_750),  # a share of memory is rounded down: a MiB of a card of 4,000 less
        (ours(percent=30, memory=8_000), 100_000),
        (ours(memory=8_000), 100_000),
        (ours(memory=8_000, count=2), 100_000),
        (ours(percent=60, count=2), 599_500),
        (ours(percent=100), 1_000_000),
        (ours(count=3), 3_000_000),
        (ours(memory=90_000), 1_000_000),  # more than a card that is known has
        ({"nvidia.com/gpu": "2"}, 2_000_000),
    ],
    ids=str,
)
def test_every_form_of_a_request_is_also_stored_in_one_unit_and_reads_as_before(
    limits: Json, millionths: int
) -> None:
    raw = asking(limits)
    after = stored(raw)

    (kept,) = limits_of(after)
    assert kept[NAME] == str(millionths)
    if "nvidia.com/gpu" not in limits:
        assert {name: kept[name] for name in limits} == limits, "quotas go on counting them"
    before, read = parse(raw).request, parse(after).request
    assert before
    assert read == replace(before, dialect="bursar")


def test_on_a_card_smaller_than_the_largest_an_amount_counts_less_than_it_takes_and_never_more() -> None:
    """It errs towards *fits*: a kubelet would refuse what is above its node's sum."""
    full = limits_of(stored(asking(ours(memory=16_000))))[0][NAME]

    assert int(full) == 200_000, "all of a card of 16,000 MiB"


def test_each_container_has_its_own_and_those_without_cards_none() -> None:
    after = stored(asking(ours(percent=50), {}, ours(count=1)))

    assert [limits.get(NAME) for limits in limits_of(after)] == ["499750", None, "1000000"]
    assert NAME not in str(after["spec"]["initContainers"]), "the sidecar"


def test_a_second_call_changes_nothing_in_whatever_spelling_the_api_server_returns_it() -> None:
    after = stored(asking(ours(memory=40_000)))
    (container,) = after["spec"]["containers"]
    for member in ("limits", "requests"):
        assert container["resources"][member][NAME] == "500000"
        container["resources"][member][NAME] = "500k"

    assert mutated(after).operations == ()


@pytest.mark.parametrize("policy", [SEEING, BLIND, replace(POLICY, card_host=None)])
def test_whatever_the_worker_knows_that_validates_the_pod_is_valid(policy: AdmissionPolicy) -> None:
    for told in (SEEING, BLIND):
        assert validate(review(stored(asking(ours(percent=50)), told)), policy).verdict == "valid"


def test_what_its_user_wrote_or_copied_from_a_living_pod_is_replaced_or_goes() -> None:
    raw = asking(ours(percent=50) | {NAME: "9000000"})

    assert limits_of(stored(raw))[0][NAME] == "499750"
    assert limits_of(stored(raw, BLIND)) == [ours(percent=50)]
    assert limits_of(stored(asking({"nvidia.com/gpu": "1", NAME: "1"}), POLICY)) == [{"nvidia.com/gpu": "1"}]


def test_a_pod_of_nothing_else_is_refused_for_it_would_take_the_nodes_from_others() -> None:
    answer = mutated(asking({NAME: "8000000"}))

    assert "unsupported GPU resource cards.bursar.dev/millionths" in answer.refusal


def test_a_pod_that_kueue_counts_gets_none_and_loses_it_where_its_label_comes_later() -> None:
    raw = asking({"nvidia.com/gpu": "1"})
    after = stored(raw)
    after["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "q"

    assert limits_of(stored(after)) == [{"nvidia.com/gpu": "1"}]


@pytest.mark.parametrize("mode", ["observe", "meter"])
def test_where_nothing_is_written_it_is_not_either(mode: Any) -> None:
    assert mutated(asking(ours(percent=50)), replace(SEEING, mode=mode)).operations == ()


@given(
    st.integers(4_000, MIB),
    st.sampled_from((0, 0, 0, 1, 100_000)),
    st.lists(st.integers(1, 99) | st.integers(100, MIB), max_size=60),
)
def test_no_kubelet_refuses_what_the_extender_has_placed(mib: int, more: int, asked: list[int]) -> None:
    """A kubelet refuses a pod above its node's sum. ``mib``: of the node's card; ``more``: that the largest
    has; ``asked``: by percent below 100, else by MiB. Each that fits is placed, and then the rest."""
    policy = replace(SEEING, card_host=replace(ROOM, most_card_mib=mib + more))
    percent, left, requests = 100, mib, []
    for amount in asked:
        taken = mib * amount // 100 if amount < 100 else amount
        if taken <= left and (amount >= 100 or amount <= percent):
            percent, left = percent - (amount if amount < 100 else 0), left - taken
            requests.append(ours(percent=amount) if amount < 100 else ours(memory=amount))
    if left >= 64:
        requests.append(ours(memory=left))

    counted = [int(limits_of(stored(asking(request), policy))[0][NAME]) for request in requests]
    assert sum(counted) <= 1_000_000
    assert all(counted), "each is seen"
