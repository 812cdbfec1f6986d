"""Pod templates inside workloads: what is refused when they are written, and what never is."""

import copy
import re
from dataclasses import replace
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.lines import into
from tests.support.simulated_timekeeper import entry, standings
from tests.webhook.clusters import MANIFESTS
from tests.webhook.process_metrics import of_this_process
from tests.webhook.worlds import (
    GOVERNED_NAMESPACES,
    OBSERVING,
    POLICY,
    WITHOUT_SIDECAR,
    half,
    object_review,
    plain,
    review_of,
)
from tests.worlds import Json, container
from timekeeper.core.admission.pods import MalformedError
from timekeeper.core.admission.policy import AdmissionPolicy
from timekeeper.core.request.claims import KnownClaims, read_requests
from timekeeper.core.request.device_classes import DeviceClass
from timekeeper.core.standings import Cap, Caps
from webhook.admission import workloads
from webhook.admission.workloads import BUILT_IN, BadPathError, TemplatePath, judge, read_path
from webhook.server.app import create_calls
from webhook.server.reviewer import Reviewer
from webhook.standings import decode
from webhook.wire.object_review import ObjectReview
from webhook.wire.pod_review import AdmissionAnswer

PYTORCH = read_path("kubeflow.org/PyTorchJob=spec.pytorchReplicaSpecs.*.template")

RESOURCES = {
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "DaemonSet": "daemonsets",
    "ReplicaSet": "replicasets",
    "ReplicationController": "replicationcontrollers",
    "Job": "jobs",
    "CronJob": "cronjobs",
}


def template(*containers: Json, **spec: Any) -> Json:
    """A pod template."""
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": list(containers), **spec}}


def workload(kind: str, of: Json, name: str = "w") -> Json:
    """A workload of this template, as a user writes it."""
    group = next(each.group for each in BUILT_IN if each.kind == kind)
    if kind in ("Job", "CronJob"):
        of = {**of, "spec": {"restartPolicy": "Never", **of["spec"]}}
    spec: Json = {"template": of}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    elif kind == "ReplicationController":
        spec["selector"] = {"app": "x"}
    elif kind != "Job":
        spec["selector"] = {"matchLabels": {"app": "x"}}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    version = f"{group}/v1" if group else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def at(kind: str) -> str:
    """Where a built-in kind has its template."""
    return ".".join(next(each.steps for each in BUILT_IN if each.kind == kind))


BAD = template(container(gpu_percent="150"))
GOOD = template(half())


def sentence(path: str) -> str:
    """The refusal of a share of 150 %."""
    return (
        f"{path}.spec.containers[0].resources.limits[bursar.dev/gpu-percent]: more than one card, but not a "
        'multiple of 100, got "150"; allowed: 1 to 100 for a share of one card, or a multiple of 100 for '
        'whole cards; for example bursar.dev/gpu-percent: "200"'
    )


@pytest.mark.parametrize("kind", RESOURCES)
def test_a_template_that_can_never_start_is_refused_with_the_path_inside_the_workload(kind: str) -> None:
    answer = judge(object_review(workload(kind, BAD)), POLICY)

    assert answer == AdmissionAnswer(
        "refused", refusal=sentence(at(kind)), rules=(("share-range", "enforce"),)
    )
    assert judge(object_review(workload(kind, GOOD)), POLICY) == AdmissionAnswer("valid")


def test_all_that_is_wrong_is_reported_at_once() -> None:
    answer = judge(
        object_review(workload("Deployment", template(container(gpu_percent="150"), nodeName="n"))), POLICY
    )

    assert answer.refusal.startswith("2 problems:\n  1. spec.template.spec.containers[0]")
    assert "\n  2. spec.template.spec.nodeName: " in answer.refusal


@pytest.mark.parametrize("kind", RESOURCES)
def test_an_old_template_that_is_unchanged_is_never_judged(kind: str) -> None:
    old = workload(kind, BAD)
    new = copy.deepcopy(old)
    new["spec"]["replicas"] = new["spec"]["suspend"] = 3
    new["metadata"]["labels"] = {"a": "b"}

    assert judge(object_review(new, old), POLICY) == AdmissionAnswer("passed")


