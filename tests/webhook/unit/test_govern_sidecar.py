"""The sidecar that admission adds, and one that is there already."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.webhook.governing import ALL, visible
from tests.webhook.worlds import (
    OBSERVING,
    POLICY,
    SIDECAR,
    UNPLACED,
    WITHOUT_SIDECAR,
    admitted,
    env,
    governed,
    half,
    mutated,
    operations,
    patched,
    plain,
    review,
    sidecar_of,
    violations_of,
    with_annotations,
)
from tests.worlds import Json, container
from timekeeper.core.admission.policy import AdmissionPolicy, SidecarImages
from webhook.admission.validation import validate


def test_without_a_sidecar_there_is_none_and_no_volume() -> None:
    after = governed(admitted(half()), policy=WITHOUT_SIDECAR)

    assert "initContainers" not in after["spec"]
    assert "volumes" not in after["spec"]


def guaranteed(name: str, cpu: str = "2", memory: str = "1Gi", **requests: str) -> Json:
    """A container whose requests are its limits, but for what is given otherwise."""
    limits = {"cpu": cpu, "memory": memory, "bursar.dev/gpu-percent": "50"}
    return {"name": name, "image": "x", "resources": {"limits": limits, "requests": limits | requests}}


ALIKE = {"limits": {"cpu": "30m", "memory": "64Mi"}, "requests": {"cpu": "30m", "memory": "64Mi"}}
OF_MEMORY = {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}}
ASKS_LITTLE = plain("little", resources={"requests": {"memory": "1Gi"}})
RESOURCES: dict[str, tuple[Json, Json]] = {
    "guaranteed": (admitted(guaranteed("main")), ALIKE),
    "guaranteed, with an init container": (admitted(guaranteed("main"), init=[guaranteed("init")]), ALIKE),
    "burstable": (admitted(guaranteed("main", cpu="2", memory="1Gi"), plain()), ALIKE),
    "burstable by one request": (
        admitted(half(), ASKS_LITTLE),
        OF_MEMORY,
    ),  # no cpu: a queue of Kueue need not cover it
    "burstable by an init container": (admitted(half(), init=[ASKS_LITTLE]), OF_MEMORY),
    "best effort": (admitted(half(), plain()), {}),
    "of a pod with resources as a whole": (
        admitted(half(), resources={"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
        {},
    ),
}


def of_host(resources: Json) -> Json:
    """A container's resources without devices."""
    without = {
        field: {name: amount for name, amount in amounts.items() if "/" not in name}
        for field, amounts in resources.items()
    }
    return {field: amounts for field, amounts in without.items() if amounts}


@pytest.mark.parametrize("case", RESOURCES)
def test_the_sidecar_leaves_the_pods_quality_of_service_as_it_was(case: str) -> None:
    raw, expected = RESOURCES[case]

    assert of_host(sidecar_of(governed(raw))["resources"]) == expected


def asking(requests: Json | None = None, name: str = "main", **limits: Any) -> Json:
    """A container with half a card, these limits and these requests."""
    resources: Json = {"limits": {"bursar.dev/gpu-percent": "50"} | limits}
    return plain(name, resources=resources | ({"requests": requests} if requests else {}))


def bounded(*containers: Json, cpu: str = "1", init: tuple[Json, ...] = (), **more: str) -> Json:
    """A pod with these resources of its own."""
    amounts = {"cpu": cpu} | more
    whole = {"requests": amounts, "limits": amounts}
    return admitted(*containers, resources=whole, **({"initContainers": list(init)} if init else {}))


