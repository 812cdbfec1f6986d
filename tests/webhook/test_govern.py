"""What Bursar writes into a good pod: the whole governed pod, and that governing twice changes nothing."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.worlds import (
    OBSERVING,
    SIDECAR,
    TERMS,
    WITHOUT_SIDECAR,
    admitted,
    env,
    governed,
    half,
    operations,
    patched,
    plain,
    sidecar_of,
    with_class,
)
from tests.worlds import Json, container, limits_of
from timekeeper.core.request import parse
from webhook import rules
from webhook.terms import PriorityClass

ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
TENCENT = limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="8")
WHOLE = limits_of("main", nvidia_com__gpu="1")


def visible(name: str) -> Json:
    """The variable that reads a container's cards from its annotation."""
    path = f"metadata.annotations['visible-devices.bursar.dev/{name}']"
    return {
        "name": "NVIDIA_VISIBLE_DEVICES",
        "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}},
    }


def test_a_governed_pod_whole() -> None:
    raw = admitted(half(env=[{"name": "MODE", "value": "train"}]), plain(env=ALL))

    after = patched(raw, operations(raw))

    expected = copy.deepcopy(raw)
    expected["metadata"] |= {
        "labels": {"bursar.dev/governed": "true"},
        "annotations": {
            "bursar.dev/request": '{"main":{"devices":1,"memory_mib":0,"share_milli":500}}',
            "bursar.dev/standing": "IN_BUDGET",
        },
    }
    del expected["spec"]["priority"], expected["spec"]["preemptionPolicy"]
    expected["spec"] |= {
        "priorityClassName": "gpu-default-priority",
        "schedulerName": "bursar-scheduler",
        "volumes": [
            {
                "name": "bursar-token",
                "projected": {
                    "defaultMode": 0o644,
                    "sources": [
                        {
                            "serviceAccountToken": {
                                "audience": "bursar",
                                "expirationSeconds": 3600,
                                "path": "token",
                            }
                        }
                    ],
                },
            },
            {"name": "bursar-spool", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}},
        ],
        "initContainers": [
            {
                "name": "bursar-sidecar",
                "image": "example/sidecar:1",
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "sidecar"],
                "restartPolicy": "Always",
                "env": [
                    {"name": "BURSAR_TIMEKEEPER_URL", "value": "https://timekeeper.example"},
                    {"name": "BURSAR_TOKEN_FILE", "value": "/var/run/bursar/token/token"},
                    {"name": "BURSAR_CA", "value": "-----BEGIN CERTIFICATE-----\n..."},
                    {"name": "BURSAR_SPOOL", "value": "/var/run/bursar/spool"},
                    visible("bursar-sidecar"),
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
                ],
                "volumeMounts": [
                    {"name": "bursar-token", "mountPath": "/var/run/bursar/token", "readOnly": True},
                    {"name": "bursar-spool", "mountPath": "/var/run/bursar/spool"},
                ],
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                    "runAsGroup": 65532,
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "resources": {"requests": {"cpu": "1m", "memory": "32Mi"}},
            }
        ],
    }
    main, web = expected["spec"]["containers"]
    main["env"] = [
        {"name": "MODE", "value": "train"},
        visible("main"),
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
    ]
    web["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert after == expected


def test_what_is_there_is_added_to_and_not_replaced() -> None:
    raw = admitted(half(), init=[plain("setup")], volumes=[{"name": "data", "emptyDir": {}}])
    raw["metadata"] |= {"labels": {"app": "x"}, "annotations": {"note": "y"}}

    after = governed(raw)

    assert after["metadata"]["labels"] == {"app": "x", "bursar.dev/governed": "true"}
    assert after["metadata"]["annotations"]["note"] == "y"
    assert [each["name"] for each in after["spec"]["volumes"]] == ["data", "bursar-token", "bursar-spool"]
    assert [each["name"] for each in after["spec"]["initContainers"]] == ["bursar-sidecar", "setup"]
    assert env(after["spec"]["initContainers"][1]) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_an_init_container_that_asks_for_cards_reads_its_own() -> None:
    after = governed(admitted(plain(), init=[half("warm-up")]))

    first = after["spec"]["initContainers"][1]
    assert (
        env(first)["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/warm-up']"
    )
    assert env(after["spec"]["containers"][0]) == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_of_several_entries_of_one_variable_none_is_left_to_win() -> None:
    twice = [*ALL, {"name": "A", "value": "1"}, *ALL, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]

    after = governed(admitted(half(env=twice), plain(env=twice)))

    main, web = (env(each) for each in after["spec"]["containers"])
    assert main["NVIDIA_VISIBLE_DEVICES"] == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert web == {"NVIDIA_VISIBLE_DEVICES": "void", "A": "1"}


def test_capabilities_that_the_user_set_stay() -> None:
    own = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]

    assert (
        env(governed(admitted(half(env=own)))["spec"]["containers"][0])["NVIDIA_DRIVER_CAPABILITIES"] == "all"
    )


def test_where_a_device_plugin_chooses_the_cards_its_own_variable_is_left_alone() -> None:
    after = governed(admitted(WHOLE | {"env": ALL}, plain(env=ALL)))

    main, web = after["spec"]["containers"]
    assert env(main) == {}
    assert env(web) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert env(sidecar_of(after))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_gpu_manager_finds_its_cap() -> None:
    annotations = governed(admitted(TENCENT))["metadata"]["annotations"]

    assert annotations["tencent.com/vcuda-core-limit"] == "50"
    assert {
        "op": "add",
        "path": "/metadata/annotations/tencent.com~1vcuda-core-limit",
        "value": "50",
    } in operations(admitted(TENCENT) | {"metadata": {"annotations": {"a": "b"}}})


def test_a_standing_that_a_user_forged_is_written_over_with_its_class() -> None:
    forged = governed(admitted(half()), "UNLIMITED")

    after = governed(forged, "OVER_BUDGET")

    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "OVER_BUDGET"
    assert after["spec"]["priorityClassName"] == "gpu-lower-priority"


CLASSES: dict[str, tuple[Json, Any, str]] = {
    "none": (admitted(half()), "IN_BUDGET", "gpu-default-priority"),
    "none, over budget": (admitted(half()), "OVER_BUDGET", "gpu-lower-priority"),
    "unlimited": (admitted(half()), "UNLIMITED", "gpu-default-priority"),
    "unknown": (admitted(half()), "UNKNOWN", "gpu-default-priority"),
    "a lower one of the user's": (with_class(admitted(half()), "batch", -100), "IN_BUDGET", "batch"),
    "one of the same value": (with_class(admitted(half()), "zero", 0), "IN_BUDGET", "zero"),
    "a higher one": (with_class(admitted(half()), "urgent", 1), "IN_BUDGET", "gpu-default-priority"),
    "a lower one, still too high": (
        with_class(admitted(half()), "low", -4),
        "OVER_BUDGET",
        "gpu-lower-priority",
    ),
    "one whose value nobody resolved": (
        admitted(half(), priorityClassName="urgent", priority=None),
        "IN_BUDGET",
        "gpu-default-priority",
    ),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_of_ones_own_stays_where_it_gives_no_more_than_the_standing(case: str) -> None:
    raw, word, expected = CLASSES[case]

    assert governed(raw, word)["spec"]["priorityClassName"] == expected


def test_a_new_class_takes_the_numbers_of_the_old_one_away_where_they_are_present() -> None:
    raw = admitted(half())
    del raw["spec"]["preemptionPolicy"]

    removed = [each["path"] for each in operations(raw) if each["op"] == "remove"]

    assert removed == ["/spec/priority"]


def test_a_class_of_unknown_value_lets_no_class_of_the_users_stay() -> None:
    terms = replace(TERMS, in_budget=PriorityClass("gpu-default-priority", None))

    after = governed(with_class(admitted(half()), "batch", -100), terms=terms)

    assert after["spec"]["priorityClassName"] == "gpu-default-priority"


def test_unknown_is_what_the_operator_says_it_is() -> None:
    terms = replace(TERMS, unknown_standing="overBudget")

    assert governed(admitted(half()), "UNKNOWN", terms)["spec"]["priorityClassName"] == "gpu-lower-priority"


def test_while_observing_nobody_is_demoted() -> None:
    fresh, urgent = admitted(half()), with_class(admitted(half()), "urgent", 1_000)

    assert governed(fresh, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "gpu-default-priority"
    assert governed(urgent, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "urgent"


def test_a_runtime_class_is_set_where_the_settings_name_one_and_the_pod_none() -> None:
    terms = replace(TERMS, runtime_class="nvidia")

    assert governed(admitted(half()), terms=terms)["spec"]["runtimeClassName"] == "nvidia"
    assert (
        governed(admitted(half(), runtimeClassName="kata"), terms=terms)["spec"]["runtimeClassName"] == "kata"
    )


def test_without_a_sidecar_there_is_none_and_no_volume() -> None:
    after = governed(admitted(half()), terms=WITHOUT_SIDECAR)

    assert "initContainers" not in after["spec"]
    assert "volumes" not in after["spec"]


def guaranteed(name: str, cpu: str = "2", memory: str = "1Gi", **requests: str) -> Json:
    """A container whose requests are its limits, but for what is given otherwise."""
    limits = {"cpu": cpu, "memory": memory, "bursar.dev/gpu-percent": "50"}
    return {"name": name, "image": "x", "resources": {"limits": limits, "requests": limits | requests}}


RESOURCES: dict[str, tuple[Json, Json]] = {
    "guaranteed": (
        admitted(guaranteed("main")),
        {"limits": {"cpu": "20m", "memory": "64Mi"}, "requests": {"cpu": "20m", "memory": "64Mi"}},
    ),
    "guaranteed, written two ways": (
        admitted(guaranteed("main", memory="1Gi") | {}, init=[guaranteed("init", memory="1Gi")]),
        {"limits": {"cpu": "20m", "memory": "64Mi"}, "requests": {"cpu": "20m", "memory": "64Mi"}},
    ),
    "burstable": (
        admitted(guaranteed("main", cpu="2") | {"resources": {"limits": {"bursar.dev/gpu-percent": "50"}}}),
        {"requests": {"cpu": "1m", "memory": "32Mi"}},
    ),
    "of one container only": (
        admitted(guaranteed("main"), plain()),
        {"requests": {"cpu": "1m", "memory": "32Mi"}},
    ),
    "of a pod with resources as a whole": (
        admitted(half(), resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
        {},
    ),
}


@pytest.mark.parametrize("case", RESOURCES)
def test_the_sidecar_leaves_the_pods_quality_of_service_as_it_was(case: str) -> None:
    raw, expected = RESOURCES[case]

    assert sidecar_of(governed(raw))["resources"] == expected


def test_amounts_are_compared_as_amounts() -> None:
    one = guaranteed("main")
    one["resources"]["requests"]["memory"] = "1073741824"
    less = copy.deepcopy(one)
    less["resources"]["requests"]["memory"] = "1073741823"

    assert "limits" in sidecar_of(governed(admitted(one)))["resources"]
    assert "limits" not in sidecar_of(governed(admitted(less)))["resources"]


def test_a_newer_ca_reaches_a_sidecar_that_is_there_already() -> None:
    before = governed(admitted(half()))
    sidecar_of(before)["env"].append({"name": "PROXY", "value": "p"})
    newer = replace(TERMS, sidecar=replace(SIDECAR, ca="newer"))

    after = governed(before, terms=newer)

    assert env(sidecar_of(after))["BURSAR_CA"] == "newer"
    assert env(sidecar_of(after))["PROXY"] == "p"
    assert operations(after, terms=newer) == []


# what other webhooks do to a pod, before or after us

FOREIGN = plain("istio-proxy", env=ALL, restartPolicy="Always")


@pytest.mark.parametrize("place", ["initContainers", "containers"])
@pytest.mark.parametrize("index", [0, 9])
def test_a_container_that_another_webhook_adds_later_sees_no_card(place: str, index: int) -> None:
    before = governed(admitted(half()))
    before["spec"][place].insert(index, copy.deepcopy(FOREIGN))

    after = governed(before)

    (proxy,) = (each for each in after["spec"][place] if each["name"] == "istio-proxy")
    assert env(proxy)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [each["name"] for each in after["spec"]["initContainers"]].count("bursar-sidecar") == 1
    assert operations(after) == []
    assert rules.violations(after, TERMS) == ()


# properties

NAMES = st.sampled_from(["a", "b", "c", "main", "setup"])
VARIABLES = st.lists(
    st.sampled_from(
        [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "graphics"},
            {"name": "A", "value": "1"},
            {"name": "B", "value": ""},
        ]
    ),
    max_size=5,
)
LIMITS = {
    "native": st.sampled_from([{}, {"bursar.dev/gpu-percent": "50"}, {"bursar.dev/gpu-count": "2"}]),
    "tencent": st.sampled_from([{}, {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}]),
    "nvidia": st.sampled_from([{}, {"nvidia.com/gpu": "1"}]),
}


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """Good GPU pods of one dialect, with containers of several kinds in any order."""
    limits = LIMITS[draw(st.sampled_from(sorted(LIMITS)))]

    def one(name: str) -> Json:
        raw: Json = {"name": name, "image": "x"}
        amounts = draw(limits)
        if amounts:
            raw["resources"] = {"limits": amounts}
        variables = draw(st.none() | VARIABLES)
        if variables is not None:
            raw["env"] = copy.deepcopy(variables)
        return raw

    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    count = draw(st.integers(1, len(names)))
    raw = admitted(*map(one, names[:count]), init=[one(name) for name in names[count:]] or None)
    if draw(st.booleans()):
        raw["metadata"]["annotations"] = draw(
            st.dictionaries(st.sampled_from(["note", "a/b", "c~d"]), st.just("x"))
        )
    if draw(st.booleans()):
        raw = with_class(raw, draw(st.sampled_from(["urgent", "batch"])), draw(st.integers(-9, 9)))
    return raw


WORDS: Any = st.sampled_from(["IN_BUDGET", "OVER_BUDGET", "UNLIMITED", "UNKNOWN"])
ALL_TERMS = st.sampled_from([TERMS, WITHOUT_SIDECAR, OBSERVING, replace(TERMS, runtime_class="nvidia")])


def asks(raw: Json) -> bool:
    """True where the pod asks for a GPU."""
    return parse(raw).request is not None


@given(pods().filter(asks), WORDS, ALL_TERMS)
def test_governing_twice_changes_nothing(raw: Json, word: Any, terms: Any) -> None:
    after = governed(raw, word, terms)

    assert operations(after, word, terms) == []
    assert rules.violations(after, terms) == ()


@given(pods().filter(asks), WORDS, ALL_TERMS)
def test_a_governed_pod_still_asks_what_it_asked_and_every_container_sees_what_it_should(
    raw: Json, word: Any, terms: Any
) -> None:
    request = parse(raw).request
    assert request is not None
    after = governed(raw, word, terms)

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


@given(pods().filter(asks), WORDS, st.integers(0, 5), st.sampled_from(["initContainers", "containers"]))
def test_another_webhook_before_or_after_us_leads_to_the_same_pod_but_for_the_order(
    raw: Json, word: Any, index: int, place: str
) -> None:
    def injected(pod: Json) -> Json:
        changed = copy.deepcopy(pod)
        changed["spec"].setdefault(place, []).insert(index, copy.deepcopy(FOREIGN))
        return changed

    before_us = governed(injected(raw), word)
    after_us = governed(injected(governed(raw, word)), word)

    assert operations(after_us, word) == operations(before_us, word) == []
    assert in_order(after_us) == in_order(before_us)


def in_order(raw: Json) -> Json:
    """The pod with its containers by name, and what the sidecar may ask left out: that follows from who was
    there when it was injected."""
    changed = copy.deepcopy(raw)
    for field in ("initContainers", "containers"):
        changed["spec"][field].sort(key=lambda each: each["name"])
        for each in changed["spec"][field]:
            if each["name"] == "bursar-sidecar":
                del each["resources"]
    return changed


def test_the_builders_make_what_they_say() -> None:
    assert parse(admitted(container(gpu_percent="50"))).request is not None
