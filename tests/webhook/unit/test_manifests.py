"""The admission manifests against the code: expressions, routes, rules, who is left out."""

import copy
import json
import re
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

from deploy import generated
from tests.deploy.reading import loaded
from tests.webhook.cases import WAYS
from tests.webhook.worlds import GOVERNED_NAMESPACES, POLICY, half, violations_of
from tests.worlds import Json
from timekeeper.core import accelerators
from timekeeper.core.admission.rules import denylist
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.dialects import DIALECTS, GPU_RESOURCE
from timekeeper.core.names import GANG_ANNOTATIONS, GOVERNED, NAMESPACE, USER_ANNOTATIONS
from timekeeper.core.request.device_classes import CONFIG_MAP, NO_CLASSES
from timekeeper.settler.mode_parameters import DEFAULT
from timekeeper.settler.spent_parameters import CONFIG_MAP as SPENT_PARAMETERS
from webhook.admission import cel
from webhook.settings.certificates import CONFIGURATION
from webhook.settings.serve import read

MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"


def documents(name: str) -> list[Json]:
    """The documents of a manifest."""
    return loaded((MANIFESTS / f"{name}.yaml").read_text())


def webhooks() -> dict[str, Json]:
    """The webhook for pods of each configuration, by kind."""
    found = {}
    for document in documents("webhook-configurations"):
        assert document["metadata"]["name"] == CONFIGURATION
        (found[document["kind"]],) = (
            each for each in document["webhooks"] if each["name"] in ("govern.bursar.dev", "check.bursar.dev")
        )
    return found


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_only_gpu_pods_come_and_no_system_namespace(kind: str) -> None:
    webhook = webhooks()[kind]

    assert webhook["matchConditions"] == [{"name": "gpu-pods", "expression": cel.gpu_pods()}]
    assert webhook["namespaceSelector"] == GOVERNED_NAMESPACES
    assert (
        webhook["failurePolicy"],
        webhook["sideEffects"],
        webhook["matchPolicy"],
        webhook["timeoutSeconds"],
    ) == (
        "Fail",
        "None",
        "Equivalent",
        5,
    )


def test_neither_updates_nor_deletions_of_pods_wait_for_us() -> None:
    found = webhooks()

    def rules(webhook: Json) -> list[tuple[list[str], list[str]]]:
        return [(rule["operations"], rule["resources"]) for rule in webhook["rules"]]

    assert rules(found["MutatingWebhookConfiguration"]) == [
        (["CREATE"], ["pods"]),
        (["UPDATE"], ["pods/ephemeralcontainers"]),
    ]
    assert rules(found["ValidatingWebhookConfiguration"]) == [
        (["CREATE"], ["pods"]),
        (["UPDATE"], ["pods/ephemeralcontainers"]),
    ]
    assert found["MutatingWebhookConfiguration"]["reinvocationPolicy"] == "IfNeeded"


def test_the_routes_are_ours_and_the_ca_is_left_to_the_certificate_process() -> None:
    for kind, path in (
        ("MutatingWebhookConfiguration", "/mutate"),
        ("ValidatingWebhookConfiguration", "/validate"),
    ):
        assert webhooks()[kind]["clientConfig"] == {
            "service": {"namespace": NAMESPACE, "name": "bursar-webhook", "port": 443, "path": path}
        }


def test_every_resource_of_every_dialect_brings_a_pod_to_us() -> None:
    for dialect in DIALECTS:
        for resource in dialect.resources:
            assert re.search(GPU_RESOURCE, resource), resource
    assert cel.gpu_pods().count(f"r'{GPU_RESOURCE}'") == 2


def policy() -> Json:
    """The policy's spec."""
    (found,) = (
        each for each in documents("admission-policies") if each["kind"] == "ValidatingAdmissionPolicy"
    )
    spec: Json = found["spec"]
    return spec


def test_what_no_one_may_change_afterwards_follows_from_the_dialects() -> None:
    found = {each["name"]: each["expression"] for each in policy()["variables"]}

    assert found["annotations"].count(f"filter(k, {cel.immutable_annotations()}") == 2
    assert f"{cel.plugin_annotations()}\n" in found["assigned"]
    assert f"{cel.erased_annotations()}\n" in found["allocating"]
    assert found["labels"].count(f"filter(k, {cel.immutable_labels()}") == 2
    assert f"filter(g, {cel.immutable_labels('g.name')})" in found["gates"]