DISK = "ephemeral-storage"
CPU, BOTH = {"cpu": "30m"}, {"cpu": "30m", "memory": "64Mi"}
FILLED: dict[str, Any] = {DISK: "5Gi"}  # as a LimitRange fills its default in
NATIVE = {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        # what a LimitRange limits by default is named, not what it only requests, which may be its minimum
        (admitted(asking(FILLED, **FILLED)), {DISK: "64Mi"}),
        (admitted(asking({DISK: "1Gi"})), {}),
        (admitted(asking(cpu="1", **FILLED)), CPU | {DISK: "64Mi"}),
        (admitted(half(), plain("web", resources={"limits": FILLED})), {DISK: "64Mi"}),
        (admitted(half(), init=[plain("setup", resources={"limits": FILLED})]), {DISK: "64Mi"}),
        (bounded(asking(**FILLED)), {DISK: "64Mi"}),
        # beside the pod's own resources only what a container names
        (bounded(asking()), {}),
        (bounded(asking(cpu="500m")), CPU),
        (bounded(asking({"cpu": "970m"})), CPU),
        (bounded(asking({"cpu": "500m"}), memory="1Gi"), CPU),
        (bounded(asking({"cpu": "500m", "memory": "1Gi"})), BOTH),
        (bounded(asking({"cpu": "500m", "memory": "960Mi"}), memory="1Gi"), BOTH),
        (bounded(asking({"cpu": "500m"}), asking({"cpu": "470m"}, "web")), CPU),
        (bounded(asking({"cpu": "100m"}), init=(plain("i", resources={"limits": {"cpu": "970m"}}),)), CPU),
        # used up, and a container names nothing of it, so nothing is filled in
        (bounded(asking({"cpu": "1"}), plain()), {}),
        (bounded(asking({"cpu": "1", "memory": "1Gi"}), plain()), {"memory": "64Mi"}),
        # used up
        (bounded(asking({"cpu": "971m"})), None),
        (bounded(asking({"cpu": "500m"}), asking({"cpu": "500m"}, "web")), None),
        (bounded(asking({"cpu": "100m", "memory": "961Mi"}), memory="1Gi"), None),
        (bounded(asking({"cpu": "100m"}), init=(plain("i", resources={"limits": {"cpu": "971m"}}),)), None),
        (bounded(asking({"cpu": "500m"}), init=(asking({"cpu": "500m"}, "native") | NATIVE,)), None),
        (bounded(asking({"cpu": "10m"}), cpu="29m"), None),
        (admitted(asking({"cpu": "1"}), resources={"limits": {"cpu": "20m"}}), None),
        # from Kubernetes 1.37 on the pod's own requests are filled in after admission
        (admitted(asking({"cpu": "500m"}), resources={"limits": {"cpu": "529m"}}), None),
        (admitted(asking({"cpu": "500m"}), resources={"limits": {"cpu": "530m"}}), CPU),
    ],
)  # fmt: skip
def test_the_sidecar_names_what_the_namespace_would_fill_in_as_far_as_the_pod_has_room(
    raw: Json, named: Json | None
) -> None:
    after = governed(raw)
    warned = any("the pod gets no sidecar" in warning for warning in mutated(raw).warnings)

    if named is None:
        assert "bursar-token" not in json.dumps(after["spec"])
    else:
        expected = {"limits": named, "requests": named} if named else {}
        assert of_host(sidecar_of(after)["resources"]) == expected
    assert warned == (named is None)
    assert operations(after) == []


def test_a_pod_without_room_is_not_warned_where_no_pod_gets_a_sidecar() -> None:
    raw = bounded(asking({"cpu": "1"}))

    for policy in (WITHOUT_SIDECAR, UNPLACED, OBSERVING):
        assert not [said for said in mutated(raw, policy=policy).warnings if "sidecar" in said]


SHARED = "spec.shareProcessNamespace: containers that wait for all processes, or end them, meet ours"
UNRESOLVED = "spec.dnsPolicy: the pod resolves no Service, where ClusterFirstWithHostNet would"
CHARGED = ", so the pod gets no sidecar, and the kubelet's timestamps charge it."


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, ""),
        ({"shareProcessNamespace": False, "dnsPolicy": "ClusterFirst"}, ""),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, ""),
        ({"shareProcessNamespace": True}, SHARED),
        ({"hostNetwork": True}, UNRESOLVED),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirst"}, UNRESOLVED),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}, UNRESOLVED),
        ({"dnsPolicy": "Default"}, UNRESOLVED),
    ],
)
def test_a_sidecar_is_left_out_with_a_warning_where_it_would_do_harm(spec: Json, why: str) -> None:
    raw = admitted(half(), **spec)

    after = governed(raw)

    assert ("bursar-token" in json.dumps(after["spec"]), "initContainers" in after["spec"]) == (not why,) * 2
    assert mutated(raw).warnings == ((why + CHARGED,) if why else ())
    assert operations(after) == []
    assert not validate(review(after), POLICY).refusal
    for policy in (WITHOUT_SIDECAR, UNPLACED, OBSERVING):
        assert not [said for said in mutated(raw, policy=policy).warnings if "sidecar" in said]


