"""Resize in place as an attack: a real API server with the policies alone, and what the ledger says of the
pods that it has resized."""

from collections.abc import Mapping

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import Answer, answer, apply
from tests.support.waiting import eventually
from tests.webhook.policies import Policies
from tests.webhook.unit.test_configmaps import config_map
from tests.webhook.worlds import plain
from tests.worlds import Json
from timekeeper.accounts.budget_history import BudgetEntry, history_of
from timekeeper.core.request.host import CardHost
from timekeeper.settler.mode_parameters import host_shares, modes

ROOM = CardHost(cpu_milli=32_000, memory_bytes=256 << 30, least_card_mib=16_000)
ONE_PERCENT = '{"main":{"devices":1,"memory_mib":0,"share_milli":10}}'
POD_LEVEL = "InPlacePodLevelResourcesVerticalScaling"  # the API server asks the node for it
SETTINGS = "rules: {host-share: enforce}\nexempt: [vpa]"


@pytest.fixture(scope="module")
def policies(control_plane: ControlPlane) -> Policies:
    """The policies in force, a node, and what the timekeeper writes for them."""
    made = Policies(control_plane)
    for name in ("watched", "metered", "roomy"):
        made.namespace(name)
    room = {"cpu": "999", "memory": "999Gi"}  # the API server itself refuses more than the node has
    status = {"capacity": room, "allocatable": room, "declaredFeatures": [POD_LEVEL]}
    host = {"metadata": {"name": "n1"}, "status": status}
    control_plane.api.call("POST", "/api/v1/nodes", host)
    tell(
        made,
        _settings=SETTINGS,
        watched="gpuHours: 1\nmode: observe",
        metered="gpuHours: 1\nmode: meter",
        roomy="gpuHours: 1\nhostShare: 200",
    )
    make(made, "probe", {"cpu": "100m"})
    eventually(
        lambda: "denied" in resize(made, "probe", {"cpu": "9"}, query="?dryRun=All").refusal, "the rule"
    )
    return made


def tell(policies: Policies, **entries: str) -> None:
    """Writes the parameters that follow from these entries, as the timekeeper does."""
    history = history_of(BudgetEntry(key, text, 0) for key, text in entries.items())
    data = {**modes(history, 1), **host_shares(history, 1, ROOM)}
    for name, more in (("bursar-modes", {}), ("bursar-modes-observed", {"_judged": "observe"})):
        apply(policies.cp, config_map({**data, **more}, name))


def make(
    policies: Policies,
    name: str,
    requests: Mapping[str, str],
    request: str = ONE_PERCENT,
    namespace: str = "team-a",
    level: str = "containers",
    governed: bool = True,
) -> None:
    """A pod on a node without a kubelet, as admission has written it. ``level``: where it requests CPU and
    memory."""
    resources = {"requests": dict(requests)}
    main = plain("main", resources={"requests": {}, "limits": {"bursar.dev/gpu-percent": "1"}})
    spec: Json = {"containers": [main], "nodeName": "n1"}
    if level == "pod":
        spec["resources"] = resources
    elif level == "initContainers":
        spec["initContainers"] = [plain("first", restartPolicy="Always", resources=resources)]
    else:
        main["resources"]["requests"] = resources["requests"]
    ours = plain("bursar-sidecar", restartPolicy="Always", resources={"requests": {"cpu": "5m"}})
    spec["initContainers"] = [ours, *spec.get("initContainers", [])]
    metadata = {"name": name, "annotations": {"bursar.dev/request": request}}
    if governed:
        metadata["labels"] = {"bursar.dev/governed": "true"}
    policies.cp.api.call("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": spec})


def resize(
    policies: Policies,
    name: str,
    requests: Mapping[str, str],
    namespace: str = "team-a",
    level: str = "containers",
    user: str = "",
    container: str = "",
    query: str = "",
) -> Answer:
    """What the API server says to a resize, which it stores unless the query says otherwise."""
    resources = {"requests": dict(requests)}
    named = container or ("first" if level == "initContainers" else "main")
    changed = (
        {"resources": resources} if level == "pod" else {level: [{"name": named, "resources": resources}]}
    )
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/resize{query}"
    kind = "application/strategic-merge-patch+json"
    return answer(policies.cp, "PATCH", path, {"spec": changed}, user, kind)


TWO_CARDS = '{"main":{"devices":2,"memory_mib":0,"share_milli":1000}}'
HALF_BY_MEMORY = '{"main":{"devices":1,"memory_mib":8000,"share_milli":0}}'
HALF_IN_THOUSANDTHS = '{"main":{"devices":1,"memory_mib":0,"memory_milli":500,"share_milli":0}}'
AN_INSTANCE = '{"main":{"devices":1,"memory_mib":0,"resources":{"nvidia.com/mig-1g.10gb":1},"share_milli":0}}'
TWO_CONTAINERS = (
    '{"a":{"devices":1,"memory_mib":0,"share_milli":10},"b":{"devices":1,"memory_mib":0,"share_milli":20}}'
)


