"""Reads what the checks judge. What cannot be read is a `NotReadable`, and the checks say so."""

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal

from timekeeper.cli.client import Client
from timekeeper.cli.connection import Options, connected
from timekeeper.cli.output import AwayError, CommandError, Say, progress
from timekeeper.core.accelerators import accelerators_in
from timekeeper.core.budgets import reader
from timekeeper.core.budgets.config_maps import counting_entries
from timekeeper.core.findings import broken_sentences
from timekeeper.core.json_values import Json, annotations_of, mapping, sequence
from timekeeper.core.names import AGENTS_NAMESPACE, MODE_LABEL
from timekeeper.core.request.inventory import advertised

MAX_NODES = 20  # whose pods are read
RELEASE = re.compile(r":v?1\.(\d+)\.\d+")  # in the name of an image of Kubernetes; its minor version


@dataclass(frozen=True, slots=True)
class NotReadable:
    """Why something could not be read. ``is_away``: the timekeeper does not answer."""

    reason: str
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class Readiness:
    """The timekeeper's answer to ``/readyz``, and by how much its clock is ahead of this machine's."""

    status: int
    text: str
    ahead_s: float | None


@dataclass(frozen=True, slots=True)
class Follower:
    """The ready pods of a component: by name the answer to ``/readyz``, or why there is none; ``others``: how
    many more there are."""

    component: str
    said: Mapping[str, str | NotReadable]
    others: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Objects as kubectl gives them, None where they do not exist; or `NotReadable`."""

    system_namespace: str
    version: Any
    namespace: Any
    workloads: Any  # Deployments, StatefulSets and DaemonSets of Bursar
    api_services: Any  # all
    mutating: Any  # all MutatingWebhookConfigurations
    validating: Any
    policies: Any  # of Bursar
    policy_bindings: Any
    budgets: Any  # ConfigMaps of the system namespace
    nodes: Any
    runtime_classes: Any
    static_schedulers: Any  # pods of kube-scheduler that kubeadm set up
    time_zone: Any  # of a present period; None: no account has one
    findings: Any  # the answer to ``/v1/findings``
    readiness: Readiness | NotReadable
    now_s: float
    # those on nodes that advertise accelerators of no dialect, on `MAX_NODES` nodes at most
    device_pods: Any = None
    namespaces: Any = None  # the names of all, as ``kubectl get -o name`` has them
    labelled: Any = None  # the namespaces with a label for their mode
    modes: Any = None  # namespace -> its mode by the ledger; "": of one without entry and label
    is_by_address: bool = False  # the timekeeper is at the address of ``--server``
    governs_nothing: bool | None = None  # by its own word; None: it gave none
    broken: Any = ()  # a sentence for each budget entry with a mistake
    accounts: Any = ()  # of namespaces, as ``/v1/budgets`` has them
    device_classes: Any = None
    makers: Any = None  # workloads of all namespaces that create pods, but for the Jobs of CronJobs
    exempt: Any = None  # the namespaces that a label excludes from admission
    device_resources: Any = ""  # what ``resource.k8s.io`` serves, a row each: kubectl's table
    scheduler_role: Any = None  # the ClusterRole of kube-schedulers
    limit_ranges: Any = None  # of all namespaces
    quotas: Any = None  # likewise the ResourceQuotas
    failed_creates: Any = None  # Events of controllers whose objects are refused
    followers: Any = ()  # `Follower` of webhook and agents


def read_facts(options: Options) -> Facts:
    """Everything that the checks look at. Raises nothing."""
    with progress() as say:
        return _facts(options, say)


def _facts(options: Options, say: Say) -> Facts:
    get, system = options.kubectl.get, options.system_namespace
    ours = ("-l", "app.kubernetes.io/part-of=bursar")
    workloads = "deployments.apps,statefulsets.apps,daemonsets.apps"

    def read(*arguments: str) -> Any:
        say(f"kubectl reads {arguments[0]}")
        return _or_reason(lambda: get(*arguments))

    nodes, budgets = read("nodes"), read("configmaps", "-n", system)
    ledger = _of_the_ledger(options, say)
    return Facts(
        system_namespace=system,
        version=_or_reason(lambda: options.kubectl.run("get", "--raw", "/version")),
        namespace=read("namespace", system),
        workloads=[read(workloads, "-n", namespace, *ours) for namespace in (system, AGENTS_NAMESPACE)],
        api_services=read("apiservices.apiregistration.k8s.io"),
        mutating=read("mutatingwebhookconfigurations"),
        validating=read("validatingwebhookconfigurations", "zz-bursar"),
        policies=read("validatingadmissionpolicies", *ours),
        policy_bindings=read("validatingadmissionpolicybindings", *ours),
        budgets=budgets,
        nodes=nodes,
        device_pods=_or_reason(lambda: _pods_on(_with_accelerators(nodes, budgets), get, say)),
        runtime_classes=read("runtimeclasses"),
        scheduler_role=read("clusterrole", "system:kube-scheduler"),
        limit_ranges=read("limitranges", "--all-namespaces"),
        quotas=read("resourcequotas", "--all-namespaces"),
        failed_creates=read("events", "--all-namespaces", "--field-selector=reason=FailedCreate"),
        followers=_or_reason(lambda: read_followers(options, say)),
        static_schedulers=read("pods", "-n", "kube-system", "-l", "component=kube-scheduler"),
        time_zone=ledger.time_zone,
        findings=ledger.findings,
        namespaces=_or_reason(lambda: options.kubectl.run("get", "namespaces", "-o", "name")),
        labelled=read("namespaces", "-l", MODE_LABEL),
        makers=read(f"{workloads},cronjobs.batch", "--all-namespaces"),
        exempt=read("namespaces", "-l", "bursar.dev/exempt=true"),
        modes=ledger.modes,
        readiness=_or_reason(lambda: _readiness(options)),
        now_s=time.time(),
        is_by_address=bool(options.server),
        governs_nothing=ledger.governs_nothing,
        broken=ledger.broken,
        accounts=ledger.accounts,
        device_classes=read("deviceclasses"),
        device_resources=_or_reason(
            lambda: options.kubectl.run("api-resources", "--api-group=resource.k8s.io", "--no-headers")
        ),
    )


def read_followers(options: Options, say: Say) -> list[Follower]:
    """Of webhook and agents, through the API server. Raises CommandError."""
    homes = {"webhook": (options.system_namespace, "https"), "node": (AGENTS_NAMESPACE, "metrics")}
    return [_follower(options, say, component, *home) for component, home in homes.items()]


def _follower(options: Options, say: Say, component: str, namespace: str, port: str) -> Follower:
    selector = f"app.kubernetes.io/part-of=bursar,app.kubernetes.io/component={component}"
    pods = {
        name: at
        for pod in items(options.kubectl.get("pods", "-n", namespace, "-l", selector))
        if (name := _if_ready(pod)) and (at := _port(pod, port))
    }
    scheme = "https:" if port == "https" else ""
    said = {}
    for name, at in list(pods.items())[:MAX_NODES]:
        say(f"{name} answers")
        path = f"/api/v1/namespaces/{namespace}/pods/{scheme}{name}:{at}/proxy/readyz"
        said[name] = _or_reason(partial(options.kubectl.run, "get", "--raw", path))
    return Follower(component, said, max(0, len(pods) - MAX_NODES))


def _if_ready(pod: Json) -> str:
    """The pod's name; "": it is not ready, which its workload's check says."""
    conditions = map(mapping, sequence(mapping(pod.get("status")).get("conditions")))
    is_ready = any((each.get("type"), each.get("status")) == ("Ready", "True") for each in conditions)
    return str(pod["metadata"]["name"]) if is_ready else ""


def _port(pod: Json, name: str) -> int:
    """The number of its port of this name; 0: it has none."""
    containers = map(mapping, sequence(mapping(pod.get("spec")).get("containers")))
    ports = (mapping(port) for container in containers for port in sequence(container.get("ports")))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == name), 0)


def _names(nodes: Any, chosen: Callable[[Json], bool]) -> list[str]:
    listed = sequence(mapping(nodes).get("items")) if not isinstance(nodes, NotReadable) else ()
    return sorted(str(each["metadata"]["name"]) for each in listed if chosen(each))


def _with_accelerators(nodes: Any, budgets: Any) -> list[str]:
    named = () if isinstance(budgets, NotReadable) else read_entries(budgets).in_force.device_models
    return _names(nodes, lambda node: bool(accelerators_in(advertised(node), named)))


def read_entries(budgets: Any) -> reader.ParsedBudgets:
    """The valid entries of a list of ConfigMaps; invalid ones are the timekeeper's to report."""
    return reader.read(counting_entries(items(budgets)))