@pytest.mark.parametrize(
    ("value", "policy", "is_left_out", "said"),
    [
        ("off", POLICY, True, False),
        ("on", POLICY, False, False),
        ("false", POLICY, False, True),
        ("off", replace(POLICY, requires_sidecar=True), False, True),
    ],
)
def test_a_pod_may_ask_for_no_sidecar_where_its_budget_does_not_insist(
    value: str, policy: AdmissionPolicy, is_left_out: bool, said: bool
) -> None:
    raw = with_annotations(admitted(half()), {"bursar.dev/sidecar": value})

    after = governed(raw, policy=policy)

    assert ("initContainers" not in after["spec"]) is is_left_out
    only = "only off has one, where the namespace's budget entry does not say sidecar: on"
    expected = (f'bursar.dev/sidecar: "{value}" has no effect: {only}.',) if said else ()
    assert mutated(raw, policy=policy).warnings == expected
    assert operations(after, policy=policy) == []
    assert not validate(review(after), policy).refusal


def test_a_sidecar_goes_again_where_another_webhook_makes_the_pod_share_its_processes() -> None:
    raw = admitted(half(), init=[plain("setup")], volumes=[{"name": "data", "emptyDir": {}}])
    first = governed(raw)
    first["spec"]["shareProcessNamespace"] = True

    again = mutated(first)

    after = patched(first, list(again.operations))
    shared = governed(copy.deepcopy(raw) | {"spec": raw["spec"] | {"shareProcessNamespace": True}})
    assert after["metadata"] == shared["metadata"]
    for field in ("initContainers", "containers", "volumes", "priorityClassName", "schedulerName"):
        assert after["spec"][field] == shared["spec"][field]
    assert again.warnings == (SHARED + CHARGED,)
    assert mutated(after).operations == ()
    # a replica of the release before lets it stay
    assert not validate(review(first), POLICY).refusal


def test_the_sidecar_requests_what_the_settings_say() -> None:
    policy = replace(POLICY, sidecar=replace(SIDECAR, cpu="100m", memory="128Mi"))

    after = governed(admitted(guaranteed("main")), policy=policy)

    amounts = {"cpu": "100m", "memory": "128Mi"}
    assert of_host(sidecar_of(after)["resources"]) == {"limits": amounts, "requests": amounts}


def on(name: str, **amounts: str) -> Json:
    """A container with these amounts, each by its short name."""
    return plain(name, resources={"limits": {_NAMES[short]: amount for short, amount in amounts.items()}})


_NAMES = {
    "gpu": "nvidia.com/gpu",
    "percent": "bursar.dev/gpu-percent",
    "rdma": "rdma/ib",
    "memory": "nvidia.com/gpumem",
    "percentage": "nvidia.com/gpumem-percentage",
    "pages": "hugepages-2Mi",
}
GPU, PERCENT, RDMA, GPU_MEMORY = (_NAMES[short] for short in ("gpu", "percent", "rdma", "memory"))


@pytest.mark.parametrize(
    ("raw", "zeros"),
    [
        (admitted(on("main", gpu="1")), {GPU}),
        (admitted(on("main", gpu="8", rdma="1", pages="2Mi")), {GPU, RDMA}),
        (admitted(on("main", percent="50")), {PERCENT}),
        (admitted(on("main", gpu="1"), on("web", gpu="0")), {GPU}),
        (admitted(on("main", gpu="1"), plain("web")), set()),
        (admitted(on("main", gpu="1", rdma="1"), on("web", rdma="1")), {RDMA}),
        (admitted(on("main", gpu="1"), init=[on("first", gpu="8")]), {GPU}),
        (admitted(on("main", gpu="1"), init=[plain("first")]), set()),
        # beside an amount of a card the number, for without one HAMi's webhook adds a card
        (admitted(on("main", memory="4000")), {GPU, GPU_MEMORY}),
        (admitted(on("main", gpu="1", percentage="25")), {GPU}),
    ],
)
def test_the_sidecar_names_zero_of_the_devices_that_all_others_name(raw: Json, zeros: set[str]) -> None:
    after = governed(raw)

    named = sidecar_of(after)["resources"]
    for field in ("limits", "requests") if zeros else ():
        assert {name: amount for name, amount in named[field].items() if "/" in name} == dict.fromkeys(
            zeros, "0"
        )
    assert named or not zeros
    assert operations(after) == []
    assert not validate(review(after), POLICY).refusal


