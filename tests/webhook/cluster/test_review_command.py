"""``python -m webhook review`` against a real API server: the verdicts are the same."""

import json
from collections.abc import Iterator

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.waiting import eventually
from tests.webhook.cases import WAYS
from tests.webhook.clusters import MANIFESTS, Registered
from tests.webhook.rule_examples import PODS
from tests.webhook.unit.test_configmaps import BAD as BAD_BUDGET
from tests.webhook.unit.test_configmaps import GOOD as GOOD_BUDGET
from tests.webhook.unit.test_configmaps import config_map
from tests.webhook.unit.test_review_command import DEVICE_CLASS, Review, text_of
from tests.webhook.unit.test_templates import BAD, GOOD, RESOURCES, workload
from tests.webhook.worlds import admitted, half, plain
from tests.worlds import Json
from webhook.wire import defaulting


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook, registered, and the policies, in a cluster with a class of the users' own."""
    with Registered(control_plane, tmp_path_factory.mktemp("review")) as made:
        for policies in ("modes", "bypass", "ranges"):
            made.kubectl("apply", "--server-side", "-f", str(MANIFESTS / f"admission-{policies}.yaml"))
        made.post_runtime_classes()
        for way in ("the whole node", "a device class as a limit"):
            eventually(lambda bad=WAYS[way].bad: made.denies(bad), "the policies")  # type: ignore[misc]
        urgent = {"metadata": {"name": "urgent"}, "value": 7}
        made.cp.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        yield made


def half_of(*more: str) -> str:
    """A pod that asks for half a card, and further lines."""
    return text_of("bursar.dev/gpu-percent: 50", *more)


def memory(amount: str) -> str:
    """A line of requests."""
    return f"        requests: {{bursar.dev/gpu-memory: {amount}}}"


def generated() -> Json:
    """A pod as a controller makes it, without a name and a namespace yet."""
    raw = admitted(half())
    raw["metadata"] = {"generateName": "job-"}
    return raw


SPELLINGS = (
    *("50", "'50'", "50.0", "0.5", "'0.5'", "500m", "5e1", "0x32", "062", "'5e1'", "1_00", "100.0", "150"),
    *("-50", "+50", "'+50'", "1e2", "2e2", "'2e2'", "'0.2k'", "'1Ki'", "300e-1", "1e400", "abc", "0"),
    "'\u0665'",
)
CASES: dict[str, object] = {
    **{f"rule {rule}": raw for rule, raw in PODS.items()},
    **{f"percent {each}": text_of(f"bursar.dev/gpu-percent: {each}") for each in SPELLINGS},
    "memory 8000": text_of("bursar.dev/gpu-memory: 8000"),
    "requests spelt otherwise": text_of("bursar.dev/gpu-memory: 8000", memory("8k")),
    "requests of another amount": text_of("bursar.dev/gpu-memory: 8000", memory("7k")),
    "a request alone": text_of("cpu: 1", "        requests: {bursar.dev/gpu-percent: 50}"),
    "a device class beside a good request": text_of("bursar.dev/gpu-percent: '10'", DEVICE_CLASS),
    "generateName": generated(),
    "an empty namespace": {**generated(), "metadata": {"name": "p", "namespace": ""}},
    "nulls": half_of("  initContainers: null", "  volumes:", "  priorityClassName: ~"),
    "no GPU": admitted(plain()),
    "a class of one's own": half_of("  priorityClassName: urgent"),
    "our own class": half_of("  priorityClassName: gpu-lower-priority"),
    "a class of the system": half_of("  priorityClassName: system-node-critical"),
    "a value that is a number": half_of("      env: [{name: A, value: 1}]"),
    "a value that is no": half_of("      env: [{name: A, value: no}]"),
    "kube-system": {**generated(), "metadata": {"name": "p", "namespace": "kube-system"}},
    "budgets": config_map({"team-a": GOOD_BUDGET}),
    "bad budgets": config_map({"team-a": BAD_BUDGET, "_settings": "mode: x"}),
    "more budgets": config_map({"team-a": BAD_BUDGET}, "more", labels={"bursar.dev/budgets": "true"}),
    "no budgets": config_map({"team-a": BAD_BUDGET}, "other"),
    **{f"good {kind}": workload(kind, GOOD) for kind in RESOURCES},
    **{f"bad {kind}": workload(kind, BAD) for kind in RESOURCES},
    **{f"way {each}": way.bad for each, way in WAYS.items()},
    **{f"no way {each}": way.good for each, way in WAYS.items()},
    "a list": {"apiVersion": "v1", "kind": "List", "items": [workload("Job", BAD)]},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_the_one_of_a_cluster(world: Registered, review: Review, case: str) -> None:
    file = review.file(CASES[case])
    flags = ("-o", "json", "--namespace", "team-a", "--priority-class", "urgent=7")
    _, out, _ = review(*flags, file)
    ours = json.loads(out)[0]

    namespace = [] if case in ("kube-system",) or "budgets" in case else ["-n", "team-a"]
    done = world.cp.kubectl("create", "--dry-run=server", "-o", "json", *namespace, "-f", file)

    by_policy = "ValidatingAdmissionPolicy 'bursar-" in done.stderr and " denied request: " in done.stderr
    denied = by_policy or ("bursar.dev" in done.stderr and "denied the request" in done.stderr)
    if "(BadRequest)" in done.stderr:
        assert ours["verdict"] in ("refused", "unreadable")
    else:
        assert (ours["verdict"] == "refused") is denied, (ours, done.stderr)
    if denied:
        assert ours["violations"]
        told = "rule" if by_policy else "path"  # policies name containers and volumes where we count them
        assert [each[told] for each in ours["violations"] if each[told] not in done.stderr] == []
    if ours["verdict"] == "unreadable":
        assert done.returncode != 0
    if ours["patched"] and done.returncode == 0:
        assert seen(ours["patched"]) == seen(json.loads(done.stdout))


def seen(pod: Json) -> Json:
    """What governing has made of a pod, apart from what each cluster fills in."""
    spec, metadata = pod["spec"], pod["metadata"]
    return {
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "class": (spec["priorityClassName"], spec["schedulerName"]),
        "init": [each["name"] for each in spec["initContainers"]],
        "containers": [
            (each["name"], each.get("env"), defaulting.quantities(each["resources"]))
            for each in spec["containers"]
        ],
    }


def test_the_comparison_sees_both_verdicts(world: Registered, review: Review) -> None:
    verdicts = [
        review.json(content, "--namespace", "team-a", "--priority-class", "urgent=7")[0]["verdict"]
        for content in CASES.values()
    ]

    assert verdicts.count("refused") > 40
    assert verdicts.count("admitted") > 20
    assert verdicts.count("unreadable") >= 2