def test_a_template_that_is_changed_is_judged_whole() -> None:
    old = workload("Deployment", BAD)
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/app:2"

    assert judge(object_review(new, old), POLICY).verdict == "refused"
    assert judge(object_review(workload("Deployment", GOOD), old), POLICY) == AdmissionAnswer("valid")


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "DELETE", "object": None, "oldObject": workload("Job", BAD)},
        {"operation": "CONNECT"},
        {"subResource": "status"},
        {"subResource": "scale"},
        {"object": workload("Job", BAD) | {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}},
    ],
    ids=["deletion", "connect", "status", "scale", "finalizers"],
)
def test_neither_deletion_nor_finalizers_nor_status_are_judged(request_: Json) -> None:
    assert judge(object_review(workload("Job", BAD), **request_), POLICY) == AdmissionAnswer("passed")


def test_while_observing_a_bad_template_is_only_warned_of() -> None:
    answer = judge(object_review(workload("Job", BAD)), OBSERVING)

    assert (answer.verdict, answer.refusal, answer.rules) == ("observed", "", (("share-range", "observe"),))
    assert answer.warnings[0].startswith(
        "Observe mode: this would be refused: spec.template.spec.containers[0].resources"
    )


@pytest.mark.parametrize("kind", RESOURCES)
def test_where_pods_are_metered_alone_nothing_is_said_of_a_template(kind: str) -> None:
    bad = workload(kind, template(container(gpu_percent="150")))

    assert judge(object_review(bad), replace(POLICY, mode="meter")) == workloads.NOT_JUDGED


def test_a_rules_mode_holds_for_templates_too() -> None:
    slow = workload("Job", template(half(), terminationGracePeriodSeconds=7200))

    enforced, warned, off = (
        judge(object_review(slow), replace(POLICY, rules={"grace-period": mode}))
        for mode in ("enforce", "warn", "off")
    )

    assert (enforced.verdict, enforced.rules) == ("refused", (("grace-period", "enforce"),))
    assert (warned.verdict, warned.rules) == ("valid", (("grace-period", "warn"),))
    assert warned.warnings[0].startswith("spec.template.spec.terminationGracePeriodSeconds: ")
    assert off == AdmissionAnswer("valid")


@pytest.mark.parametrize(
    ("exempt", "kind", "word"),
    [
        ("system:serviceaccount:kube-system:job-controller", "Job", "valid"),
        ("system:serviceaccount:kube-system:job-controller", "CronJob", "valid"),
        ("system:serviceaccounts:kube-system", "Deployment", "valid"),
        ("system:serviceaccount:kube-system:job-controller", "Deployment", "refused"),
        ("someone", "Job", "refused"),
    ],
)
def test_exempt_is_who_makes_the_pods_not_who_writes_the_workload(exempt: str, kind: str, word: str) -> None:
    slow = workload(kind, template(half(), terminationGracePeriodSeconds=7200))
    policy = replace(POLICY, exempt=frozenset((exempt,)))

    assert judge(object_review(slow, userInfo={"username": "someone"}), policy).verdict == word


def test_kinds_of_ones_own_are_judged_where_their_templates_stand() -> None:
    replicas = {"Master": {"template": GOOD}, "Worker": {"replicas": 2, "template": BAD}}
    written: Json = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }

    answer = judge(object_review(written), POLICY, (PYTORCH,))

    assert answer.refusal == sentence("spec.pytorchReplicaSpecs.Worker.template")
    assert judge(object_review(written), POLICY) == AdmissionAnswer("passed")
    moved = copy.deepcopy(written)
    moved["spec"]["pytorchReplicaSpecs"] = {"Worker-2": replicas["Worker"], "Master": {"template": GOOD}}
    assert judge(object_review(moved, written), POLICY, (PYTORCH,)) == AdmissionAnswer("passed")


def test_a_list_of_templates_is_followed_with_its_indexes() -> None:
    path = read_path("batch.volcano.sh/Job=spec.tasks.*.template")
    written = {
        "apiVersion": "batch.volcano.sh/v1",
        "kind": "Job",
        "metadata": {"name": "v"},
        "spec": {"tasks": [{"template": GOOD}, {"template": BAD}, {"template": None}, 7]},
    }

    assert judge(object_review(written), POLICY, (path,)).refusal == sentence("spec.tasks[1].template")