def _pods_on(names: list[str], get: Callable[..., Any], say: Say) -> Any:
    """A list of the pods on the first `MAX_NODES` of these nodes. Node by node: a cluster's pods are too
    many to read them all. Raises CommandError."""
    found: list[Any] = []
    for name in names[:MAX_NODES]:
        say(f"kubectl reads the pods of node {name}")
        there = get("pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}")
        found += sequence(mapping(there).get("items"))
    return {"items": found}


def _readiness(options: Options) -> Readiness:
    with connected(options, "", is_quiet=True) as client:
        return _ask(client)


@dataclass(frozen=True, slots=True)
class _Ledger:
    """What the ledger says, as the fields of `Facts`."""

    time_zone: Any
    findings: Any
    modes: Any
    broken: Any
    accounts: Any
    governs_nothing: bool | None = None


def _of_the_ledger(options: Options, say: Say) -> _Ledger:
    """By one connection."""
    say("the timekeeper answers")
    budget = f"/v1/budgets/{options.system_namespace}"
    try:
        with connected(options, "", is_quiet=True) as client:
            own = _or_reason(partial(client.get, budget))
            findings = _or_reason(partial(client.get, "/v1/findings"))
            listed = _or_reason(partial(client.get, "/v1/budgets"))
            modes = _modes(own, listed)
            broken = listed if isinstance(listed, NotReadable) else list(broken_sentences(listed))
            accounts = listed if isinstance(listed, NotReadable) else listed["budgets"]
            if isinstance(own, NotReadable):
                return _Ledger(own, findings, modes, broken, accounts)
            governs_nothing = own.get("modeFrom") == "ledger"
            return _Ledger(_zone(listed), findings, modes, broken, accounts, governs_nothing)
    except CommandError as error:
        return _Ledger(*(NotReadable(error.message, isinstance(error, AwayError)),) * 5)