@pytest.mark.parametrize(
    ("asked", "before", "after", "most"),
    [
        (ONE_PERCENT, {"cpu": "1"}, {"cpu": "60"}, "640m"),
        (ONE_PERCENT, {"cpu": "100m"}, {"cpu": "641m"}, "640m"),
        (ONE_PERCENT, {"cpu": "100m"}, {"cpu": "640m"}, ""),
        (ONE_PERCENT, {"cpu": "60"}, {"cpu": "30"}, ""),
        (ONE_PERCENT, {"cpu": "60", "memory": "1Gi"}, {"cpu": "60", "memory": "2Gi"}, ""),
        (ONE_PERCENT, {"memory": "1Gi"}, {"memory": "6Gi"}, "5243Mi"),
        (TWO_CARDS, {"cpu": "1"}, {"cpu": "128"}, ""),
        (TWO_CARDS, {"cpu": "1"}, {"cpu": "129"}, "128000m"),
        (HALF_BY_MEMORY, {"cpu": "1"}, {"cpu": "33"}, "32000m"),
        (HALF_IN_THOUSANDTHS, {"cpu": "1"}, {"cpu": "33"}, "32000m"),
        (AN_INSTANCE, {"cpu": "1"}, {"cpu": "65"}, "64000m"),
        (TWO_CONTAINERS, {"cpu": "1"}, {"cpu": "2"}, "1920m"),
        ("{}", {"cpu": "1"}, {"cpu": "60"}, ""),
    ],
)
def test_growth_is_judged_by_the_pods_part_of_its_cards(
    policies: Policies, asked: str, before: Json, after: Json, most: str
) -> None:
    name = f"grows-{len(policies.get('/api/v1/namespaces/team-a/pods')['items'])}"
    make(policies, name, before, asked)

    said = resize(policies, name, after).refusal

    assert (f"allowed: at most {most} together, or what it requests now" in said) is bool(most), said
    assert bool(said) is bool(most)


@pytest.mark.parametrize("level", ["containers", "initContainers", "pod"])
def test_it_is_judged_wherever_the_pod_requests_it(policies: Policies, level: str) -> None:
    name = f"at-{level.lower()}"
    make(policies, name, {"cpu": "100m", "memory": "1Gi"}, level=level)

    assert "[host-share]" in resize(policies, name, {"cpu": "60"}, level=level).refusal
    assert resize(policies, name, {"cpu": "300m"}, level=level) == Answer("", [])


@pytest.mark.parametrize(
    ("namespace", "user", "is_refused", "is_warned"),
    [
        ("team-a", "", True, False),
        ("team-a", "vpa", False, True),
        ("watched", "", False, True),
        ("metered", "", False, False),
        ("roomy", "", False, False),
    ],
)
def test_what_it_says_follows_the_mode(
    policies: Policies, namespace: str, user: str, is_refused: bool, is_warned: bool
) -> None:
    name = f"by-{namespace}-{user or 'admin'}"
    make(policies, name, {"cpu": "100m"}, namespace=namespace)
    if user:
        policies.kubectl(
            "create", "clusterrolebinding", user, "--clusterrole=cluster-admin", f"--user={user}"
        )
        eventually(
            lambda: not resize(policies, name, {"cpu": "90m"}, namespace, user=user).refusal, "its right"
        )

    said = resize(policies, name, {"cpu": "60"}, namespace, user=user)

    assert (bool(said.refusal), any("[host-share]" in text for text in said.warnings)) == (
        is_refused,
        is_warned,
    )


def test_a_pod_that_admission_does_not_govern_is_not_judged(policies: Policies) -> None:
    make(policies, "ungoverned", {"cpu": "100m"}, governed=False)

    assert resize(policies, "ungoverned", {"cpu": "60"}) == Answer("", [])


def test_nobody_resizes_the_sidecar(policies: Policies) -> None:
    make(policies, "watched", {"cpu": "100m"})

    said = resize(
        policies, "watched", {"cpu": "1m"}, level="initContainers", container="bursar-sidecar"
    ).refusal

    assert "its resources were set when the pod was created" in said
    assert resize(policies, "watched", {"cpu": "90m"}) == Answer("", [])


@pytest.mark.parametrize("mode", ["off", "warn"])
def test_it_follows_the_mode_of_the_rule(policies: Policies, mode: str) -> None:
    tell(policies, _settings=f"rules: {{host-share: {mode}}}")
    name = f"rule-{mode}"
    make(policies, name, {"cpu": "100m"})
    told = [] if mode == "off" else ["[host-share]"]

    def warned(cpu: str) -> list[str]:
        said = resize(policies, name, {"cpu": cpu})
        return [said.refusal] if said.refusal else [text[-12:] for text in said.warnings]

    numbers = iter(range(60, 200))
    eventually(lambda: warned(str(next(numbers))) == told, "the policies to follow")