def test_amounts_of_a_custom_kind_are_read_as_the_api_server_will_spell_them() -> None:
    """No API server has spelt these alike: a custom kind is stored as it was written."""
    limits, requests = {"bursar.dev/gpu-percent": 50.0}, {"bursar.dev/gpu-percent": "50000m"}
    spelt = template({"name": "a", "image": "x", "resources": {"limits": limits, "requests": requests}})
    written = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": spelt}}},
    }

    assert judge(object_review(written), POLICY, (PYTORCH,)) == AdmissionAnswer("valid")


def test_an_unreadable_pod_template_is_reported_and_admitted() -> None:
    written = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {"pytorchReplicaSpecs": {"Worker": {"template": template("no container")}}},  # type: ignore[arg-type]
    }

    answer = judge(object_review(written), POLICY, (PYTORCH,))

    assert (answer.verdict, answer.refusal) == ("valid", "")
    assert answer.warnings == (
        "This pod template is not reviewed: spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]: "
        "must be an object",
    )


def test_wildcards_cannot_multiply_the_work() -> None:
    path = read_path("x.example/Many=spec.*.*.template")
    many = {str(i): {str(j): {"template": BAD} for j in range(100)} for i in range(100)}
    written = {"apiVersion": "x.example/v1", "kind": "Many", "metadata": {}, "spec": many}

    assert len(workloads.found(written, (path,))) == workloads.MAX_TEMPLATES


def test_templates_past_the_last_that_is_looked_at_are_reported() -> None:
    path = read_path("x.example/Many=spec.*.template")
    most = workloads.MAX_TEMPLATES

    def many(count: int, last: Json = GOOD) -> Json:
        spec = {str(number): {"template": GOOD} for number in range(count - 1)} | {"last": {"template": last}}
        return {"apiVersion": "x.example/v1", "kind": "Many", "metadata": {}, "spec": spec}

    told = ("Only the first 256 pod templates of this object are reviewed.",)
    assert judge(object_review(many(most)), POLICY, (path,)).warnings == ()
    assert judge(object_review(many(most + 1)), POLICY, (path,)).warnings == told
    assert judge(object_review(many(most + 1, BAD), many(most + 1)), POLICY, (path,)).warnings == told


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("PyTorchJob=spec.template", "is not GROUP/KIND=PATH"),
        ("kubeflow.org/PyTorchJob", "is not GROUP/KIND=PATH"),
        ("kubeflow.org/pytorchjobs=spec.template", "is not GROUP/KIND=PATH"),
        ("kubeflow.org/PyTorchJob=spec..template", "is not a path of names separated by dots"),
        ("kubeflow.org/PyTorchJob=spec.tasks[0].template", "is not a path of names separated by dots"),
        ("apps/Deployment=spec.template", "is built in"),
    ],
)
def test_a_path_that_cannot_be_read_is_reported(text: str, problem: str) -> None:
    with pytest.raises(BadPathError, match=re.escape(problem)):
        read_path(text)


