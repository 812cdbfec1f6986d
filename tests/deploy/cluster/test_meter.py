"""The chart in modes meter and observe on a cluster as it is: pods of other schedulers are charged, and
nothing but Bursar's own objects differs from what was there."""

import json
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from deploy.local.cluster import ControlPlane
from deploy.local.limits import LONGEST_S
from tests.deploy.installed import InstalledPods, account_token
from tests.deploy.reading import NAMESPACE
from tests.deploy.untouched import TEAMS, differing, manifest, objects, pods, populate
from tests.support.control_plane import create_namespace, kubectl
from tests.support.waiting import eventually
from tests.support.worker_control_plane import Lender
from tests.worlds import Json

Rule = tuple[str, str, str, str]  # namespace, "": everywhere; group; resource and name, or path; verb

PART_S = 15 * 60  # a soak has two of them: half an hour of each mode
LOOK_S = 20.0
SHORT = ("meter", 0.0, 0), ("observe", 0.0, 0)
SOAKS = [
    pytest.param(
        (mode, PART_S, part), id=f"{mode}-part-{part}", marks=[pytest.mark.soak, pytest.mark.timeout(1_200)]
    )
    for mode in ("meter", "observe")
    for part in (1, 2)
]
# What the API server and its controllers make of our CustomResourceDefinition and of our role for viewers.
FOLLOWS = {
    "meter": set[str](),
    "observe": {
        "/apis/apiregistration.k8s.io/v1/apiservices//v1alpha1.bursar.dev",
        *(f"/apis/rbac.authorization.k8s.io/v1/clusterroles//{name}" for name in ("admin", "edit", "view")),
    },
}


@dataclass(frozen=True, slots=True)
class Installed:
    """``differ``: the objects that differed at any time while Bursar ran, without its own."""

    mode: str
    cp: ControlPlane
    before: dict[str, Json]
    after: dict[str, Json]
    differ: set[str]
    sessions: dict[str, Json]
    doubts: Json
    rights: set[Rule]
    would: list[Json]
    free: dict[str, Json]  # by model