def meets(name: str, condition: str) -> bool:
    """Whether a name meets a condition on ``k``."""
    starts, whole = (re.findall(rf"{how}'(.*?)'", condition) for how in (r"k\.startsWith\(", "k == "))
    assert len(starts) + len(whole) == condition.count("||") + 1
    return name.startswith(tuple(starts)) or name in whole


@pytest.mark.parametrize(
    ("name", "immutable"),
    [
        ("bursar.dev/request", True),
        ("bursar.dev/anything-later", True),
        ("visible-devices.bursar.dev/main", True),
        ("mps-memory.bursar.dev/main", True),
        ("mps-threads.bursar.dev/main", True),
        ("tencent.com/predicate-gpu-idx-0", True),
        ("tencent.com/vcuda-core-limit", True),
        ("tencent.com/gpu-assigned", True),
        ("ALIYUN_COM_GPU_MEM_IDX", True),
        ("nano-gpu/container-main", True),
        ("nano-gpu/assume", True),
        ("nano-gpu.io/gpu-main", True),
        ("elasticgpu.io/container-main", True),
        ("hami.io/vgpu-devices-to-allocate", True),
        ("hami.io/bind-phase", True),
        ("hami.io/gpu-scheduler-policy", False),
        ("KubeDevice/DeviceInfo", True),
        ("pod.alpha/DeviceInformation", True),
        ("tencent.com/vcuda-core-limit-soft", False),
        ("local.bursar.dev/run-for", False),
        ("notbursar.dev/x", False),
        ("cdi.k8s.io/anything", True),
        ("cdi.k8s.io", True),
        ("nvidia.cdi.k8s.io/container.main", True),
        ("devices.nri.io", True),
        ("nvidia.com/container.main.gpus.devices", True),
        ("kai.scheduler/container.main.gpu-memory.portion.limit", True),
        ("gpu-memory.limit", True),
        ("nvidia.com/containers", False),
        ("cdi-devices.noderesource.dev/pod", True),
        ("devices.nri.io.example.com/main", False),
        ("example.com/cdi.k8s.io", False),
        ("example.com/bursar.dev/", False),
        *((name, True) for name in (*USER_ANNOTATIONS, *GANG_ANNOTATIONS)),
    ],
)
def test_these_annotations_are_immutable_and_those_are_not(name: str, immutable: bool) -> None:
    assert meets(name, cel.immutable_annotations()) is immutable