def test_a_path_is_read() -> None:
    assert read_path("jobset.x-k8s.io/JobSet=spec.replicatedJobs.*.template.spec.template") == TemplatePath(
        "jobset.x-k8s.io", "JobSet", ("spec", "replicatedJobs", "*", "template", "spec", "template")
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5) | st.sampled_from(["50", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "spec",
                    "template",
                    "metadata",
                    "containers",
                    "name",
                    "resources",
                    "limits",
                    "requests",
                    "env",
                ]
            )
            | st.sampled_from(
                ["bursar.dev/gpu-percent", "annotations", "labels", "value", "envFrom", "volumes"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(json_values, json_values, st.sampled_from([POLICY, OBSERVING]))
def test_no_template_whatever_it_holds_makes_the_webhook_fail(
    new: Any, old: Any, policy: AdmissionPolicy
) -> None:
    paths = (read_path("x.example/Thing=spec.*"), read_path("x.example/Thing=*.template"))
    review = object_review(
        {"apiVersion": "x.example/v1", "kind": "Thing"},
        operation="UPDATE",
        object={"spec": new, "x": new},
        oldObject={"spec": old},
    )

    assert judge(review, policy, paths).verdict in ("passed", "valid", "refused", "observed")


def nested() -> Json:
    """A workload that goes down further than Python would follow it."""
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    return {"spec": {"template": {"spec": {"containers": [], "deep": deep}}}}


def test_an_object_that_is_nested_without_end_is_malformed_and_no_crash() -> None:
    review = ObjectReview(
        uid="u",
        operation="UPDATE",
        subresource="",
        group="apps",
        kind="Deployment",
        namespace="team-a",
        name="n",
        dry_run=False,
        object=nested(),
        old=nested(),
    )

    with pytest.raises(MalformedError, match="nested too deeply"):
        judge(review, POLICY)


def registered() -> dict[str, Json]:
    """The validating webhooks of the manifest by name."""
    documents = yaml.safe_load_all((MANIFESTS / "webhook-configurations.yaml").read_text())
    return {each["name"]: each for document in documents for each in document["webhooks"]}


def test_the_manifest_is_what_the_code_generates() -> None:
    found, pods = registered()["templates.bursar.dev"], registered()["check.bursar.dev"]

    assert found["matchConditions"] == [
        {"name": "gpu-templates", "expression": workloads.gpu_templates()},
        {"name": "changed-templates", "expression": workloads.changed_templates()},
    ]
    assert found["namespaceSelector"] == pods["namespaceSelector"] == GOVERNED_NAMESPACES
    assert {each for rule in found["rules"] for each in rule["resources"]} == set(RESOURCES.values())
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in found["rules"])
    assert (found["failurePolicy"], found["sideEffects"], found["timeoutSeconds"]) == ("Ignore", "None", 5)
    assert found["clientConfig"]["service"]["path"] == "/templates"


# on a real API server


def in_gang(replicas: int = 4, policy: str = "", of: Json | None = None, **said: str) -> Json:
    """A StatefulSet whose template says these of its gang."""
    whole = workload("StatefulSet", template(of or half()))
    named = {f"bursar.dev/{name.replace('_', '-')}": text for name, text in said.items()}
    whole["spec"]["template"]["metadata"]["annotations"] = named
    whole["spec"] |= {"replicas": replicas} | ({"podManagementPolicy": policy} if policy else {})
    return whole


def test_a_stateful_set_that_would_wait_for_its_own_next_pod_is_refused() -> None:
    sentence = (
        "spec.podManagementPolicy: each pod is created once the one before it is ready, so the gang would"
        ' wait for itself, got "OrderedReady"; allowed: Parallel; for example podManagementPolicy: Parallel'
    )
    before = workload("StatefulSet", template(half()))

    for refused in (in_gang(gang_size="4"), in_gang(1, "OrderedReady", gang_size="2")):
        assert judge(object_review(refused), POLICY).refusal == sentence
        assert judge(object_review(refused, before), POLICY).refusal == sentence
        assert not judge(object_review(refused, refused), POLICY).refusal
    for good in (
        in_gang(4, "Parallel", gang_size="4"),
        in_gang(gang_size="4", gang_minimum="1"),  # its first pod starts alone
        in_gang(1, gang="a", gang_size="4"),  # others have the other three
        in_gang(of=container(), gang_size="4"),  # no pod of it is held
        before,
    ):
        assert not judge(object_review(good), POLICY).refusal


def rolling(
    surge: object = "25%", unavailable: object = "25%", replicas: object = 1, **strategy: Any
) -> Json:
    """A Deployment of whole cards with this strategy."""
    raw = workload("Deployment", template(container(gpu_count="1")))
    rolled = {"maxSurge": surge, "maxUnavailable": unavailable}
    raw["spec"] |= {"replicas": replicas, "strategy": {"rollingUpdate": rolled} | strategy}
    return raw


ONE_CARD, FOUR_CARDS = Caps(own=Cap(total_milli=1_000)), Caps(own=Cap(total_milli=4_000))


@pytest.mark.parametrize(
    ("raw", "caps", "is_stuck"),
    [
        (rolling(), ONE_CARD, True),
        (workload("Deployment", template(container(gpu_count="1"))), ONE_CARD, True),
        (rolling(1, 0, 4), FOUR_CARDS, True),
        (rolling(1, 0, 4), Caps(Cap(), "lab", Cap(total_milli=4_000)), True),
        (rolling("50%", "30%", 3), Caps(own=Cap(total_milli=3_000)), True),  # nine tenths are none
        (rolling(1, 0, 3), FOUR_CARDS, False),
        (rolling(replicas=4), FOUR_CARDS, False),  # a quarter of four may go first
        (rolling(0, 1), ONE_CARD, False),
        (rolling(0, 0), ONE_CARD, False),  # Kubernetes takes one for unavailable
        (rolling(type="Recreate"), ONE_CARD, False),
        (rolling(replicas=0), ONE_CARD, False),
        (rolling(), Caps(), False),
        (rolling("no part", "%"), ONE_CARD, False),
        (workload("StatefulSet", template(container(gpu_count="1"))), ONE_CARD, False),
        (workload("Deployment", template({"name": "web", "image": "x"})), ONE_CARD, False),
    ],
)
def test_a_deployment_whose_update_waits_for_its_own_old_pods_is_warned(
    raw: Json, caps: Caps, is_stuck: bool
) -> None:
    answer = judge(object_review(raw), replace(POLICY, caps=caps))

    assert not answer.refusal
    assert any("spec.strategy: an update needs" in warning for warning in answer.warnings) is is_stuck


def kind_of_ones_own(group: str, kind: str, replicas: int = 2, **spec: Any) -> Json:
    """An object of this kind, of pods with a whole card each."""
    given = {"replicas": replicas, "template": template(container(gpu_count="1"))} | spec
    return {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": "own"}, "spec": given}


def rollout(**strategy: Any) -> Json:
    return kind_of_ones_own("argoproj.io", "Rollout", strategy=strategy)


def clone_set(**strategy: Any) -> Json:
    return kind_of_ones_own("apps.kruise.io", "CloneSet", updateStrategy=strategy)


def ray_service(workers: int, **strategy: Any) -> Json:
    head = {"template": template({"name": "head", "image": "x"})}
    group = {"replicas": workers, "maxReplicas": 9, "template": template(container(gpu_count="1"))}
    cluster = {"headGroupSpec": head, "workerGroupSpecs": [group]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "own"},
        "spec": {"rayClusterConfig": cluster, "upgradeStrategy": strategy},
    }


PATHS = (
    read_path("argoproj.io/Rollout=spec.template"),
    read_path("apps.kruise.io/CloneSet=spec.template"),
    read_path("ray.io/RayService=spec.rayClusterConfig.workerGroupSpecs.*.template"),
)


@pytest.mark.parametrize(
    ("raw", "cards", "needs"),
    [
        (rollout(canary={}), 2, "spec.strategy: an update needs 3 "),  # a quarter of two may go: none
        (rollout(canary={}), 3, ""),
        (rollout(canary={"maxSurge": 0, "maxUnavailable": 1}), 2, ""),
        (rollout(canary={"trafficRouting": {"istio": {}}}), 3, "spec.strategy: an update needs 4 "),
        (rollout(canary={"trafficRouting": {"istio": {}}, "dynamicStableScale": True}), 3, ""),
        (rollout(blueGreen={"activeService": "a"}), 3, "spec.strategy: an update needs 4 "),
        (rollout(blueGreen={"activeService": "a"}), 4, ""),
        (clone_set(), 2, ""),  # it makes no pod more
        (clone_set(maxSurge=1), 2, "spec.updateStrategy: an update needs 3 "),
        (clone_set(maxSurge=1, maxUnavailable=1), 2, ""),
        (clone_set(maxSurge=1, type="InPlaceOnly"), 2, ""),
        (ray_service(2), 3, "spec.upgradeStrategy: an update needs 4 "),
        (ray_service(2), 4, ""),
        (ray_service(2, type="None"), 3, ""),
    ],
)
def test_updates_of_kinds_of_ones_own_are_warned_of_where_their_templates_are_known(
    raw: Json, cards: int, needs: str
) -> None:
    answer = judge(object_review(raw), replace(POLICY, caps=Caps(own=Cap(total_milli=1000 * cards))), PATHS)

    assert not answer.refusal
    assert [each.partition("GPUs")[0] for each in answer.warnings if "waits for ever" in each] == (
        [needs] if needs else []
    )


CARD = read_requests({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}})