def _zone(listed: Any) -> Any:
    """The time zone of an account that has a period; None where none has one."""
    if isinstance(listed, NotReadable):
        return listed
    periods = (each["period"] for each in (*listed["budgets"], *listed["groups"]))
    return next((str(period["timeZone"]) for period in periods if period["to"] is not None), None)


def _modes(own: Any, listed: Any) -> Any:
    """By namespace, of all budgets as ``listed``. ``own``: the budget of Bursar's namespace, which has no
    entry; None where the timekeeper does not know modes yet, or where it has one."""
    if isinstance(own, NotReadable):
        return own
    if own.get("modeFrom") in (None, "entry", "label"):
        return None
    if isinstance(listed, NotReadable):
        return listed
    return {"": own["mode"], **{each["namespace"]: each["mode"] for each in listed["budgets"]}}


def _ask(client: Client) -> Readiness:
    status, text, date = client.status("/readyz")
    ahead_s = parsedate_to_datetime(date).timestamp() - time.time() if date else None
    return Readiness(status, text.strip(), ahead_s)


def _or_reason(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CommandError as error:
        return NotReadable(error.message, isinstance(error, AwayError))


Level = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``subject``: what was looked at; ``command``: what mends it or shows more; "": nothing to do."""

    level: Level
    subject: str
    sentence: str
    command: str = ""


_APPLY = "kubectl apply --server-side -f deploy/manifests/"
_BY_HELM = "meta.helm.sh/release-"


def unknown(subject: str, why: NotReadable) -> CheckResult:
    """The result of a check that could not read its objects. The reason's further lines say what to do."""
    first, *others = why.reason.splitlines()
    if "forbidden" in first.lower():
        command = "use an account that may read it"
    else:
        command = "mend the timekeeper first" if why.is_away else " ".join(others) or "mend that first"
    return CheckResult("unknown", subject, first, command)


def items(listed: Any) -> list[Any]:
    """The objects of a list."""
    return list(sequence(mapping(listed).get("items")))


def named(listed: Any, name: str) -> Any:
    """The object of this name, or None."""
    return next((each for each in items(listed) if each["metadata"]["name"] == name), None)


def applying(facts: Facts, file: str = "") -> str:
    """The command that makes the objects of a manifest, or of all, what they should be. Where Helm installed
    Bursar it is Helm's: the plain manifests would undo the values of the release."""
    return upgrading(facts) or f"{_APPLY}{file}"


def upgrading(facts: Facts, value: str = "") -> str:
    """The command that upgrades the release of Helm with a value; "" where Helm did not install Bursar."""
    release = _release(facts)
    if not release:
        return ""
    name, namespace = map(shlex.quote, release)
    setting = f" --set {value}" if value else ""
    return f"helm upgrade {name} deploy/chart -n {namespace} --reset-then-reuse-values{setting}"


def logs_of(facts: Facts, component: str, lines: int = 50) -> str:
    """The command that shows the newest lines of all pods of a component, whatever creates them; -1: all."""
    selector = f"app.kubernetes.io/component={component}"
    return f"kubectl logs -n {facts.system_namespace} -l {selector} --tail={lines}"


def _release(facts: Facts) -> tuple[str, str] | None:
    """Name and namespace of the release that Bursar's objects are of."""
    lists = (*facts.workloads, facts.policies, facts.mutating)
    for each in (one for listed in lists for one in items(listed)):
        name, namespace = (annotations_of(each).get(f"{_BY_HELM}{end}") for end in ("name", "namespace"))
        if name and namespace and "bursar" in str(each["metadata"]["name"]):
            return str(name), str(namespace)
    return None


def minor_of(facts: Facts) -> int:
    """The API server's minor version; 0: not known."""
    if isinstance(facts.version, NotReadable):
        return 0
    return int("".join(filter(str.isdigit, str(json.loads(facts.version).get("minor", "0")))) or "0")
