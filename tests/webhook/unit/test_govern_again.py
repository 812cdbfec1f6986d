"""Admission called once, again, and before or after other webhooks leads to one pod."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.governing import ALL_POLICIES, EVERY_SIDECAR, LIMITED, WORDS, pods
from tests.webhook.injector import CHANGES
from tests.webhook.worlds import (
    POLICY,
    admitted,
    env,
    governed,
    operations,
    patched,
    violations_of,
)
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.request.request import parse


def good(raw: Json) -> bool:
    """True where the pod asks for a GPU and breaks no rule."""
    return parse(raw).request is not None and violations_of(raw, POLICY) == ()


@given(pods().filter(good), WORDS, ALL_POLICIES)
def test_governing_twice_changes_nothing(raw: Json, word: Any, policy: Any) -> None:
    after = governed(raw, word, policy)

    assert operations(after, word, policy) == []
    assert violations_of(after, policy) == ()


@given(pods().filter(good), WORDS, ALL_POLICIES)
def test_a_governed_pod_keeps_its_request_and_every_container_sees_what_it_should(
    raw: Json, word: Any, policy: Any
) -> None:
    request = parse(raw).request
    assert request is not None
    after = governed(raw, word, policy)

    assert parse(after).request == request
    asking = {each.container for each in request.asks}
    for each in after["spec"].get("initContainers", []) + after["spec"]["containers"]:
        seen = env(each).get("NVIDIA_VISIBLE_DEVICES")
        if request.dialect == "nvidia":
            assert seen == (None if each["name"] in asking else "void")
        elif each["name"] in asking or each["name"] == "bursar-sidecar":
            assert seen == f"metadata.annotations['visible-devices.bursar.dev/{each['name']}']"
        else:
            assert seen == "void"


@given(pods().filter(good), WORDS, ALL_POLICIES)
def test_governing_changes_nothing_that_is_not_ours(raw: Json, word: Any, policy: Any) -> None:
    assert without_ours(governed(raw, word, policy)) == without_ours(raw)


TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def without_ours(raw: Json) -> Json:
    """The pod without all that Bursar may write."""
    changed = copy.deepcopy(raw)
    metadata, spec = changed["metadata"], changed["spec"]
    for name in ("labels", "annotations"):
        kept = {key: value for key, value in (metadata.pop(name, None) or {}).items() if not of_ours(key)}
        metadata |= {name: kept} if kept else {}
    for name in ("priorityClassName", "priority", "preemptionPolicy", "schedulerName", "runtimeClassName"):
        spec.pop(name, None)
    tolerated = [each for each in spec.pop("tolerations", []) if each != TOLERATION]
    spec |= {"tolerations": tolerated} if tolerated else {}
    volumes = [each for each in spec.pop("volumes", []) if not each["name"].startswith("bursar-")]
    spec |= {"volumes": volumes} if volumes else {}
    for field in ("initContainers", "containers"):
        containers = [each for each in spec.pop(field, []) if each["name"] != "bursar-sidecar"]
        spec |= {field: containers} if containers else {}
        for one in containers:
            variables = [
                each for each in one.pop("env", []) if not each["name"].startswith(("NVIDIA_", "CUDA_MPS_"))
            ]
            one |= {"env": variables} if variables else {}
    return changed


def of_ours(key: str) -> bool:
    """True for a label or an annotation that Bursar writes at admission."""
    return key.startswith("bursar.dev/") or key == "tencent.com/vcuda-core-limit"


OTHERS = st.lists(st.sampled_from(sorted(CHANGES)), max_size=4)


@given(pods().filter(good), WORDS, OTHERS, OTHERS, st.booleans(), st.sampled_from([*EVERY_SIDECAR, LIMITED]))
def test_other_webhooks_before_and_after_us_called_once_or_again_lead_to_one_good_pod(
    raw: Json, word: Any, before: list[str], after: list[str], again: bool, policy: AdmissionPolicy
) -> None:
    """As an API server calls them: all in the order of their names, and a second time those that want it."""
    pod = raw
    for _ in range(2 if again else 1):
        for name in before:
            pod = patched(pod, CHANGES[name](pod))
        pod = governed(pod, word, policy)
        for name in after:
            pod = patched(pod, CHANGES[name](pod))
    pod = governed(pod, word, policy)

    assert operations(pod, word, policy) == []
    assert violations_of(pod, policy) == ()
    asked, still_asked = parse(raw).request, parse(pod).request
    assert asked is not None
    assert still_asked is not None
    assert set(still_asked.asks) == set(asked.asks)
    containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    named = [each["name"] for each in containers]
    assert named.count("bursar-sidecar") == (0 if policy.sidecar is None else 1)
    assert len(named) == len(set(named))
    for name in {"proxy", "native-proxy", "proxy-init"} & set(named):
        assert env(containers[named.index(name)])["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {each for name in (*before, *after) for each in ADDED.get(name, ())} <= set(named)


REACHING = ("variables", "mounts", "mirrors", "digests")  # a sidecar that is there already
ADDED = {
    **{f"container-{place}": ("proxy",) for place in ("first", "last")},
    **{f"native-{place}": ("native-proxy",) for place in ("first", "last")},
    **{f"init-{place}": ("proxy-init",) for place in ("first", "last")},
}


@given(pods().filter(good), WORDS, OTHERS, st.sampled_from(EVERY_SIDECAR))
def test_others_before_or_after_us_lead_to_the_same_pod_but_for_the_order(
    raw: Json, word: Any, others: list[str], policy: AdmissionPolicy
) -> None:
    def changed(pod: Json) -> Json:
        for name in others:
            if name not in REACHING:
                pod = patched(pod, CHANGES[name](pod))
        return pod

    before_us = governed(changed(raw), word, policy)
    after_us = governed(changed(governed(raw, word, policy)), word, policy)

    assert in_order(after_us) == in_order(before_us)


def in_order(raw: Json) -> Json:
    """The pod with its containers by name, and what the sidecar may ask left out: that follows from who was
    there when it was injected."""
    changed = copy.deepcopy(raw)
    changed["spec"].get("volumes", []).sort(key=lambda each: each["name"])
    for field in ("initContainers", "containers"):
        changed["spec"].get(field, []).sort(key=lambda each: each["name"])
        for each in changed["spec"].get(field, []):
            if each["name"] == "bursar-sidecar":
                del each["resources"]
    return changed


def test_the_builders_make_what_they_say() -> None:
    assert parse(admitted(container(gpu_percent="50"))).request is not None