def test_an_unreadable_template_that_no_path_leads_to_is_reported_and_admitted() -> None:
    raw = ray_service(2)
    raw["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"] = "none"

    answer = judge(object_review(raw), replace(POLICY, caps=ONE_CARD), PATHS)

    assert not answer.refusal
    assert [each for each in answer.warnings if each.startswith("This pod template is not reviewed: ")]


ONE_GPU_CLAIMS = replace(
    POLICY,
    claims=KnownClaims(
        classes={"gpu": DeviceClass("gpu", "gpu.nvidia.com", "nvidia.com/gpu")},
        claims={("team-a", "one"): CARD},
        templates={("team-a", "one"): CARD},
    ),
)


@pytest.mark.parametrize(
    ("name", "is_stuck"), [("resourceClaimName", False), ("resourceClaimTemplateName", True)]
)
def test_a_claim_that_all_pods_of_an_update_share_counts_once(name: str, is_stuck: bool) -> None:
    main = {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}
    raw = workload("Deployment", template(main, resourceClaims=[{"name": "gpu", name: "one"}]))
    raw["spec"] |= {"replicas": 3, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}

    answer = judge(object_review(raw), replace(ONE_GPU_CLAIMS, caps=Caps(own=Cap(total_milli=3_000))))

    assert any("an update needs 4 GPUs" in warning for warning in answer.warnings) is is_stuck