def test_the_policy_looks_at_every_way_to_update_a_pod_and_is_bound() -> None:
    assert policy()["failurePolicy"] == "Fail"
    (rule,) = policy()["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["UPDATE"]
    assert rule["resources"] == ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
    (binding,) = (
        each for each in documents("admission-policies") if each["kind"] == "ValidatingAdmissionPolicyBinding"
    )
    assert binding["spec"] == {"policyName": "bursar-written-once", "validationActions": ["Deny"]}


POLICIES = {
    each["metadata"]["name"]: each["spec"]
    for file in sorted(MANIFESTS.glob("admission-*.yaml"))
    for each in documents(file.stem)
    if each["kind"] == "ValidatingAdmissionPolicy"
}
WARNING = {"bursar-privileged", "bursar-node-access"}
EVERYWHERE = {
    *("bursar-exemptions", "bursar-holds", "bursar-releases", "bursar-notices", "bursar-growth"),
    *("bursar-sidecar", "bursar-grace", "bursar-eviction-grace", "bursar-placed-by-others"),
    *("bursar-kept-devices", "bursar-mode-labels"),
}
# what they find is refused, or only warned about, by the mode of the namespace
BY_MODE = {
    *("bursar-anti-affinity", "bursar-node-access", "bursar-overhead", "bursar-privileged"),
    *("bursar-sizes", "bursar-ways-around"),
    *("bursar-claim-finalizers", "bursar-claim-tolerations", "bursar-group-claims"),
}
BY_RULE = {"bursar-resizes"}  # the same, by the mode of its rule too
OF_CLASSES = {"bursar-device-class-limits"}
# also in the namespaces of the system; in exempt ones schedulers of other systems write the same annotations
BUT_EXEMPT = {
    *("bursar-written-once", "bursar-bindings", "bursar-claim-finalizers", "bursar-claim-tolerations"),
}


def variable(policy: str, name: str) -> str:
    """The expression of one of a policy's variables."""
    (found,) = (each["expression"] for each in POLICIES[policy]["variables"] if each["name"] == name)
    return str(found)


def words(policy: str, name: str) -> tuple[str, ...]:
    """The words of a variable that is a list of them."""
    return tuple(re.findall(r"'(.*?)'", variable(policy, name)))


def test_every_policy_is_bound_and_refuses_but_the_one_that_only_warns() -> None:
    bindings = {
        each["metadata"]["name"]: each["spec"]
        for file in sorted(MANIFESTS.glob("admission-*.yaml"))
        for each in documents(file.stem)
        if each["kind"] == "ValidatingAdmissionPolicyBinding"
    }

    assert bindings["bursar-device-class-limits"].pop("paramRef") == {
        "name": CONFIG_MAP,
        "namespace": NAMESPACE,
        "parameterNotFoundAction": "Allow",  # Deny would refuse every pod
    }
    assert bindings["bursar-claim-allocations"].pop("paramRef") == {
        "name": SPENT_PARAMETERS,
        "namespace": NAMESPACE,
        "parameterNotFoundAction": "Allow",  # Deny would refuse every allocation
    }
    governed = [{"key": GOVERNED, "operator": "Exists"}]
    params = {"selector": {"matchExpressions": governed}, "parameterNotFoundAction": "Allow"}
    assert bindings.get("bursar-eviction-grace", {}).pop("paramRef", None) == params
    for name in BY_MODE | BY_RULE:
        for binding, parameters in ((name, "bursar-modes"), (f"{name}-observed", "bursar-modes-observed")):
            assert bindings[binding].pop("paramRef") == {
                "name": parameters,
                "namespace": NAMESPACE,
                "parameterNotFoundAction": "Allow",  # Deny would refuse pods while Helm uninstalls
            }
    refusing = {
        name: {
            "policyName": name,
            "validationActions": ["Warn", "Audit"] if name in WARNING else ["Deny"],
        }
        for name in POLICIES
    }
    warning = {
        f"{name}-observed": {"policyName": name, "validationActions": ["Warn", "Audit"]}
        for name in BY_MODE | BY_RULE
    }
    assert bindings == refusing | warning
    assert {each["failurePolicy"] for each in POLICIES.values()} == {"Fail"}
    assert {each["matchConstraints"]["matchPolicy"] for each in POLICIES.values()} == {"Equivalent"}


def test_policies_leave_out_the_same_namespaces_as_the_webhooks_but_those_that_guard_our_own_marks() -> None:
    selectors = {name: each["matchConstraints"].get("namespaceSelector") for name, each in POLICIES.items()}

    not_exempt = {"matchExpressions": [{"key": cel.EXEMPT, "operator": "NotIn", "values": ["true"]}]}
    everywhere = dict.fromkeys(EVERYWHERE) | dict.fromkeys(BUT_EXEMPT, not_exempt)
    ours = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE]}
    everywhere |= {"bursar-protections": {"matchExpressions": [ours]}}
    assert selectors == dict.fromkeys(POLICIES, GOVERNED_NAMESPACES) | everywhere


def test_the_longest_grace_period_is_the_default_of_the_budgets() -> None:
    seconds = BudgetSettings().max_grace_period_ms // 1000

    for name in ("bursar-grace", "bursar-eviction-grace"):
        assert (POLICIES[name]["variables"][0]["name"], variable(name, "longest")) == (
            "longest",
            str(seconds),
        )


def test_the_mode_of_the_namespace_is_the_first_condition_of_what_a_pod_may_be() -> None:
    cluster = "params.?data['_default'].orValue(params.?data['_initial'].orValue('enforce'))"
    mode = f"params.?data[request.namespace].orValue({cluster})"
    first = {
        name: (each.get("matchConditions") or [{}])[0].get("expression") for name, each in POLICIES.items()
    }

    by_mode = {name for name, expression in first.items() if expression and mode in expression}
    assert by_mode == BY_MODE | OF_CLASSES
    for name in by_mode:
        judged = "params.?data['_judged'].orValue('enforce')" if name in BY_MODE else "'enforce'"
        assert str(first[name]).split() == f"{mode} == {judged}".split()


