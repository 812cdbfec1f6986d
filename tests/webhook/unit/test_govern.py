"""What Bursar writes into a good pod: the whole governed pod, and that governing twice changes nothing."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.injector import CHANGES
from tests.webhook.worlds import (
    OBSERVING,
    PLAIN_SIDECAR,
    POLICY,
    SIDECAR,
    WITHOUT_SIDECAR,
    admitted,
    env,
    governed,
    half,
    operations,
    patched,
    plain,
    sidecar_of,
    violations_of,
    with_class,
)
from tests.worlds import Json, container, limits_of
from timekeeper.core.request.request import parse
from timekeeper.core.wire import StandingWord
from webhook.policy import AdmissionPolicy, PriorityClass

TOKEN_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"

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
                    {"name": "BURSAR_TOKEN_FILE", "value": f"{TOKEN_FOLDER}/token"},
                    {"name": "BURSAR_CA", "value": "-----BEGIN CERTIFICATE-----\n..."},
                    {"name": "BURSAR_SPOOL", "value": "/var/run/bursar/spool"},
                    visible("bursar-sidecar"),
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
                ],
                "volumeMounts": [
                    {"name": "bursar-token", "mountPath": TOKEN_FOLDER, "readOnly": True},
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
                "resources": {},
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


def test_an_init_container_that_requests_cards_reads_its_own() -> None:
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


SEEN = replace(
    POLICY,
    in_budget=replace(POLICY.in_budget, preemption_policy="PreemptLowerPriority"),
    over_budget=replace(POLICY.over_budget, preemption_policy="Never"),
)


def test_a_class_that_the_timekeeper_sees_is_written_with_its_numbers() -> None:
    """So that the API server has nothing left to set, and asks for no second review."""
    fresh, urgent = admitted(half()), with_class(admitted(half()), "urgent", 1_000)

    numbers = {
        (name, word): {
            each["path"]: each["value"]
            for each in operations(raw, word, SEEN)
            if each["path"].startswith("/spec/pr")
        }
        for name, raw in (("fresh", fresh), ("urgent", urgent))
        for word in ("IN_BUDGET", "OVER_BUDGET")
    }

    ours, lower = "gpu-default-priority", "gpu-lower-priority"
    demoted = {"/spec/priorityClassName": lower, "/spec/priority": -5, "/spec/preemptionPolicy": "Never"}
    assert numbers == {
        ("fresh", "IN_BUDGET"): {"/spec/priorityClassName": ours},
        ("fresh", "OVER_BUDGET"): demoted,
        ("urgent", "IN_BUDGET"): {"/spec/priorityClassName": ours, "/spec/priority": 0},
        ("urgent", "OVER_BUDGET"): demoted,
    }


def test_beside_a_class_of_unknown_value_no_class_of_the_users_stays() -> None:
    policy = replace(POLICY, in_budget=PriorityClass("gpu-default-priority", None))

    after = governed(with_class(admitted(half()), "batch", -100), policy=policy)

    assert after["spec"]["priorityClassName"] == "gpu-default-priority"


def test_a_missing_priority_class_is_not_set_and_raises_no_pod_above_its_budget() -> None:
    """The API server would refuse every pod that names it."""
    missing = PriorityClass("typo", None, absent=True)
    no_lower = replace(POLICY, over_budget=missing)
    none = replace(no_lower, in_budget=missing)
    fresh = admitted(half())
    pods = (fresh, with_class(fresh, "batch", -1), with_class(fresh, "urgent", 7))

    def classes(policy: AdmissionPolicy, word: StandingWord) -> list[str | None]:
        return [patched(raw, operations(raw, word, policy))["spec"].get("priorityClassName") for raw in pods]

    assert classes(no_lower, "OVER_BUDGET") == [None, "batch", "gpu-default-priority"]
    assert classes(no_lower, "IN_BUDGET") == ["gpu-default-priority", "batch", "gpu-default-priority"]
    assert classes(none, "IN_BUDGET") == classes(none, "OVER_BUDGET") == [None, "batch", "urgent"]
    assert classes(replace(none, mode="observe"), "OVER_BUDGET") == [None, "batch", "urgent"]
    for raw in pods:
        once = patched(raw, operations(raw, "OVER_BUDGET", no_lower))
        assert operations(once, "OVER_BUDGET", no_lower) == []


def test_unknown_is_what_the_operator_says_it_is() -> None:
    policy = replace(POLICY, unknown_standing="overBudget")

    assert governed(admitted(half()), "UNKNOWN", policy)["spec"]["priorityClassName"] == "gpu-lower-priority"


def test_in_observe_mode_no_pod_is_demoted() -> None:
    fresh, urgent = admitted(half()), with_class(admitted(half()), "urgent", 1_000)

    assert governed(fresh, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "gpu-default-priority"
    assert governed(urgent, "OVER_BUDGET", OBSERVING)["spec"]["priorityClassName"] == "urgent"


def test_a_runtime_class_is_set_where_the_settings_name_one_and_the_pod_none() -> None:
    policy = replace(POLICY, runtime_class="nvidia")

    assert governed(admitted(half()), policy=policy)["spec"]["runtimeClassName"] == "nvidia"
    assert (
        governed(admitted(half(), runtimeClassName="kata"), policy=policy)["spec"]["runtimeClassName"]
        == "kata"
    )


def test_without_a_sidecar_there_is_none_and_no_volume() -> None:
    after = governed(admitted(half()), policy=WITHOUT_SIDECAR)

    assert "initContainers" not in after["spec"]
    assert "volumes" not in after["spec"]


def guaranteed(name: str, cpu: str = "2", memory: str = "1Gi", **requests: str) -> Json:
    """A container whose requests are its limits, but for what is given otherwise."""
    limits = {"cpu": cpu, "memory": memory, "bursar.dev/gpu-percent": "50"}
    return {"name": name, "image": "x", "resources": {"limits": limits, "requests": limits | requests}}


ALIKE = {"limits": {"cpu": "30m", "memory": "64Mi"}, "requests": {"cpu": "30m", "memory": "64Mi"}}
ASKS_LITTLE = plain("little", resources={"requests": {"memory": "1Gi"}})

RESOURCES: dict[str, tuple[Json, Json]] = {
    "guaranteed": (admitted(guaranteed("main")), ALIKE),
    "guaranteed, with an init container": (admitted(guaranteed("main"), init=[guaranteed("init")]), ALIKE),
    "burstable": (admitted(guaranteed("main", cpu="2", memory="1Gi"), plain()), ALIKE),
    "burstable by one request": (admitted(half(), ASKS_LITTLE), ALIKE),
    "burstable by an init container": (admitted(half(), init=[ASKS_LITTLE]), ALIKE),
    "best effort": (admitted(half(), plain()), {}),
    "of a pod with resources as a whole": (
        admitted(half(), resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
        {},
    ),
}


@pytest.mark.parametrize("policy", [POLICY, PLAIN_SIDECAR], ids=["native", "plain"])
@pytest.mark.parametrize("case", RESOURCES)
def test_the_sidecar_leaves_the_pods_quality_of_service_as_it_was(case: str, policy: AdmissionPolicy) -> None:
    raw, expected = RESOURCES[case]

    assert sidecar_of(governed(raw, policy=policy))["resources"] == expected


def test_the_sidecar_requests_what_the_settings_say() -> None:
    policy = replace(POLICY, sidecar=replace(SIDECAR, cpu="100m", memory="128Mi"))

    after = governed(admitted(guaranteed("main")), policy=policy)

    amounts = {"cpu": "100m", "memory": "128Mi"}
    assert sidecar_of(after)["resources"] == {"limits": amounts, "requests": amounts}


# a plain container where the cluster has no native sidecars


def test_a_plain_sidecar_stands_last_among_the_containers_and_is_else_the_same() -> None:
    raw = admitted(half(), plain(), init=[plain("setup")], restartPolicy="Never")

    after, native = governed(raw, policy=PLAIN_SIDECAR), governed(raw)

    assert [each["name"] for each in after["spec"]["containers"]] == ["main", "web", "bursar-sidecar"]
    assert [each["name"] for each in after["spec"]["initContainers"]] == ["setup"]
    ends = {"name": "BURSAR_ENDS", "value": "over"}
    expected = copy.deepcopy(sidecar_of(native))
    del expected["restartPolicy"]
    expected["env"].insert(4, ends)
    assert sidecar_of(after) == expected
    assert after["spec"]["volumes"] == native["spec"]["volumes"]


@pytest.mark.parametrize(
    ("restart_policy", "ends"), [("Never", "over"), ("OnFailure", "over"), ("Always", None), (None, None)]
)
def test_a_plain_sidecar_ends_by_itself_only_in_a_pod_that_can_end(
    restart_policy: str | None, ends: str | None
) -> None:
    fields = {} if restart_policy is None else {"restartPolicy": restart_policy}
    after = governed(admitted(half(), **fields), policy=PLAIN_SIDECAR)

    assert env(sidecar_of(after)).get("BURSAR_ENDS") == ends


def test_a_native_sidecar_gets_no_flag_for_the_end() -> None:
    assert "BURSAR_ENDS" not in env(sidecar_of(governed(admitted(half(), restartPolicy="Never"))))


def test_a_sidecar_writes_the_log_format_of_its_webhook() -> None:
    told = replace(POLICY, sidecar=replace(SIDECAR, log_format="json"))
    pod = admitted(half())
    before, after = governed(pod), governed(pod, policy=told)

    assert env(sidecar_of(after)).get("BURSAR_LOG_FORMAT") == "json"
    assert "BURSAR_LOG_FORMAT" not in env(sidecar_of(before))
    assert "BURSAR_LOG_FORMAT" not in env(sidecar_of(governed(after)))


CARDS = container("main", gpu_percent="200")


@pytest.mark.parametrize(
    ("containers", "told"),
    [
        ((CARDS,), "exclusive"),
        ((CARDS, plain()), "exclusive"),
        ((CARDS, container("more", gpu_percent="100")), "exclusive"),
        ((CARDS, half("more")), None),
        ((half(),), None),
        ((container("main", gpu_memory="8000"),), None),
        (({**plain("main"), "resources": {"limits": {"nvidia.com/gpu": "1"}}},), None),
    ],
)
def test_a_sidecar_learns_where_its_pod_has_its_cards_alone(
    containers: tuple[Json, ...], told: str | None
) -> None:
    after = governed(admitted(*containers))
    assert env(sidecar_of(after)).get("BURSAR_CARDS") == told

    sidecar_of(after)["env"].append({"name": "BURSAR_CARDS", "value": "exclusive"})
    assert env(sidecar_of(governed(after))).get("BURSAR_CARDS") == told


@pytest.mark.parametrize("now", [POLICY, PLAIN_SIDECAR, WITHOUT_SIDECAR], ids=["native", "plain", "off"])
@pytest.mark.parametrize("then", [POLICY, PLAIN_SIDECAR], ids=["native", "plain"])
def test_a_sidecar_that_is_there_stays_where_it_is_whatever_the_setting_has_become(
    then: AdmissionPolicy, now: AdmissionPolicy
) -> None:
    before = governed(admitted(half(), restartPolicy="Never"), policy=then)

    assert operations(before, policy=now) == []
    assert violations_of(before, now) == ()


def test_a_sidecar_of_the_users_own_has_our_image_command_variables_and_cards() -> None:
    """Its hooks and probes stay: they run what `kubectl exec` could run."""
    raw = governed(admitted(half()))
    ours, added = env(sidecar_of(raw)), {"LD_PRELOAD": "/own.so"}
    forged = {"BURSAR_TIMEKEEPER_URL": "https://elsewhere"} | added
    sidecar_of(raw).update(
        env=[{"name": name, "value": value} for name, value in forged.items()],
        lifecycle={"postStart": {"exec": {"command": ["true"]}}},
        startupProbe={"exec": {"command": ["false"]}},
    )

    after = governed(raw)

    assert violations_of(raw, POLICY) == ()
    assert env(sidecar_of(after)) == ours | added
    for field, other in (("image", "own:1"), ("command", ["sh"]), ("args", ["-c", "true"])):
        sidecar_of(after)[field] = other
        assert [each.rule for each in violations_of(after, POLICY)] == ["sidecar-name"]
        sidecar_of(after)[field] = sidecar_of(governed(admitted(half()))).get(field)


# a pod that another release of ours has governed


def of_another_release(policy: AdmissionPolicy, **fields: Any) -> Json:
    """A governed pod as release 0.1.0 left it, with the mount that the API server added to its sidecar."""
    pod = governed(admitted(half(), **fields), policy=policy)
    api = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access-x"}
    sidecar_of(pod).update(
        image="mirror.example/sidecar:0",
        imagePullPolicy="Always",
        env=[
            {"name": "BURSAR_SPOOL", "value": "/var/spool/bursar"},
            {"name": "BURSAR_TOKEN_FILE", "value": "/var/run/bursar/token/token"},
            {"name": "BURSAR_CA", "value": "older"},
            {"name": "BURSAR_INTERVAL", "value": "5"},
        ],
        volumeMounts=[
            api | {"readOnly": True},
            {"name": "bursar-spool", "mountPath": "/var/spool/bursar"},
            {"name": "bursar-token", "mountPath": "/var/run/bursar/token"},
        ],
        resources={"requests": {"cpu": "1m", "memory": "32Mi"}},
        securityContext={"runAsUser": 1000},
    )
    for volume in pod["spec"]["volumes"]:
        if volume["name"] == "bursar-spool":
            volume["emptyDir"]["sizeLimit"] = "16Mi"
        else:
            volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] = 7200
            volume["projected"]["defaultMode"] = 0o440
    return pod


@pytest.mark.parametrize("policy", [POLICY, PLAIN_SIDECAR], ids=["native", "plain"])
def test_a_sidecar_of_another_release_is_taken_for_ours_and_gets_its_settings(
    policy: AdmissionPolicy,
) -> None:
    before = of_another_release(policy)

    after = governed(before, policy=policy)

    assert violations_of(before, policy) == violations_of(after, policy) == ()
    assert operations(after, policy=policy) == []
    expected = copy.deepcopy(before)
    sidecar_of(expected)["env"] = [
        {"name": "BURSAR_TIMEKEEPER_URL", "value": "https://timekeeper.example"},
        {"name": "BURSAR_TOKEN_FILE", "value": "/var/run/bursar/token/token"},
        {"name": "BURSAR_CA", "value": "-----BEGIN CERTIFICATE-----\n..."},
        {"name": "BURSAR_SPOOL", "value": "/var/spool/bursar"},
        visible("bursar-sidecar"),
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        {"name": "BURSAR_INTERVAL", "value": "5"},
    ]
    assert after == expected


def test_a_native_sidecar_loses_the_flag_to_end_by_itself() -> None:
    before = governed(admitted(half()))
    sidecar_of(before)["env"].append({"name": "BURSAR_ENDS", "value": "over"})

    assert "BURSAR_ENDS" not in env(sidecar_of(governed(before)))


NOT_OURS: dict[str, Json] = {
    "another command": {"command": ["sh"]},
    "arguments": {"args": ["--spool=/tmp"]},
    "no token": {"volumeMounts": [{"name": "bursar-spool", "mountPath": "/spool"}]},
    "no spool": {"volumeMounts": [{"name": "bursar-token", "mountPath": "/token"}]},
    "a policy of the other place": {"restartPolicy": "OnFailure"},
}


@pytest.mark.parametrize("policy", [POLICY, PLAIN_SIDECAR], ids=["native", "plain"])
@pytest.mark.parametrize("case", NOT_OURS)
def test_a_container_that_only_has_the_sidecars_name_is_refused(case: str, policy: AdmissionPolicy) -> None:
    pod = governed(admitted(half()), policy=policy)
    sidecar_of(pod).update(NOT_OURS[case])

    assert [each.rule for each in violations_of(pod, policy)] == ["sidecar-name"]


def test_one_sidecar_in_each_place_is_one_too_many() -> None:
    pod = governed(admitted(half()))
    pod["spec"]["containers"].append(sidecar_of(governed(admitted(half()), policy=PLAIN_SIDECAR)))

    assert [(each.rule, each.path) for each in violations_of(pod, POLICY)] == [
        ("sidecar-name", "spec.containers[1].name")
    ]


VOLUMES_OF_OTHERS: dict[str, Json] = {
    "a spool on the node's disk": {"name": "bursar-spool", "emptyDir": {}},
    "a spool of another kind": {"name": "bursar-spool", "configMap": {"name": "c"}},
    "a token for another": {
        "name": "bursar-token",
        "projected": {"sources": [{"serviceAccountToken": {"audience": "vault", "path": "token"}}]},
    },
    "a secret beside the token": {
        "name": "bursar-token",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"audience": "bursar", "path": "token"}},
                {"secret": {"name": "s"}},
            ]
        },
    },
    "a secret": {"name": "bursar-token", "secret": {"secretName": "s"}},
}


@pytest.mark.parametrize("case", VOLUMES_OF_OTHERS)
def test_a_volume_that_only_has_the_name_of_ours_is_refused(case: str) -> None:
    pod = admitted(half(), volumes=[VOLUMES_OF_OTHERS[case]])

    assert [each.rule for each in violations_of(pod, POLICY)] == ["sidecar-volume"]


def test_a_newer_ca_reaches_a_sidecar_that_is_there_already() -> None:
    before = governed(admitted(half()))
    sidecar_of(before)["env"].append({"name": "PROXY", "value": "p"})
    newer = replace(POLICY, sidecar=replace(SIDECAR, ca="newer"))

    after = governed(before, policy=newer)

    assert env(sidecar_of(after))["BURSAR_CA"] == "newer"
    assert env(sidecar_of(after))["PROXY"] == "p"
    assert operations(after, policy=newer) == []


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
    assert violations_of(after, POLICY) == ()


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
EVERY_SIDECAR = [POLICY, PLAIN_SIDECAR, WITHOUT_SIDECAR]
LIMITED = replace(POLICY, mps_pipes="/run/nvidia-mps")
ALL_POLICIES = st.sampled_from([*EVERY_SIDECAR, OBSERVING, LIMITED, replace(LIMITED, runtime_class="nvidia")])


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


def without_ours(raw: Json) -> Json:
    """The pod without all that Bursar may write."""
    changed = copy.deepcopy(raw)
    metadata, spec = changed["metadata"], changed["spec"]
    for name in ("labels", "annotations"):
        kept = {key: value for key, value in (metadata.pop(name, None) or {}).items() if not of_ours(key)}
        metadata |= {name: kept} if kept else {}
    for name in ("priorityClassName", "priority", "preemptionPolicy", "schedulerName", "runtimeClassName"):
        spec.pop(name, None)
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
            if name not in ("variables", "mounts", "mirrors"):  # what reaches a sidecar that is there already
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