HELD = "New GPU pods of namespace team-a are held until its budget can pay them, unless protect selects them."


@pytest.mark.parametrize("kind", RESOURCES)
def test_whoever_writes_a_workload_whose_pods_will_be_held_is_warned(kind: str) -> None:
    written = object_review(workload(kind, GOOD))
    scaled = object_review(workload(kind, GOOD), old=workload(kind, GOOD))
    changed = object_review(workload(kind, GOOD), old=workload(kind, template(container(gpu_percent="20"))))

    assert judge(written, POLICY, is_held=True).warnings == (HELD,)
    assert judge(changed, POLICY, is_held=True).warnings == (HELD,)
    assert judge(written, POLICY).warnings == ()
    assert judge(scaled, POLICY, is_held=True).warnings == ()
    assert judge(object_review(workload(kind, template(plain()))), POLICY, is_held=True).warnings == ()


@pytest.mark.parametrize(
    ("fields", "is_held"),
    [
        ({"standing": "OVER_BUDGET", "onExhausted": "hold"}, True),
        ({"standing": "OVER_BUDGET", "onExhausted": "evict"}, True),
        ({"standing": "OVER_BUDGET", "onExhausted": "deprioritize"}, False),
        ({"onExhausted": "hold"}, False),
        ({"onExhausted": "hold", "hold": "budget"}, True),
        ({"hold": "turn"}, False),
        ({"standing": "OVER_BUDGET", "onExhausted": "hold", "mode": "observe"}, False),
    ],
)
def test_pods_will_be_held_where_the_table_says_so(fields: dict[str, str], is_held: bool) -> None:
    table = decode(orjson.dumps(standings(team_a=entry(**fields))), "e", 0)
    admission = Reviewer(WITHOUT_SIDECAR, lambda: table, lambda: "ca", lambda: 0, 30_000)
    call = create_calls(admission, of_this_process(), into([]))["/templates"]
    answer = call(orjson.dumps(review_of(workload("CronJob", GOOD), kind=CRON_JOB)))
    assert isinstance(answer.body, bytes)

    assert orjson.loads(answer.body)["response"].get("warnings", []) == ([HELD] if is_held else [])


CRON_JOB = {"group": "batch", "version": "v1", "kind": "CronJob"}
