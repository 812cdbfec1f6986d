"""The command ``audit``: reads the cluster, prints the findings, and sets the exit code."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import BinaryIO

from timekeeper.core import names
from timekeeper.core.admission.rules.host_share import RULE as HOST_SHARE
from timekeeper.core.budgets import reader
from timekeeper.core.budgets.config_maps import counting_entries
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.rating.held import card_host
from timekeeper.core.rating.nodes import cards_of_node
from timekeeper.core.request.claims import CLAIM, TEMPLATE
from timekeeper.core.request.device_classes import CONFIG_MAP, ClassParameters
from timekeeper.core.request.host import allocatable
from timekeeper.core.request.inventory import charged_cards
from timekeeper.core.values import Card, UndecodableError
from timekeeper.edge.clock import now_ms
from timekeeper.runtime.flags import UnusableError
from webhook.admission import workloads
from webhook.admission.workloads import TemplatePath
from webhook.audit import findings, use
from webhook.audit.cluster import (
    ClusterReader,
    ClusterUnreachableError,
    ListRefusedError,
    NoSuchKindError,
    connect,
)
from webhook.audit.findings import AdmissionFinding, Metering
from webhook.audit.use import AuditedNode
from webhook.dryrun import inputs
from webhook.dryrun.flags import AuditSettings, program
from webhook.dryrun.judge.assumed_cluster import AssumedCluster, table_of
from webhook.dryrun.judge.reports import printable
from webhook.settings.certificates import CONFIGURATION

# the resource of each built-in kind
_RESOURCES = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "ReplicationController": ("/api/v1", "replicationcontrollers"),
    "Job": ("/apis/batch/v1", "jobs"),
    "CronJob": ("/apis/batch/v1", "cronjobs"),
}


_ALIKE = "cards count as alike, and requests of memory alone as whole ones"


def run(settings: AuditSettings, stdin: BinaryIO) -> int:
    """Prints the findings; returns 0 for none, 1 for some, 2 where something could not be read. With
    ``--use`` prints the use, and returns 0 or 2. Raises CannotReviewError where the budgets are not valid."""
    world = inputs.world(settings.given, stdin)
    if settings.is_use:
        return _print_use(settings, world)
    try:
        found, troubles = _all(_reader(settings), settings.namespace, world)
    except (ClusterUnreachableError, UnusableError) as error:
        found, troubles = [], [str(error)]
    else:
        sys.stdout.write(_as_json(found) if settings.output == "json" else "".join(_as_text(found)))
        sys.stdout.flush()
    for each in troubles:
        _say(each)
    return 2 if troubles else 1 if found else 0


def _reader(settings: AuditSettings) -> ClusterReader:
    """Raises UnusableError."""
    return ClusterReader(connect(settings.kubeconfig, settings.context))


def _print_use(settings: AuditSettings, world: AssumedCluster) -> int:
    try:
        cluster = _reader(settings)
        nodes, world = _nodes(cluster, _ALIKE), world.with_namespaces(_namespaces(cluster))
        left_out = _left_out(cluster, world)
        pods = (
            each
            for each in cluster.objects(_path("/api/v1", settings.namespace, "pods"))
            if each["metadata"]["namespace"] not in left_out
        )
        terms = world.budgets.in_force
        found = use.of_pods(pods, nodes, terms, world.budgets.budgets, now_ms(), _metering_of(cluster, world))
    except (ClusterUnreachableError, ListRefusedError, UnusableError) as error:
        _say(str(error))
        return 2
    lines = (printable(line) + "\n" for line in use.as_text(found))
    sys.stdout.write(use.as_json(found) if settings.output == "json" else "".join(lines))
    sys.stdout.flush()
    return 0


def _judges_hosts(world: AssumedCluster) -> bool:
    """Whether the rule host-share is on anywhere."""
    entries = (world.budgets.settings, *world.budgets.budgets.values())
    return any(dict(each.rules).get(HOST_SHARE, "off") != "off" for each in entries if each is not None)


def _nodes(cluster: ClusterReader, without: str) -> dict[str, AuditedNode]:
    """Each node by name; prints an error where they must not be read, with what follows from that
    (``without``). Raises ClusterUnreachableError."""
    try:
        return {
            each["metadata"]["name"]: AuditedNode(cards_of_node(each, _cards_of(each)), allocatable(each))
            for each in cluster.objects("/api/v1/nodes")
        }
    except ListRefusedError as error:
        _say(f"{without}: {error}")
        return {}


def _cards_of(node: Json) -> tuple[Card, ...]:
    try:
        return charged_cards(node)
    except UndecodableError as error:
        _say(f"the cards of node {node['metadata']['name']} count as alike: {error}")
        return ()


def _path(root: str, namespace: str, resource: str) -> str:
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{inside}/{resource}"


@dataclass(frozen=True, slots=True)
class _Scope:
    """Which namespaces to read: one, or with ``""`` all, without those that admission excludes; and what
    holds in all of them."""

    namespace: str
    left_out: frozenset[str]
    classes: ClassParameters  # the cluster's device classes
    judged: frozenset[tuple[str, str]]  # API groups and kinds
    metering_of: Callable[[str], Metering]


def _all(
    cluster: ClusterReader, namespace: str, world: AssumedCluster
) -> tuple[list[AdmissionFinding], list[str]]:
    """The findings on every kind, and the errors of those that could not be read. Raises
    ClusterUnreachableError."""
    found: list[AdmissionFinding] = []
    troubles: list[str] = []
    world = world.with_namespaces(_namespaces(cluster))
    left_out = _left_out(cluster, world)
    world = world.with_claims(_of_claims(cluster, namespace))
    paths = (*workloads.BUILT_IN, *world.template_paths)
    judged = frozenset((path.group, path.kind) for path in paths)
    scope = _Scope(namespace, left_out, world.device_classes, judged, _metering_of(cluster, world))
    if _judges_hosts(world):
        nodes = _nodes(cluster, "the rule host-share is not judged")
        hosts = ((node.cards.cards, node.allocatable) for node in nodes.values())
        world = replace(world, card_host=card_host(hosts))
    for kind, paths in _kinds(world):
        try:
            found += _of_kind(cluster, scope, kind, paths, world, troubles)
        except NoSuchKindError:
            troubles += [f"the cluster has no kind {kind}"] if kind not in _RESOURCES else []
        except ListRefusedError as error:
            troubles.append(str(error))
    if not namespace:
        found += _of_nodes(cluster, world)
    return found, troubles


def _of_nodes(cluster: ClusterReader, world: AssumedCluster) -> list[AdmissionFinding]:
    """The findings on nodes; prints an error where nodes must not be read. Raises
    ClusterUnreachableError."""
    policy = world.policy_for("")
    try:
        return [one for each in cluster.objects("/api/v1/nodes") for one in findings.of_node(each, policy)]
    except ListRefusedError as error:
        _say(f"accelerators of nodes are not listed: {error}")
        return []


def _left_out(cluster: ClusterReader, world: AssumedCluster) -> frozenset[str]:
    """The namespaces that admission excludes, by name and by label. Raises ClusterUnreachableError."""
    return frozenset((*names.SYSTEM_NAMESPACES, *_named(cluster), *world.exempt))


def _named(cluster: ClusterReader) -> Iterator[str]:
    """The names that the installed webhooks exclude; prints an error where they must not be read."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    try:
        found = list(cluster.objects(path, field=f"metadata.name={CONFIGURATION}"))
    except ListRefusedError as error:
        _say(f"namespaces that are exempt by the installation's values are included: {error}")
        return
    for webhook in (each for one in found for each in one.get("webhooks") or ()):
        for term in mapping(webhook.get("namespaceSelector")).get("matchExpressions") or ():
            if (term["key"], term["operator"]) == ("kubernetes.io/metadata.name", "NotIn"):
                yield from term["values"]