_LOOP = re.compile(r"\.(?:exists|exists_one|all|filter|map)\(")
# What bounds these is not a condition of ours: the API server itself takes at most 32 requests of a claim.
_BOUNDED_BY_KUBERNETES = {
    *("bursar-claim-allocations", "bursar-claim-finalizers", "bursar-claim-tolerations"),
}
# It searches an overhead alone, which is as long as an administrator has made it in a RuntimeClass.
_BOUNDED_BY_ADMINISTRATORS = {"bursar-overhead"}
# It takes at most 1000 terms, and searches nothing else.
_BOUNDED_ITSELF = {"bursar-anti-affinity"}


def test_a_match_condition_that_searches_a_pod_checks_its_size_first() -> None:
    """The API server evaluates all match conditions of a policy, so each must begin with the sizes."""
    for name in POLICIES.keys() - _BOUNDED_BY_KUBERNETES:
        for condition in POLICIES[name].get("matchConditions", []):
            text = condition["expression"]
            if _LOOP.search(text):
                sizes = "size(object.status.?conditions.orValue([])) > 1000\n||"
                assert text.startswith((f"{cel.small()}&& (", sizes)), (name, condition["name"])
    for webhook in webhooks().values():
        before = webhook["matchConditions"][0]["expression"].partition("!(\n")[0]
        assert not _LOOP.search(before)
        assert f"  || !(\n{indent(cel.small(), '    ')}  )\n" in webhook["matchConditions"][0]["expression"]


def test_a_policy_on_new_pods_that_searches_them_has_such_a_condition() -> None:
    """`bursar-sizes` refuses what the others leave out."""
    for name in POLICIES.keys() - _BOUNDED_BY_ADMINISTRATORS - _BOUNDED_ITSELF:
        spec = POLICIES[name]
        (first, *_) = spec["matchConstraints"]["resourceRules"]
        if (first["operations"], first["resources"]) == (["CREATE"], ["pods"]):
            conditions = [*spec.get("matchConditions", ()), *spec["validations"]]
            assert any(each["expression"].startswith(cel.small()) for each in conditions), name
    assert POLICIES["bursar-sizes"]["validations"][0]["expression"] == cel.small()


@pytest.mark.parametrize(
    ("name", "searching"),
    [
        ("bursar-written-once", ("assigned", "allocating", "annotations", "labels", "gates")),
        ("bursar-bindings", ("found",)),
    ],
)
def test_an_update_is_searched_only_where_there_is_little_to_search(
    name: str, searching: tuple[str, ...]
) -> None:
    assert POLICIES[name]["validations"][0]["expression"] == "variables.few"
    assert not _LOOP.search(variable(name, "few"))
    for each in searching:
        assert variable(name, each).lstrip("(!").startswith("variables.few")
    looping = {each["name"] for each in POLICIES[name]["variables"] if _LOOP.search(each["expression"])}
    assert looping == set(searching)


def test_the_images_of_a_sidecar_are_compared_only_where_containers_are_few() -> None:
    assert POLICIES["bursar-sidecar"]["validations"][0]["expression"].startswith("variables.few && ")
    assert not _LOOP.search(variable("bursar-sidecar", "few"))


def test_every_regular_expression_of_the_policies_follows_from_the_dialects() -> None:
    text = "".join(file.read_text() for file in sorted(MANIFESTS.glob("admission-*.yaml")))

    assert set(re.findall(r"matches\(r'(\^\(.*?)'\)", text)) == {
        GPU_RESOURCE,
        accelerators.RESOURCE,
        cel.written_annotations(),
        cel.written_labels(),
    }
    assert text.count(f"matches(r'{GPU_RESOURCE}')") == 4


