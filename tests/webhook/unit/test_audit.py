"""``python -m webhook audit``: what runs already, by today's rules."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.webhook.cases import SUSPECT, WAYS, Way
from tests.webhook.rule_examples import PODS
from tests.webhook.unit.test_templates import BAD, workload
from tests.webhook.worlds import OBSERVING, POLICY, admitted, governed, half, plain
from tests.worlds import Json, limits_of
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.admission.rules.catalogue import CATALOGUE
from timekeeper.core.names import Mode
from timekeeper.core.request.claims import known_by
from timekeeper.core.request.device_classes import ClassParameters, DeviceClass
from webhook.admission.workloads import BUILT_IN, of_kind
from webhook.audit.findings import ENFORCED, Metering, as_written, is_governed, of_node, of_pod, of_workload


def running(raw: Json, node: str = "n1", phase: str = "Running") -> Json:
    """The pod after a scheduler has bound it."""
    stored = copy.deepcopy(raw)
    stored["spec"]["nodeName"] = node
    stored["status"] = {"phase": phase}
    return stored


def bound(raw: Json) -> Json:
    """A governed pod after our Binding."""
    stored = running(raw)
    stored["metadata"]["annotations"] |= {
        "bursar.dev/devices": '{"containers":{"main":[]},"version":1}',
        "visible-devices.bursar.dev/main": "GPU-1",
        "visible-devices.bursar.dev/bursar-sidecar": "GPU-1",
        "mps-memory.bursar.dev/main": "0=8000M",
        "mps-threads.bursar.dev/main": "50",
        "tencent.com/predicate-time": "1",
    }
    return stored


METERING = replace(POLICY, unknown_accelerators="meter")
CLASSES = ClassParameters(no_gpu=("rdma.example.com",), refused=("acme.com/card",))


def words(
    pod: Json, policy: AdmissionPolicy = POLICY, metering: Metering = ENFORCED
) -> list[tuple[str, list[str]]]:
    """The findings on a pod, each with its rules."""
    found = of_pod(pod, policy, CLASSES, metering)
    return [(finding.finding, [violation.rule for violation in finding.violations]) for finding in found]


@pytest.mark.parametrize(
    "policy",
    [POLICY, replace(POLICY, mps_pipes="/tmp/nvidia-mps")],
    ids=["with a sidecar", "limited by MPS"],
)
@pytest.mark.parametrize(
    "raw",
    [
        admitted(half()),
        admitted(half(), plain(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        admitted(half("a"), half("b"), initContainers=[plain("setup")]),
        admitted(limits_of("main", nvidia_com__gpu="1")),
        admitted(limits_of("main", tencent_com__vcuda_core="50", tencent_com__vcuda_memory="32")),
    ],
    ids=["half", "with an image's variable", "two", "whole", "tencent"],
)
def test_a_governed_pod_that_runs_is_no_finding(raw: Json, policy: AdmissionPolicy) -> None:
    assert is_governed(bound(governed(raw, policy=policy)))
    assert words(bound(governed(raw, policy=policy)), policy) == []
    assert words(governed(raw, policy=policy), policy) == []


REMOVED = {"forged-annotation", "forged-gate", "forged-label"}  # from a new pod, with a warning


@pytest.mark.parametrize("rule", sorted(set(PODS) - {"node-name"}))
def test_each_rule_that_a_running_pod_breaks_is_found(rule: str) -> None:
    default = CATALOGUE[rule].default
    finding = {"enforce": "would-be-refused", "warn": "would-be-warned"}.get(default)
    finding = "would-be-warned" if rule in REMOVED else finding
    found = dict(words(running(PODS[rule])))

    if finding is None:
        assert rule not in [each for all_ in found.values() for each in all_]
    else:
        assert rule in found[finding]


def test_a_pod_is_not_blamed_for_the_node_that_a_scheduler_gave_it() -> None:
    assert words(running(admitted(half()))) == [("ungoverned", [])]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_no_finding(phase: str) -> None:
    assert words(running(PODS["share-range"], phase=phase)) == []


def test_a_pod_that_holds_gpus_of_any_dialect_ungoverned_is_found() -> None:
    assert words(running(admitted(half()))) == [("ungoverned", [])]
    assert words(running(admitted(limits_of("main", amd_com__gpu="3")))) == [
        ("would-be-refused", ["dialect-not-spoken"]),
        ("ungoverned", []),
        ("accelerators", ["unknown-accelerators"]),
    ]
    by_label = admitted(plain())
    by_label["metadata"]["labels"] = {"genius/gpu-number": "1"}
    assert words(running(by_label)) == [("ungoverned", [])]
    assert words(admitted(half())) == [], "it waits, and holds none"
    assert words(running(admitted(plain()))) == []


AMD = limits_of("main", amd_com__gpu="3")


@pytest.mark.parametrize("mode", ["meter", "observe"])
def test_a_pod_that_is_metered_is_no_ungoverned_one(mode: Mode) -> None:
    metering = Metering(mode)
    for raw in (admitted(half()), PODS["share-range"], admitted(limits_of("main", nvidia_com__gpu="1"))):
        assert "ungoverned" not in dict(words(running(raw), metering=metering))
    found = of_pod(running(admitted(AMD)), POLICY, CLASSES, metering)
    assert [finding.finding for finding in found] == ["would-be-refused", "accelerators"]
    assert "the pod is charged for each as a whole device" in found[1].violations[0].problem
    assert words(running(admitted(plain())), metering=metering) == []


@pytest.mark.parametrize(
    ("raw", "is_charged"), [(admitted(half()), True), (PODS["share-range"], False), (admitted(AMD), False)]
)
def test_an_ungoverned_pod_is_charged_if_its_request_can_be_read(raw: Json, is_charged: bool) -> None:
    found = {finding.finding: finding for finding in of_pod(running(raw), POLICY)}

    assert found["ungoverned"].is_charged is is_charged


@pytest.mark.parametrize(
    ("resource", "finding"),
    [
        ("rdma/hca", "unclassified"),
        ("devices.kubevirt.io/kvm", "unclassified"),
        ("smarter-devices/fuse", "unclassified"),
        ("qat.intel.com/generic", "unclassified"),
        ("nvidia.com/hostdev", "unclassified"),
        ("example.com/npu", "unclassified"),
        ("vke.volcengine.com/eni-ip", "unclassified"),
        ("vke.volcengine.com/mgpu-core", "accelerators"),
        ("nvidia.com/gpu-10gb", "accelerators"),
        ("hygon.com/dcumem", ""),
        ("cpu", ""),
        ("hugepages-2Mi", ""),
        ("nvidia.com/gpu", ""),
        ("none.example.com/nic", ""),
        ("named.example.com/npu", "accelerators"),
        ("nvidia.com/a100", "accelerators"),
    ],
)
def test_what_nothing_classifies_is_found_on_nodes_and_pods_until_a_setting_does(
    resource: str, finding: str
) -> None:
    policy = replace(POLICY, devices={"none.example.com/nic": False, "named.example.com/npu": True})
    pod = running(admitted(plain(resources={"limits": {resource: "1"}})))
    node = {"metadata": {"name": "n"}, "status": {"capacity": {resource: "1", "rdma/none": "0"}}}

    on_node = [(there.finding, there.kind) for there in of_node(node, policy)]
    on_pod = [there.finding for there in of_pod(pod, policy, CLASSES)]

    assert on_node == ([(finding, "Node")] if finding else [])
    assert [word for word in on_pod if word in ("accelerators", "unclassified")] == [finding][: bool(finding)]


@pytest.mark.parametrize(
    ("setting", "of_the_pod", "of_the_node"),
    [
        ("refuse", "is not charged, and a new one is refused", "pods that request it are refused"),
        ("meter", "is from before unknownAccelerators: meter, and is not charged", "charged for whole"),
        ("pass", "the pod is not charged", "are admitted and not charged"),
    ],
)
def test_pods_and_nodes_with_accelerators_of_no_dialect_are_found_whatever_the_setting_is(
    setting: Any, of_the_pod: str, of_the_node: str
) -> None:
    policy = replace(POLICY, unknown_accelerators=setting)
    raw = admitted(limits_of("main", google_com__tpu="4"))

    *_, found = of_pod(running(raw), policy, CLASSES)
    (there,) = of_node({"metadata": {"name": "t1"}, "status": {"capacity": {"google.com/tpu": "4"}}}, policy)

    assert (found.finding, found.name, found.node) == ("accelerators", "p", "n1")
    assert of_the_pod in found.violations[0].sentence()
    assert (there.finding, there.kind, there.name) == ("accelerators", "Node", "t1")
    assert of_the_node in there.violations[0].sentence()
    assert (
        of_node({"metadata": {"name": "t1"}, "status": {"capacity": {"google.com/tpu": "0"}}}, policy) == ()
    )
    paid = running(governed(raw, policy=METERING))
    *_, found = of_pod(paid, policy, CLASSES)
    assert "is charged for each as a whole device" in found.violations[0].sentence()
    assert is_governed(paid)


@pytest.mark.parametrize("way", WAYS)
def test_a_pod_that_goes_around_every_request_is_found_and_its_nearest_is_not(way: str) -> None:
    assert words(running(WAYS[way].bad), OBSERVING) == [("would-be-refused", [WAYS[way].rule])]
    assert [word for word, _ in words(running(WAYS[way].good)) if word != "unclassified"] == []


@pytest.mark.parametrize("way", SUSPECT)
def test_a_running_pod_that_a_policy_warns_of_is_listed_and_its_nearest_is_not(way: str) -> None:
    assert words(running(SUSPECT[way].bad), OBSERVING) == [("would-be-warned", [SUSPECT[way].rule])]
    assert words(running(SUSPECT[way].good)) == []


def test_a_pod_that_requests_cards_meets_the_rules_and_not_the_policies() -> None:
    stored = bound(governed(admitted(half(), runtimeClassName="nvidia", hostPID=True)))

    assert words(stored) == [("would-be-refused", ["host-pid"])]


def test_a_resource_that_a_device_class_serves_is_found_beside_a_request_too() -> None:
    both = half()
    both["resources"]["limits"]["acme.com/card"] = "8"

    assert words(bound(governed(admitted(both))), OBSERVING) == [("would-be-refused", ["device-claim"])]


def test_a_pod_that_only_looks_governed_is_found() -> None:
    forged = running(admitted(half()))
    forged["metadata"]["labels"] = {"bursar.dev/governed": "true"}
    forged["metadata"]["annotations"] = {"bursar.dev/request": "{}"}

    assert words(forged) == [("would-be-warned", ["forged-annotation"]), ("ungoverned", [])]


def test_while_observing_what_would_be_refused_is_called_so() -> None:
    assert words(running(PODS["share-range"]), OBSERVING)[0] == ("would-be-refused", ["share-range"])


def test_a_rules_mode_decides_what_is_reported() -> None:
    slow = bound(governed(admitted(half(), terminationGracePeriodSeconds=7200)))

    assert words(slow) == [("would-be-refused", ["grace-period"])]
    assert words(slow, replace(POLICY, rules={"grace-period": "warn"})) == [
        ("would-be-warned", ["grace-period"])
    ]
    assert words(slow, replace(POLICY, rules={"grace-period": "off"})) == []


def test_what_was_written_is_what_a_user_wrote() -> None:
    raw = admitted(half(env=[{"name": "A", "value": "b"}]), volumes=[{"name": "v", "emptyDir": {}}])

    written = as_written(bound(governed(raw)))

    assert written["metadata"]["annotations"] == {}
    assert written["metadata"]["labels"] == {}
    assert "nodeName" not in written["spec"]
    assert [each["name"] for each in written["spec"]["volumes"]] == ["v"]
    assert written["spec"]["initContainers"] == []


def test_what_the_binding_wrote_for_a_plugin_of_the_runtime_is_no_finding_and_all_else_is() -> None:
    stored = bound(governed(admitted(half())))
    part = {"uuid": "GPU-0", "index": 0, "share_milli": 500, "memory_mib": 8000}
    stored["metadata"]["annotations"] |= {
        "bursar.dev/devices": json.dumps({"version": 1, "containers": {"main": [part]}}),
        "nvidia.com/container.main.gpus.devices": "GPU-0",
        "nvidia.com/container.main.gpu-memory.limit": "8000Mi",
        "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-0",
    }
    assert words(stored) == []

    stored["metadata"]["annotations"]["nvidia.com/container.main.gpu-memory.limit"] = "16000Mi"
    assert words(stored) == [("would-be-refused", ["device-annotation"])]

    del stored["spec"]["nodeName"]
    assert words(stored)[0][1].count("device-annotation") == 3


def test_what_the_binder_of_kai_wrote_for_the_runtime_is_no_finding_on_its_own_pods_alone() -> None:
    written = {"nvidia.com/container.main.gpus.devices": "GPU-0", "gpu-fraction": "0.5"}
    stored = bound(governed(admitted(plain(), annotations=written, schedulerName="kai-scheduler")))
    assert not [rules for _, rules in words(stored) if "device-annotation" in rules]

    stored["spec"]["schedulerName"] = "default-scheduler"
    assert [rules for _, rules in words(stored) if "device-annotation" in rules]


def test_an_ephemeral_container_that_shows_itself_cards_is_found() -> None:
    stored = bound(governed(admitted(half())))
    stored["spec"]["ephemeralContainers"] = [
        {"name": "debug", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    ]

    assert words(stored) == [("would-be-refused", ["ephemeral-sees-cards"])]


def stored_workload(kind: str, **fields: Any) -> Json:
    """A broken workload as the API server has it."""
    found = workload(kind, BAD)
    found["metadata"] |= {"namespace": "team-a"} | fields.pop("metadata", {})
    return found | fields


def of_stored(raw: Json, policy: AdmissionPolicy = POLICY) -> list[tuple[str, list[str]]]:
    """The findings on a workload, each with its paths."""
    paths = of_kind(raw["apiVersion"].rpartition("/")[0], raw["kind"], BUILT_IN)
    judged = {(path.group, path.kind) for path in BUILT_IN}
    found = of_workload(raw, raw["kind"], paths, policy, CLASSES, judged)
    return [(each.finding, [one.path for one in each.violations]) for each in found]


def test_the_template_of_a_workload_is_found_unless_another_made_it_or_it_has_ended() -> None:
    by_cron_job = {"controller": True, "apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly"}
    by_operator = {"controller": True, "apiVersion": "example.com/v1", "kind": "Stack", "name": "net"}
    complete = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
    path = "spec.template.spec.containers[0].resources.limits[bursar.dev/gpu-percent]"

    assert of_stored(stored_workload("Job")) == [("would-be-refused", [path])]
    assert of_stored(stored_workload("Job", metadata={"ownerReferences": [by_cron_job]})) == []
    by_other = stored_workload("Job", metadata={"ownerReferences": [by_operator]})
    assert of_stored(by_other) == [("would-be-refused", [path])], "no object of that kind is judged"
    assert of_stored(stored_workload("Job", **complete)) == []


METERED = replace(POLICY, mode="meter")


@pytest.mark.parametrize(
    ("kind", "policy"), [("DaemonSet", POLICY), ("CronJob", METERED), ("Deployment", OBSERVING)]
)
@pytest.mark.parametrize(
    ("way", "word"),
    [(way, "would-be-refused") for way in WAYS.values()]
    + [(way, "would-be-warned") for way in SUSPECT.values()],
    ids=[*WAYS, *SUSPECT],
)
def test_what_the_policies_would_do_to_the_next_pods_of_a_workload_is_found_in_every_mode(
    way: Way, word: str, kind: str, policy: AdmissionPolicy
) -> None:
    at = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"

    def stored(pod: Json) -> Json:
        made = workload(kind, {"metadata": pod["metadata"], "spec": pod["spec"]})
        made["metadata"]["namespace"] = "team-a"
        return made

    ((finding, (path, *_)),) = of_stored(stored(way.bad), policy)

    assert finding == word
    assert path.startswith(f"{at}.")
    assert of_stored(stored(way.good), policy) == []


def test_the_mirror_of_a_static_pod_is_found_by_no_policy() -> None:
    mark = {"kubernetes.io/config.mirror": "0"}
    with_a_card = admitted(limits_of("main", nvidia_com__gpu="100"), nodeName="n1", annotations=mark)

    assert words(running(admitted(plain(), hostPID=True, annotations=mark))) == []
    assert words(running(with_a_card)) == [("ungoverned", [])]


def test_a_claim_that_is_too_large_is_found_in_a_pod_and_in_a_template() -> None:
    classes = [DeviceClass("gpu.nvidia.com", "gpu.nvidia.com")]
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
    spec = {"devices": {"requests": [{"name": "all", "exactly": exactly}]}}
    metadata = {"name": "all", "namespace": "team-a"}
    template = {"kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": spec}}
    policy = replace(POLICY, claims=known_by([template], "", {}, classes))
    asking = {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "all"}]}
    job = workload("Job", {"spec": {"containers": [plain()], **asking}})
    job["metadata"]["namespace"] = "team-a"

    assert ("would-be-refused", ["claim-size"]) in words(admitted(plain(), **asking), policy)
    assert of_stored(job, policy) == [("would-be-refused", ["spec.template.spec.resourceClaims[0].resource"
                                                            "ClaimTemplateName"])]  # fmt: skip


# against an API server that behaves badly


# on a real API server