def _namespaces(cluster: ClusterReader) -> list[Json]:
    """Prints an error where namespaces must not be read. Raises ClusterUnreachableError."""
    try:
        return list(cluster.objects("/api/v1/namespaces"))
    except ListRefusedError as error:
        _say(f"namespaces that are exempt by label are included: {error}")
        return []


def _charging(cluster: ClusterReader, world: AssumedCluster) -> AssumedCluster:
    """The cluster with the modes of its own budgets, where no file of budgets is given; prints an error where
    they must not be read. Raises ClusterUnreachableError."""
    if world.table is not None:
        return world
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps"
    try:
        entries = counting_entries(cluster.objects(path))
    except ListRefusedError as error:
        _say(f"the modes of budgets are not known, so pods count as enforced: {error}")
        return world
    return replace(world, table=table_of(reader.read(entries)))


def _metering_of(cluster: ClusterReader, world: AssumedCluster) -> Callable[[str], Metering]:
    """How the ledger reads the pods of a namespace. Raises ClusterUnreachableError."""
    charging = _charging(cluster, world)

    @cache
    def metering(namespace: str) -> Metering:
        policy = charging.policy_for(namespace)
        return Metering(policy.mode, {name: name for name in policy.accelerators})

    return metering


def _of_claims(cluster: ClusterReader, namespace: str) -> Iterator[Json]:
    """The device classes, their settings, claims and templates of claims; prints an error where some must not
    be read, and ends. Raises ClusterUnreachableError."""
    root, without = "/apis/resource.k8s.io/v1", "limits that device classes serve"
    for kind, path, field in (
        ("DeviceClass", f"{root}/deviceclasses", ""),
        ("ConfigMap", f"/api/v1/namespaces/{names.NAMESPACE}/configmaps", f"metadata.name={CONFIG_MAP}"),
        (TEMPLATE, _path(root, namespace, "resourceclaimtemplates"), ""),
        (CLAIM, _path(root, namespace, "resourceclaims"), ""),
    ):
        try:
            yield from ({**raw, "kind": kind} for raw in cluster.objects(path, field=field))
        except NoSuchKindError:
            return  # the cluster has no DeviceClasses
        except ListRefusedError as error:
            _say(f"{without} are not judged: {error}")
            return
        without = "device claims" if kind != "DeviceClass" else without


