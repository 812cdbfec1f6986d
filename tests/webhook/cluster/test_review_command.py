"""``python -m webhook review`` against a real API server: the verdicts are the same."""

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest

from deploy.local.cluster import ControlPlane
from tests.support.control_plane import apply_files
from tests.support.waiting import eventually
from tests.webhook.cases import WAYS
from tests.webhook.clusters import MANIFESTS, Registered
from tests.webhook.rule_examples import PODS
from tests.webhook.unit.test_configmaps import BAD as BAD_BUDGET
from tests.webhook.unit.test_configmaps import GOOD as GOOD_BUDGET
from tests.webhook.unit.test_configmaps import config_map
from tests.webhook.unit.test_review_command import DEVICE_CLASS, text_of, write
from tests.webhook.unit.test_templates import BAD, GOOD, RESOURCES, workload
from tests.webhook.worlds import admitted, half, plain
from tests.worlds import Json
from webhook.__main__ import main
from webhook.wire import defaulting


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registered]:
    """The webhook, registered, and the policies, in a cluster with a class of the users' own."""
    with Registered(control_plane, tmp_path_factory.mktemp("review")) as made:
        names = ("modes", "bypass")
        apply_files(made.cp, [MANIFESTS / f"admission-{each}.yaml" for each in names])
        made.post_runtime_classes()
        for way in ("the whole node", "a runtime class whose overhead takes a GPU"):
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


Said = tuple[Json | None, str]  # the object that the cluster would store; what kubectl says


@pytest.fixture(scope="module")
def cluster_says(world: Registered, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What kubectl says to the creation of each case, where nothing is stored: two of them for all, with a
    file for each case. What it says names the file, and what would be stored comes in the order of files."""
    folder = tmp_path_factory.mktemp("cases")
    files = {
        case: write(content, folder / f"case-{at}.yaml") for at, (case, content) in enumerate(CASES.items())
    }
    own = [case for case in CASES if case == "kube-system" or "budgets" in case]
    found: dict[str, Said] = {}
    for namespace, cases in (((), own), (("-n", "team-a"), [case for case in CASES if case not in own])):
        named = [word for case in cases for word in ("-f", str(files[case]))]
        done = world.cp.kubectl("create", "--dry-run=server", "-o", "json", *namespace, *named)
        said = by_file(done.stderr)
        stored = iter(documents(done.stdout))
        for case in cases:
            told = said.get(files[case].name, "")
            found[case] = (None if told else next(stored), told)
        assert next(stored, None) is None
    return found


@pytest.fixture(scope="module")
def review_says(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """What the command reports of each case."""
    file = tmp_path_factory.mktemp("reviewed") / "m.yaml"
    flags = ("review", "-o", "json", "--namespace", "team-a", "--priority-class", "urgent=7")
    reports: dict[str, Json] = {}
    for case, content in CASES.items():
        with redirect_stdout(io.StringIO()) as out:
            main([*flags, str(write(content, file))])
        reports[case] = json.loads(out.getvalue())["items"][0]
    return reports


def by_file(stderr: str) -> dict[str, str]:
    """The errors of kubectl, by the name of the file that each is about; of several lines each."""
    found: dict[str, str] = {}
    name = ""
    for line in stderr.splitlines(keepends=True):
        if named := re.search(r"case-\d+\.yaml", line):
            name = named[0]
        elif line.startswith(("Warning:", "Error", "error")):
            name = ""
        found[name] = found.get(name, "") + line
    return found


def documents(text: str) -> list[Json]:
    """The objects that kubectl has printed, one after the other."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        value, at = decoder.raw_decode(text, at)
        found.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_the_one_of_a_cluster(
    review_says: dict[str, Json], cluster_says: dict[str, Said], case: str
) -> None:
    ours = review_says[case]
    stored, said = cluster_says[case]

    by_policy = "ValidatingAdmissionPolicy 'bursar-" in said and " denied request: " in said
    denied = by_policy or ("bursar.dev" in said and "denied the request" in said)
    if "(BadRequest)" in said:
        assert ours["verdict"] in ("refused", "unreadable")
    else:
        assert (ours["verdict"] == "refused") is denied, (ours, said)
    if denied:
        assert ours["violations"]
        told = "rule" if by_policy else "path"  # policies name containers and volumes where we count them
        assert [each[told] for each in ours["violations"] if each[told] not in said] == []
    if ours["verdict"] == "unreadable":
        assert stored is None
    if ours["patched"] and stored is not None:
        assert seen(ours["patched"]) == seen(stored)


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


def test_the_comparison_sees_both_verdicts(review_says: dict[str, Json]) -> None:
    verdicts = [report["verdict"] for report in review_says.values()]

    assert verdicts.count("refused") > 40
    assert verdicts.count("admitted") > 20
    assert verdicts.count("unreadable") >= 2