WINDOWS = {"kubernetes.io/os": "windows"}


@pytest.mark.parametrize(
    ("spec", "is_of_windows"),
    [
        ({"os": {"name": "windows"}}, True),
        ({"nodeSelector": WINDOWS}, True),
        ({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}, True),
        ({"os": {"name": "linux"}, "nodeSelector": WINDOWS}, False),
        ({"nodeSelector": {"kubernetes.io/os": "linux"}}, False),
    ],
)
def test_a_windows_pod_is_governed_without_what_only_linux_has(spec: Json, is_of_windows: bool) -> None:
    raw = admitted(half(), **spec)
    policy = replace(POLICY, runtime_class="nvidia", mps_pipes="/tmp/nvidia-mps")

    after = governed(raw, policy=policy)

    assert ("volumes" in after["spec"], "initContainers" in after["spec"]) == (not is_of_windows,) * 2
    assert ("runtimeClassName" in after["spec"]) is not is_of_windows
    assert ("CUDA_MPS_PIPE_DIRECTORY" in env(after["spec"]["containers"][0])) is not is_of_windows
    assert after["metadata"]["labels"] == {"bursar.dev/governed": "true"}
    assert after["metadata"]["annotations"]["bursar.dev/standing"] == "IN_BUDGET"
    assert operations(after, policy=policy) == []
    assert not validate(review(after), policy).refusal


def test_the_sidecar_of_a_pod_that_runs_as_root_has_its_own_user_whatever_the_setting_says() -> None:
    """With the pod's the kubelet would not start it, and so not the pod."""
    policy = replace(POLICY, sidecar=replace(SIDECAR, has_own_user=False))

    after = governed(admitted(half(), securityContext={"runAsUser": 0}), policy=policy)

    assert sidecar_of(after)["securityContext"]["runAsUser"] == 65532
    assert operations(after, policy=policy) == []


def test_user_and_group_are_left_to_the_cluster_where_the_setting_says_so() -> None:
    policy = replace(POLICY, sidecar=replace(SIDECAR, has_own_user=False))

    after = governed(admitted(half(), securityContext={"runAsUser": 1000}), policy=policy)

    context = sidecar_of(after)["securityContext"]
    assert context.keys().isdisjoint({"runAsUser", "runAsGroup"})
    assert context["runAsNonRoot"] is True  # so the kubelet starts no sidecar as an image's root
    for other in (POLICY, policy):  # replicas of two settings judge each other's pods
        assert not validate(review(after), other).refusal


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


@pytest.mark.parametrize("now", [POLICY, WITHOUT_SIDECAR], ids=["on", "off"])
def test_a_sidecar_that_is_there_stays_where_it_is_whatever_the_setting_has_become(
    now: AdmissionPolicy,
) -> None:
    before = governed(admitted(half(), restartPolicy="Never"))

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


PRIVATE = replace(POLICY, sidecar=replace(SIDECAR, pull_secret="bursar-pull"))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, ["bursar-pull"]),
        ([], ["bursar-pull"]),
        (["registry"], ["registry", "bursar-pull"]),
        (["bursar-pull", "registry"], ["bursar-pull", "registry"]),
    ],
)
def test_the_secret_of_the_sidecars_registry_is_added_once_to_the_pods_own(
    own: list[str] | None, expected: list[str]
) -> None:
    fields = {} if own is None else {"imagePullSecrets": [{"name": name} for name in own]}

    after = governed(admitted(half(), **fields), policy=PRIVATE)

    assert [secret["name"] for secret in after["spec"]["imagePullSecrets"]] == expected
    assert operations(after, policy=PRIVATE) == []
    for replica in (PRIVATE, POLICY, WITHOUT_SIDECAR):
        assert not validate(review(after), replica).refusal
    before = governed(admitted(half(), **fields))  # by a replica without the setting
    assert not validate(review(before), PRIVATE).refusal
    again = governed(before, policy=PRIVATE)["spec"]["imagePullSecrets"]
    assert [secret["name"] for secret in again] == expected