@pytest.fixture(scope="module", params=[*SHORT, *SOAKS], ids=lambda each: each[0])
def installed(
    request: pytest.FixtureRequest, lender: Lender, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    mode, for_s, _ = request.param
    with lender.lent() as cp, ExitStack() as stack:
        populate(cp)
        before = objects(cp)
        running = InstalledPods(cp, mode, tmp_path_factory.mktemp(mode), stack)
        token = viewer(cp)
        charged = {name for name, (_, kind) in pods().items() if kind.rate_milli}
        eventually(
            lambda: sessions(running, token).keys() == charged,
            lambda: charged ^ sessions(running, token).keys(),
        )
        differ = differences(cp, running, before, for_s)
        found, doubts = sessions(running, token), running.read("/v1/doubts", token)
        rows = eventually(lambda: running.read("/v1/free", token)["models"])
        free = {row["model"]: row for row in rows}
        after, may = objects(cp), rights(cp)
        yield Installed(mode, cp, before, after, differ, found, doubts, may, would(cp, running, token), free)


def would(cp: ControlPlane, running: InstalledPods, token: str) -> list[Json]:
    """What the API says of pods that are created now, in namespaces that have used their budgets."""
    entries = {"would-hold": "gpuHours: 0\nonExhausted: hold", "would-lower": "gpuHours: 0"}
    config = {"metadata": {"name": "budgets", "labels": {"bursar.dev/budgets": "true"}}, "data": entries}
    cp.api.call("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", config)
    container = {"name": "main", "image": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    paths = {name: create_namespace(cp, name) for name in ("would-hold", "would-lower", "would-fit")}
    for name in entries:
        spent = f"/v1/budgets/{name}"
        eventually(lambda at=spent: running.read(at, token)["standing"] == "OVER_BUDGET")  # type: ignore[misc]
    for namespace, name, more in (
        ("would-hold", "held", {}),
        ("would-lower", "lower", {}),
        ("would-lower", "refused", {"terminationGracePeriodSeconds": 3_000}),
        ("would-fit", "fits", {}),
    ):
        spec = {"containers": [container], **more}
        cp.api.call("POST", paths[namespace], {"metadata": {"name": name}, "spec": spec})
    return eventually(lambda: judged(running, token))


def judged(running: InstalledPods, token: str) -> list[Json]:
    """The rows about these pods, once each has one."""
    rows = [each for each in running.read("/v1/would", token)["rows"] if each["namespace"][:6] == "would-"]
    return rows if sum(each["pods"] for each in rows) == 4 else []


def differences(cp: ControlPlane, running: InstalledPods, before: dict[str, Json], for_s: float) -> set[str]:
    """What differs at any look in so many seconds; one look at least."""
    end_s = time.monotonic() + for_s
    differ = differing(before, objects(cp))
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(LOOK_S, left_s))  # the test is about what happens in this time
        running.check()
        differ |= differing(before, objects(cp))
    return differ


def sessions(running: InstalledPods, token: str) -> dict[str, Json]:
    """By pod."""
    return {each["pod"]: each for each in running.read("/v1/sessions", token)["sessions"]}


def viewer(cp: ControlPlane) -> str:
    """A token of an account of Bursar's namespace that may read everything."""
    kubectl(cp, "create", "serviceaccount", "reader", "-n", NAMESPACE)
    flags = "--clusterrole=bursar-viewer", f"--serviceaccount={NAMESPACE}:reader"
    kubectl(cp, "create", "clusterrolebinding", "bursar-reader", *flags)
    return account_token(cp, "reader", "bursar")


def rights(cp: ControlPlane) -> set[Rule]:
    """All that the timekeeper's account may do in six namespaces, by the API server's own list, without what
    an account without a role may."""
    looked = ("default", "kube-system", "kube-public", "kube-node-lease", NAMESPACE, TEAMS[0])
    found = {name: rules(cp, NAMESPACE, "bursar-timekeeper", name) for name in looked}
    nobody = {name: rules(cp, TEAMS[0], "default", name) for name in looked}
    more = {name: found[name] - nobody[name] for name in looked}
    everywhere = set.intersection(*more.values())
    inside = {(name, *each) for name, those in more.items() for each in those - everywhere}
    return inside | {("", *each) for each in everywhere}


def rules(cp: ControlPlane, home: str, account: str, namespace: str) -> set[tuple[str, str, str]]:
    """What the account may do in the namespace: group, resource and name, verb; of paths the group is
    "path"."""
    review = {"spec": {"namespace": namespace}}
    token = account_token(cp, account, namespace=home)
    status = ask(cp, token, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)["status"]
    assert not status["incomplete"]
    found = {
        (group, "/".join((resource, *names)), verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for names in [[each] for each in rule.get("resourceNames", [])] or [[]]
        for verb in rule["verbs"]
    }
    return found | {
        ("path", path, verb)
        for rule in status["nonResourceRules"]
        for path in rule["nonResourceURLs"]
        for verb in rule["verbs"]
    }


def ask(cp: ControlPlane, token: str, path: str, body: Json) -> Json:
    context = ssl.create_default_context(cafile=str(cp.ca_file))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{cp.url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=LONGEST_S, context=context) as answer:
        loaded: Json = json.load(answer)
    return loaded


def test_only_objects_of_bursar_differ(installed: Installed) -> None:
    assert installed.differ == FOLLOWS[installed.mode]
    assert any(
        path.endswith("/bursar-timekeeper") for path in installed.after.keys() - installed.before.keys()
    )


def test_roles_of_the_cluster_get_rules_about_budgets_alone(installed: Installed) -> None:
    before, after = installed.before, installed.after
    for path in FOLLOWS[installed.mode] & before.keys():
        more = [each for each in after[path]["rules"] if each not in before[path]["rules"]]
        less = [each for each in before[path]["rules"] if each not in after[path]["rules"]]

        assert {group for each in more for group in each["apiGroups"]} <= {"bursar.dev", "budgets.bursar.dev"}
        assert less == []


def test_pods_of_every_kind_are_charged(installed: Installed) -> None:
    rates = {name: kind.rate_milli for name, (_, kind) in pods().items() if kind.rate_milli}

    assert {name: each["rateMilli"] for name, each in installed.sessions.items()} == rates


def test_what_is_free_is_known_by_the_ledger_alone(installed: Installed) -> None:
    found = {model: (row["cards"], row["whole"], row["partMilli"]) for model, row in installed.free.items()}

    assert found.pop("NVIDIA-A100-SXM4-40GB")[0] == 64  # KAI's halves are on whichever of these it likes
    assert found == {
        "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb": (96, 96 - 40, 0),
        "Tesla-T4-SHARED": (32, 0, 32_000 - 40 * 250),  # of ten parts on eight cards each may have one
        "amd.com/gpu": (32, 32 - 2 * 15, 0),
        "nvidia.com/gpu": (8, 8 - 1, 0),
    }


def test_what_is_not_certain_and_what_is_not_charged_is_named(installed: Installed) -> None:
    doubts = {name: each["doubt"] for name, each in installed.sessions.items() if each["doubt"]}

    assert doubts.keys() == {"guessed-0", "unreadable-0"}
    named = {each["doubt"]: each["sessions"] for each in installed.doubts["doubts"]}
    assert named == {doubts["guessed-0"]: 1, doubts["unreadable-0"]: 1}
    assert installed.doubts["claims"] == []  # the one that there is has no device, and would pay for it


def test_new_pods_have_the_verdict_that_enforcement_would_give(installed: Installed) -> None:
    found = [(each["namespace"], each["pod"], each["verdict"], each["rule"]) for each in installed.would]

    assert found == [
        ("would-fit", "fits", "admitted", ""),
        ("would-hold", "held", "held", ""),
        ("would-lower", "lower", "demoted", ""),
        ("would-lower", "refused", "refused", "grace-period"),
    ]


def test_a_pod_that_is_created_now_is_stored_as_it_is_sent(installed: Installed) -> None:
    """Beside its twin from before the install; the API server judges it, and stores nothing."""
    twins = {"waiting-0", "whole-0", "fraction-0", "plain-0", "claiming-0", "radeon-0"}
    for name in twins:
        team, kind = pods()[name]
        path = f"/api/v1/namespaces/{team}/pods"
        stored = installed.cp.api.call("POST", f"{path}?dryRun=All", manifest(f"{name}-new", kind))
        twin = installed.before[f"/api/v1/pods/{team}/{name}"]

        assert comparable(stored) == comparable(twin), name


def comparable(pod: Json) -> Json:
    """What its user, or admission, has written."""
    spec = {key: each for key, each in pod["spec"].items() if key not in ("nodeName", "volumes")}
    for container in spec["containers"]:
        container.pop("volumeMounts", None)  # of the account's token, which has a random name
    metadata = pod["metadata"]
    return {"spec": spec, "labels": metadata.get("labels"), "annotations": metadata.get("annotations")}


@pytest.mark.parametrize("installed", [SHORT[0]], indirect=True, ids=["meter"])
def test_the_account_has_the_rights_that_are_stated(installed: Installed) -> None:
    """To read pods, nodes, leases, namespaces, claims and slices, TokenReview and SubjectAccessReview, and
    objects of its own namespace; nothing else."""
    follow = ("list", "watch")
    stated = {
        *(("", "", resource, verb) for resource in ("pods", "nodes", "namespaces") for verb in follow),
        *(
            ("", "resource.k8s.io", each, verb)
            for each in ("resourceclaims", "resourceslices")
            for verb in follow
        ),
        ("", "authentication.k8s.io", "tokenreviews", "create"),
        ("", "authorization.k8s.io", "subjectaccessreviews", "create"),
        *(("kube-node-lease", "coordination.k8s.io", "leases", verb) for verb in follow),
        *((NAMESPACE, "", "configmaps", verb) for verb in follow),
        *((NAMESPACE, "", "configmaps/bursar-ca", verb) for verb in ("get", "create", "patch")),
        (NAMESPACE, "events.k8s.io", "events", "create"),
    }

    assert installed.rights == stated