def test_the_lists_of_the_policies_are_those_of_the_webhook() -> None:
    assert words("bursar-ways-around", "guardedPaths") == denylist.HOST_PATHS
    assert words("bursar-ways-around", "guardedStems") == denylist.HOST_STEMS
    assert words("bursar-ways-around", "guardedInside") == denylist.HOST_PLACES
    assert words("bursar-node-access", "nodePaths") == denylist.NODE_PATHS
    *_, name = denylist.DEVICE_MOUNTS.split("/")
    assert variable("bursar-ways-around", "deviceMounts").count(name) == 4
    assert f"e.name == '{denylist.CUDA_VERSION}'" in variable("bursar-node-access", "cudaVersion")
    assert words("bursar-ways-around", "gpuRuntimeClasses") == denylist.RUNTIME_CLASSES
    first = POLICIES["bursar-ways-around"]["matchConditions"][1]["expression"]
    assert cel.device_annotations() in first
    assert cel.device_annotations() in variable("bursar-ways-around", "deviceAnnotations")
    assert cel.device_annotations() in variable("bursar-bindings", "found")


def test_the_parameters_that_the_policies_read_are_those_that_are_written() -> None:
    text = json.dumps(POLICIES["bursar-device-class-limits"])

    assert set(re.findall(r"params\.\?data\['(\w+)'\]", text)) == {DEFAULT, "_initial"} | {"refusedResources"}
    assert "refusedResources" in NO_CLASSES.data()


@pytest.mark.parametrize("policy", ["bursar-ways-around", "bursar-privileged", "bursar-node-access"])
def test_what_a_new_pod_may_be_is_not_asked_of_the_mirror_of_a_static_pod(policy: str) -> None:
    found = POLICIES[policy]["matchConditions"]

    assert {"name": "not-a-mirror", "expression": cel.not_a_mirror()} in found


def test_the_sample_leaves_out_the_same_namespaces_and_gpu_pods() -> None:
    text = (MANIFESTS.parent / "samples" / "void-for-everyone.yaml").read_text()
    (spec,) = (each["spec"] for each in yaml.safe_load_all(text) if "mutations" in each["spec"])

    assert spec["matchConstraints"]["namespaceSelector"] == GOVERNED_NAMESPACES
    conditions = {each["name"]: each for each in POLICIES["bursar-ways-around"]["matchConditions"]}
    assert spec["matchConditions"] == [conditions["not-a-mirror"], conditions["asks-for-no-gpu"]]


def test_one_command_writes_every_generated_part() -> None:
    for file in (file for folder in generated.FOLDERS for file in folder.glob("*.yaml")):
        text = file.read_text()
        former = text.replace("nano-gpu", "former").replace("ALIYUN_COM", "FORMER_COM")
        assert generated.written(former) == text, file.name


def test_the_accounts_that_the_policies_trust_exist() -> None:
    accounts = {each["metadata"]["name"] for each in documents("rbac") if each["kind"] == "ServiceAccount"}

    trusted = set(re.findall(rf"system:serviceaccount:{NAMESPACE}:([a-z-]+)", json.dumps(POLICIES)))

    assert trusted == {"bursar-scheduler", "bursar-timekeeper"}
    assert trusted <= accounts


@pytest.mark.parametrize(
    "way",
    [
        way
        for way, case in WAYS.items()
        if case.rule not in ("runtime-class", "device-claim", "overhead", "anti-affinity")
    ],
)
def test_a_gpu_pod_that_goes_the_same_way_meets_the_same_rule_in_the_webhook(way: str) -> None:
    """The policy passes over pods that ask for a GPU."""
    pod = copy.deepcopy(WAYS[way].bad)
    pod["spec"]["containers"].append(half("asks"))

    assert [each.rule for each in violations_of(pod, POLICY)].count(WAYS[way].rule) == 1


def test_the_priority_classes_are_those_of_our_defaults() -> None:
    policy = read([], {}).policy
    classes: dict[str, Any] = {each["metadata"]["name"]: each for each in documents("priority-classes")}

    assert {name: each["value"] for name, each in classes.items()} == {
        policy.in_budget.name: policy.in_budget.value,
        policy.over_budget.name: policy.over_budget.value,
    }
    assert classes[policy.over_budget.name]["preemptionPolicy"] == "Never"
    assert "preemptionPolicy" not in classes[policy.in_budget.name]
    assert not any(each.get("globalDefault") for each in classes.values())
    assert all(each["description"] for each in classes.values())