def test_a_pod_without_a_sidecar_gets_no_secret_for_it() -> None:
    off = {"annotations": {"bursar.dev/sidecar": "off"}}
    alone = admitted(half())
    alone["metadata"] = {**alone["metadata"], **off}

    for after in (governed(admitted(half()), policy=WITHOUT_SIDECAR), governed(alone, policy=PRIVATE)):
        assert "imagePullSecrets" not in after["spec"]


def test_where_pods_wait_for_their_sidecars_new_ones_get_none_and_are_told() -> None:
    policy = replace(PRIVATE, waits_for_sidecar=True)

    for now in (policy, replace(policy, requires_sidecar=True)):
        answer = mutated(admitted(half()), policy=now)

        assert "initContainers" not in patched(admitted(half()), list(answer.operations))["spec"]
        said = "pods of this namespace wait for their sidecar to start, so the pod gets no sidecar"
        assert any(warning.startswith(said) for warning in answer.warnings)
    assert not validate(review(governed(admitted(half()))), policy).refusal  # it was made a moment before


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("ours", "image", "allowed"),
    [
        ("r:5000/b/sidecar:1", f"r:5000/b/sidecar:1@{DIGEST}", True),  # Kyverno, policy-controller
        ("r:5000/b/sidecar:1", f"r:5000/b/sidecar@{DIGEST}", True),  # Connaisseur
        ("sidecar:1", f"sidecar@{DIGEST}", True),
        (f"r/sidecar:1@{DIGEST}", f"r/sidecar@{DIGEST}", True),
        (f"r/sidecar:1@{DIGEST}", f"r/sidecar@{DIGEST[:-1]}0", False),  # pinned by its administrator
        ("r/sidecar:1", f"r/sidecar:2@{DIGEST}", False),
        ("r/sidecar:1", f"r/sidecar-of-mine@{DIGEST}", False),
        ("r/sidecar:1", f"other/sidecar@{DIGEST}", False),
        ("r:5000/sidecar:1", f"r@{DIGEST}", False),
        ("r/sidecar:1", f"r/sidecar@{DIGEST}x", False),
        ("r/sidecar:1", "r/sidecar@sha256:00", False),
        ("r/sidecar:1", f"r/sidecar:1@{DIGEST}@{DIGEST}", False),
        ("r/sidecar:1", "r/sidecar", False),
    ],
)
def test_a_digest_in_place_of_our_tag_is_our_image(ours: str, image: str, allowed: bool) -> None:
    """A webhook called after ours writes it, and the API server calls ours again."""
    policy = replace(POLICY, sidecar_images=SidecarImages(ours))
    raw = governed(admitted(half()))
    sidecar_of(raw)["image"] = image

    assert [violation.rule for violation in violations_of(raw, policy)] == (
        [] if allowed else ["sidecar-name"]
    )
    if allowed:
        assert sidecar_of(governed(raw, policy=policy))["image"] == image


def of_another_release(**fields: Any) -> Json:
    """A governed pod as release 0.1.0 left it, with the mount that the API server added to its sidecar."""
    pod = governed(admitted(half(), **fields))
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


def test_a_sidecar_of_another_release_is_taken_for_ours_and_gets_its_settings() -> None:
    before = of_another_release()

    after = governed(before)

    assert violations_of(before, POLICY) == violations_of(after, POLICY) == ()
    assert operations(after) == []
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


NOT_OURS: dict[str, Json] = {
    "another command": {"command": ["sh"]},
    "arguments": {"args": ["--spool=/tmp"]},
    "no token": {"volumeMounts": [{"name": "bursar-spool", "mountPath": "/spool"}]},
    "no spool": {"volumeMounts": [{"name": "bursar-token", "mountPath": "/token"}]},
    "a policy of the other place": {"restartPolicy": "OnFailure"},
}


@pytest.mark.parametrize("case", NOT_OURS)
def test_a_container_that_only_has_the_sidecars_name_is_refused(case: str) -> None:
    pod = governed(admitted(half()))
    sidecar_of(pod).update(NOT_OURS[case])

    assert [each.rule for each in violations_of(pod, POLICY)] == ["sidecar-name"]


def test_a_sidecar_among_the_plain_containers_is_none() -> None:
    pod = governed(admitted(half()))
    pod["spec"]["containers"].append(pod["spec"].pop("initContainers")[0])

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