def _say(sentence: str) -> None:
    print(printable(f"{program('audit')}: {sentence}"), file=sys.stderr)


def _kinds(world: AssumedCluster) -> Iterator[tuple[str, tuple[TemplatePath, ...]]]:
    """Pods first, which have no template, then each kind with the paths of its templates."""
    yield "Pod", ()
    paths = (*workloads.BUILT_IN, *world.template_paths)
    for group, kind in dict.fromkeys((each.group, each.kind) for each in paths):
        yield kind, workloads.of_kind(group, kind, paths)


def _of_kind(
    cluster: ClusterReader,
    scope: _Scope,
    kind: str,
    paths: tuple[TemplatePath, ...],
    world: AssumedCluster,
    troubles: list[str],
) -> list[AdmissionFinding]:
    """The findings on all objects of a kind; to ``troubles`` it adds a ``--template-path`` that leads to no
    template of the objects that there are."""
    if not paths:
        root, resource = "/api/v1", "pods"
    elif paths[0] in workloads.BUILT_IN:
        root, resource = _RESOURCES[kind]
    else:
        root, resource = cluster.resource(paths[0].group, kind)
    found: list[AdmissionFinding] = []
    count, unmatched = 0, [path for path in paths if path in world.template_paths]
    for each in cluster.objects(_path(root, scope.namespace, resource)):
        count += 1
        unmatched = [path for path in unmatched if not workloads.found(each, (path,))]
        where = each["metadata"].get("namespace", "")
        if where in scope.left_out:
            continue
        policy = world.policy_for(where)
        found += (
            findings.of_workload(each, kind, paths, policy, scope.classes, scope.judged)
            if paths
            else findings.of_pod(each, policy, scope.classes, scope.metering_of(where))
        )
    troubles += [workloads.leads_nowhere(path, count) for path in unmatched if count]
    return found


def _as_json(found: Sequence[AdmissionFinding]) -> str:
    return json.dumps({"items": [_one(each) for each in found]}, indent=2) + "\n"


def _one(each: AdmissionFinding) -> dict[str, object]:
    return {
        "namespace": each.namespace,
        "kind": each.kind,
        "name": each.name,
        "finding": each.finding,
        "owner": each.owner,
        "node": each.node,
        "violations": [
            {
                "rule": one.rule,
                "path": one.path,
                "got": one.got,
                "allowed": one.allowed,
                "example": one.example,
            }
            for one in each.violations
        ],
    }


_SAID = {
    "would-be-refused": "would be refused",
    "would-be-warned": "would cause a warning",
    "ungoverned": "uses GPUs but is not governed",
    "accelerators": "has accelerators that no dialect reads",
    "unclassified": "has resources that may be accelerators",
}


def _said(finding: AdmissionFinding) -> str:
    is_uncharged = finding.finding == "ungoverned" and not finding.is_charged
    return "uses GPUs but is not charged" if is_uncharged else _SAID[finding.finding]


def _as_text(found: Sequence[AdmissionFinding]) -> Iterator[str]:
    """One entry for all pods of one controller with the same finding."""
    alike: dict[object, list[AdmissionFinding]] = {}
    for each in found:
        alike_in = each.namespace, each.owner, each.finding, each.violations, each.is_charged
        key: object = alike_in if each.owner else each
        alike.setdefault(key, []).append(each)
    for group in alike.values():
        first, others = group[0], len(group) - 1
        more = (
            f" and {others} more of {first.owner}" if others else f" of {first.owner}" if first.owner else ""
        )
        where = f" on {first.node}" if first.node and not others else ""
        yield (
            printable(f"{first.namespace} {first.kind} {first.name}{more}{where}: {_said(first)}".strip())
            + "\n"
        )
        for violation in first.violations:
            yield printable(f"  {violation.sentence()} ({violation.rule})") + "\n"
    counts = [(sum(each.finding == word for each in found), said) for word, said in _SAID.items()]
    summary = ", ".join(f"{number} {said}" for number, said in counts if number)
    yield (summary or "no findings") + "\n"
