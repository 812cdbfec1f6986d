"""What roles find wrong with themselves and with what they follow: a catalogue, and findings as codes with
figures. `GET /v1/findings` has those of all roles; `kubectl bursar doctor` and the dashboard show them. Also
sentences on entries with mistakes and on estimates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from timekeeper.core.json_values import Json
from timekeeper.core.names import AGENTS_NAMESPACE, BUDGET_CONFIG_MAPS
from timekeeper.core.texts import age, moment, only_printable, per_mille

if TYPE_CHECKING:
    from timekeeper.edge.source_health import SourceHealth

FindingLevel = Literal["ok", "warning", "error"]
MOST_FINDINGS = 50  # that a role publishes: a post of more and longer texts would be refused
MOST_OF_A_CODE = 10  # of these
METRIC = "bursar_findings"
METRIC_MEANS = "what the role finds wrong, by code"
METRIC_LABELS = ("role", "code")
WATCH_FAILS = "watch-fails"
MAX_SENTENCE, MAX_FIGURE = 600, 200  # characters
_MOST = 5


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A row of the catalogue. ``about``: what was looked at; ``sentence``: with the figures by their names,
    ``of_one``: where ``number`` is 1; ``todo``: what mends it or shows more, "": nothing is to be done. In it
    ``{logs}`` shows the timekeeper's log, ``{classes}`` makes the priority classes, ``{label}`` is the label
    of nodes that get an agent, and ``{settings}`` opens `_settings`; figures have their names."""

    level: FindingLevel
    about: str
    sentence: str
    of_one: str = ""
    todo: str = ""


_CHARGES = "read docs/meter.md#what-is-charged; GET /v1/doubts has all"
_CLAIMS = "read docs/claims.md; GET /v1/doubts has all"
_USE = "read docs/meter.md#use-and-idle-pods; GET /v1/idle has all"
_HOLD = "devices by resource claims alone, uncharged, for claims are not followed: {where}"
_LEFT = "reserved for no pod that is left: charged until deleted, or used again: {claims}"
CATALOGUE: Mapping[str, FindingKind] = {
    "settler-away": FindingKind(
        "error",
        "watches",
        "the settler has written nothing since {since}, and figures stand as of then: pods run on, and"
        " nothing is lost, for this time is charged once it is back; until then no held pod is released"
        " and no budget evicts (kubectl bursar doctor)",
        todo="{logs}",
    ),
    WATCH_FAILS: FindingKind(
        "error",
        "watches",
        "{source} are not followed since {since}: {error}; what changes is not known until they are",
        todo="{logs}",
    ),
    "etcd-restored": FindingKind(
        "warning",
        "watches",
        "etcd was restored from a backup, seen at {since} by older versions of {sources}: budgets and modes"
        " are those of the backup, and pods that it lacks are charged to their last evidence",
        todo="start every API server again, and read docs/ledger.md#when-etcd-is-restored",
    ),
    "token-refused": FindingKind(
        "error",
        "tokens",
        "the timekeeper answers the {caller} 401 since {since}: {error}; until it gets an answer, budgets are"
        " unknown to it, and what it reports waits",
        todo="compare --service-account-issuer and the keys of all API servers (docs/troubleshooting.md)",
    ),
    "object-unread": FindingKind(
        "error",
        "watches",
        "{kind} {namespace}/{object} is skipped, and counts as it was read last: {error}",
        todo="report it with the object: it is a defect of Bursar",
    ),
    "broken-law": FindingKind(
        "error",
        "charges",
        "nothing is written of the accounts of {accounts}, whose standings stay as they were: {law} does not"
        " hold: {fault}; what happened meanwhile is charged once it does, and other accounts go on",
        todo="{logs}, run audit, and report both: it is a defect of Bursar, or of who wrote to the database",
    ),
    "month-open": FindingKind(
        "warning",
        "months",
        "{month} ended {after} ago and is not closed: {why} ({command})",
        todo="{command}, once nothing of it runs (docs/ledger.md#closed-months)",
    ),
    "doubt": FindingKind(
        "warning",
        "charges",
        "the rates of {number} running sessions are not certain: {doubt}",
        "the rate of 1 running session is not certain: {doubt}",
        _CHARGES,
    ),
    "other-doubts": FindingKind(
        "warning",
        "charges",
        "the rates of {number} running sessions are not certain for other reasons",
        "the rate of 1 running session is not certain for other reasons",
        _CHARGES,
    ),
    "no-doubt": FindingKind("ok", "charges", "the rate of each running session is certain"),
    "claims-not-followed": FindingKind(
        "warning",
        "resource claims",
        f"{{number}} pods hold {_HOLD}",
        f"1 pod holds {_HOLD}",
        _CHARGES,
    ),
    "orphan-claims": FindingKind(
        "warning",
        "device claims",
        f"{{number}} claims hold devices and are {_LEFT}",
        f"1 claim holds devices and is {_LEFT}",
        _CLAIMS,
    ),
    "unknown-driver": FindingKind(
        "warning",
        "device claims",
        "devices of {driver} are not charged ({number} claims): no rule says which of them are GPUs",
        "devices of {driver} are not charged (1 claim): no rule says which of them are GPUs",
        _CLAIMS,
    ),
    "idle-pods": FindingKind(
        "warning",
        "use",
        "{number} pods have used less than {below} of what they hold for {after} or longer: {where}",
        "1 pod has used less than {below} of what it holds for {after} or longer: {where}",
        _USE,
    ),
    "not-measured": FindingKind("warning", "use", "use of cards by Prometheus: {problem}", todo=_USE),
    "measured": FindingKind("ok", "use", "Prometheus measures {pods} metered pods"),
    "ended-entries": FindingKind(
        "warning",
        "budgets",
        "{number} budget entries ended in the last day, and are in no ConfigMap: {entries}",
        "1 budget entry ended in the last day, and is in no ConfigMap: {entries}",
        "write them again, or apply each file as a ConfigMap of its own (docs/budget-settings.md)",
    ),
    "no-class": FindingKind(
        "warning",
        "priority classes",
        "{classes} does not exist",
        todo="{classes}, or name yours in _settings",
    ),
    "class-order": FindingKind(
        "error",
        "priority classes",
        "{over} ({overValue}) is not below {within} ({withinValue})",
        todo="{classes}",
    ),
    "default-class": FindingKind(
        "warning",
        "priority classes",
        "{default} ({defaultValue}), the cluster's default, is above {within} ({withinValue}): pods without a"
        " class preempt GPU pods in budget",
        todo="classes above it in priorityClasses of _settings (docs/budget-settings.md)",
    ),
    "classes": FindingKind("ok", "priority classes", "both exist"),
    "no-gpu-nodes": FindingKind(
        "warning",
        "nodes",
        "no node advertises GPUs",
        todo="kubectl label node NODE {label} (docs/node-agent.md)",
    ),
    "inventories": FindingKind("ok", "nodes", "{described} of {number} nodes with GPUs have an inventory"),
    "no-agent": FindingKind(
        "warning",
        "nodes",
        "no inventory on {nodes}: no agent runs there",
        todo="kubectl label node {node} {label} (docs/node-agent.md)",
    ),
    "silent-agent": FindingKind(
        "warning",
        "nodes",
        "no inventory on {nodes}: its agent has not read the cards",
        todo=f"kubectl logs -n {AGENTS_NAMESPACE} daemonset/bursar-node --all-pods --tail=20",
    ),
    "agent-is-needed": FindingKind(
        "error",
        "nodes",
        "no agent runs on {nodes}, and their inventory says that cards come by it: no container with cards"
        " starts there",
        todo="kubectl label node {node} {label} (docs/troubleshooting.md)",
    ),
    "no-validator": FindingKind(
        "warning",
        "nodes",
        "NRI's validator is off on {nodes}: while the agent is away there, containers start without their"
        " cards",
        todo="set default_validator in /etc/containerd/conf.d/nri.toml there (docs/node-agent.md)",
    ),
    "fractions": FindingKind(
        "ok", "fractions", "{number} nodes give out fractions, {whole} whole cards by NVIDIA's plugin"
    ),
    "whole-cards": FindingKind(
        "warning",
        "fractions",
        "no node gives out fractions: NVIDIA's plugin gives out whole cards on {nodes}",
        todo="give {node} to fractions (docs/nodes.md)",
    ),
    "changing-node": FindingKind(
        "warning",
        "fractions",
        "{node} is cordoned on its way to {change}",
        todo="go on with {node} (docs/nodes.md)",
    ),
    "left-over-name": FindingKind(
        "warning",
        "fractions",
        "{node} keeps nvidia.com/gpu with 0 of a plugin that is gone, so its agent offers no fractions",
        todo="remove it from the status of {node} (docs/nodes.md)",
    ),
    "closed-node": FindingKind(
        "warning",
        "nodes",
        "{node} is closed: {why}",
        todo="kubectl describe node {node} (docs/node-agent.md)",
    ),
    "locked-node": FindingKind(
        "warning",
        "nodes",
        "{node} is locked for {pod}, which has waited for its devices for more than five minutes, so no other"
        " pod of its plugin is bound there",
        todo="kubectl describe that pod, and read the log of the plugin there (docs/coming-from/hami.md)",
    ),
    "demoted-node": FindingKind(
        "warning",
        "nodes",
        "{node}: until {until} other nodes come first for {whose}: the kubelet refused several ({why})",
        todo="kubectl get pods -A --field-selector=spec.nodeName={node},status.phase=Failed"
        " (docs/placement.md)",
    ),
    "undescribed-cards": FindingKind(
        "warning",
        "cards",
        "node {node}: {fault}, so its pods are charged with a doubt",
        todo="kubectl describe node {node}, and read docs/meter.md#what-is-charged",
    ),
    "described-cards": FindingKind("ok", "cards", "{number} nodes with GPUs describe their cards"),
    "unconfirmed-end": FindingKind(
        "warning",
        "nodes",
        "{namespace}/{pod} has failed, but its status says that it runs on {node}: it holds its cards until"
        " its kubelet says otherwise, its object is gone, or {node} is seen to boot anew",
        todo="kubectl edit pod {pod} -n {namespace}, and remove its finalizers once nothing of it runs there"
        " (docs/ledger.md#a-node-that-died)",
    ),
    "static-pods": FindingKind(
        "warning",
        "static pods",
        "{number} static pods hold GPUs, charged to namespaces that their kubelets chose; no budget holds or"
        " evicts them: {where}",
        "1 static pod holds GPUs, charged to a namespace that its kubelet chose; no budget holds or evicts"
        " it: {where}",
        "remove its file on the node, or let a workload run it (docs/bypass.md#static-pods)",
    ),
    "two-givers": FindingKind(
        "error",
        "givers of cards",
        "{node} gives out its cards twice: {how}, so pods of both may get one card",
        todo="stop one of both on {node} (docs/from-device-plugin.md)",
    ),
    "devices-given-early": FindingKind(
        "warning",
        "devices of claims",
        "{number} devices were given to the next claim while a pod that was deleted by force might still use"
        " them, and both are charged: {devices}",
        "1 device was given to the next claim while a pod that was deleted by force might still use it, and"
        " both are charged: {devices}",
        "read docs/claims.md#pods-that-are-deleted-by-force",
    ),
    "left-out-devices": FindingKind(
        "ok",
        "devices of drivers",
        "{number} devices of {driver} are left out by its rule in drivers of _settings, and are charged"
        " nothing; admission counts each claim on {classes} all the same, for a class tells no device",
        "1 device of {driver} is left out by its rule in drivers of _settings, and is charged nothing;"
        " admission counts each claim on {classes} all the same, for a class tells no device",
    ),
    "vetoed-evictions": FindingKind(
        "warning",
        "evictions",
        "{number} pods stay though they must leave, for {hours} GPU-hours by now: {where}; refused: {why}",
        "1 pod stays though it must leave, for {hours} GPU-hours by now: {where}; refused: {why}",
        todo="let the account of the timekeeper pass that webhook or policy (docs/evictions.md#vetoes)",
    ),
    "queues-not-held": FindingKind(
        "warning",
        "Kueue",
        "{number} of Kueue's queues or their namespaces do not follow their budget: {queues}; {why}",
        "of Kueue's queues or their namespaces 1 does not follow its budget: {queues}; {why}",
        todo="read docs/coming-from/kueue.md#what-can-stand-in-the-way",
    ),
    "sidecar-waits": FindingKind(
        "warning",
        "charges",
        "{number} pods wait for the sidecar, for {hours} GPU-hours by now: {where}; a kubelet says: {why}",
        "1 pod waits for the sidecar, for {hours} GPU-hours by now: {where}; its kubelet says: {why}",
        todo="read docs/governed-pods.md#the-sidecars-image; after five minutes new pods there get none",
    ),
    "unclassified": FindingKind(
        "warning",
        "accelerators",
        "nothing says whether {resource}, on {nodes}, is an accelerator: pods that request it are admitted"
        " and not charged",
        todo="{settings}: _settings, devices: {{{resource}: MODEL}} if it is one, else none"
        " (docs/dialects.md#accelerators-of-other-vendors)",
    ),
    "wrong-clocks": FindingKind(
        "warning",
        "clocks",
        "clocks of {nodes} differ from the API server's, {node}'s by {seconds} s",
        todo="timedatectl set-ntp true, on these nodes: charges follow their clocks",
    ),
    "no-lease": FindingKind(
        "warning",
        "clocks",
        "{nodes} never had a Lease: pods there are charged while the condition Ready is not Unknown",
        todo="kubectl get leases -n kube-node-lease, for a kubelet that should renew one (docs/ledger.md)",
    ),
}


@dataclass(frozen=True, slots=True)
class RoleFinding:
    """Times in milliseconds: ``since`` and ``until`` since 1970, ``after`` a length."""

    code: str
    figures: Mapping[str, int | str]

    @property
    def kind(self) -> FindingKind:
        """Its row of the catalogue."""
        return CATALOGUE[self.code]

    @property
    def sentence(self) -> str:
        """For people."""
        shown = dict(self.figures)
        for name, text in (("since", moment), ("until", moment), ("after", age)):
            if name in shown:
                shown[name] = text(int(shown[name]))
        is_one = self.kind.of_one and self.figures.get("number") == 1
        return (self.kind.of_one if is_one else self.kind.sentence).format(**shown)


def published(findings: Iterable[RoleFinding]) -> Json:
    """A role's list, as it posts it (`timekeeper.wire.findings.PostedFindings`): the first ones, and by code
    how many more there are."""
    shown: list[Json] = []
    of_code, more = Counter[str](), Counter[str]()
    for finding in findings:
        of_code[finding.code] += 1
        if of_code[finding.code] > MOST_OF_A_CODE or len(shown) == MOST_FINDINGS:
            more[finding.code] += 1
            continue
        kind, figures = finding.kind, {name: _figure(value) for name, value in finding.figures.items()}
        row = {"code": finding.code, "level": kind.level, "about": kind.about, "figures": figures}
        shown.append(row | {"sentence": only_printable(finding.sentence[:MAX_SENTENCE])})
    return {"findings": shown, "more": dict(more)}


def counted(found: Json) -> Counter[str]:
    """By code, how many of these `published` are no praise."""
    wrong = Counter(row["code"] for row in found["findings"] if row["level"] != "ok")
    wrong.update(found["more"])
    return wrong


def _figure(value: int | str) -> int | str:
    return only_printable(value[:MAX_FIGURE]) if isinstance(value, str) else value


def some_of(names: Iterable[str]) -> str:
    """At most five names."""
    listed = sorted(names)
    return ", ".join(listed[:_MOST]) + (" and others" if len(listed) > _MOST else "")


def of_doubts(answer: Json) -> Iterator[RoleFinding]:
    """Of the settler and its watches, of the most frequent doubts, and of claims. ``answer``: of
    ``/v1/doubts``."""
    if since_ms := answer.get("silentSince"):
        yield RoleFinding("settler-away", {"since": since_ms})
    for watch in answer.get("watches") or ():
        yield RoleFinding(WATCH_FAILS, {name: watch[name] for name in ("source", "since", "error")})
    left = answer["sessions"]
    for doubt in answer["doubts"][:_MOST]:
        left -= doubt["sessions"]
        yield RoleFinding("doubt", {"number": doubt["sessions"], "doubt": doubt["doubt"]})
    if left:
        yield RoleFinding("other-doubts", {"number": left})
    if not answer["sessions"]:
        yield RoleFinding("no-doubt", {})
    claims = answer["claims"] or ()
    if pods := sum(space["pods"] for space in claims):
        where = ", ".join(f"{space['namespace'] or 'others'} ({space['pods']})" for space in claims)
        yield RoleFinding("claims-not-followed", {"number": pods, "where": where})
    claimed = answer.get("deviceClaims") or {}
    if number := claimed.get("orphans"):
        named = [f"{claim['namespace']}/{claim['claim']}" for claim in claimed["named"][:_MOST]]
        named += [f"and {number - len(named)} more"] if number > len(named) else []
        yield RoleFinding("orphan-claims", {"number": number, "claims": ", ".join(named)})
    for driver in claimed.get("unknownDrivers", ()):
        yield RoleFinding("unknown-driver", {"number": driver["claims"], "driver": driver["driver"]})


def of_sources(sources: Iterable["SourceHealth"]) -> Iterator[RoleFinding]:
    """Of what a role follows: sources that have not been whole for two minutes, objects that it fails on, and
    that all of it is of a restored etcd."""
    followed = tuple(sources)
    restored = {source.name: at_ms for source in followed if (at_ms := source.restored_ms()) is not None}
    if restored:
        yield RoleFinding("etcd-restored", {"since": min(restored.values()), "sources": some_of(restored)})
    for source in followed:
        if stuck := source.stuck():
            yield RoleFinding(WATCH_FAILS, {"source": source.name, "since": stuck[0], "error": stuck[1]})
        for unread in tuple(source.unread.values()):
            names = {"kind": unread.kind, "namespace": unread.namespace, "object": unread.name}
            yield RoleFinding("object-unread", {**names, "error": unread.reason})


def of_use(answer: Json) -> Iterator[RoleFinding]:
    """How many pods have been idle for long, and where; and what is wrong with their measurement. ``answer``:
    of ``/v1/idle``."""
    long = [pod["namespace"] for pod in answer["pods"] if pod["seen"] - pod["since"] >= answer["after"]]
    if long:
        counted = Counter(long).most_common(_MOST)
        others = len(long) - sum(number for _, number in counted)
        where = ", ".join(f"{name} ({number})" for name, number in counted)
        where += f", others ({others})" if others else ""
        figures = {"number": len(long), "after": answer["after"], "where": where}
        yield RoleFinding("idle-pods", figures | {"below": per_mille(answer["below"])})
    if prometheus := answer["prometheus"]:
        yield from (RoleFinding("not-measured", {"problem": problem}) for problem in prometheus["findings"])
        if not prometheus["findings"]:
            yield RoleFinding("measured", {"pods": prometheus["measured"]})


def of_entries(ended: Iterable[str], errors: Json) -> Iterator[RoleFinding]:
    """Of the keys of budget entries that have ended. ``errors``: of budgets, by key; a ConfigMap of
    `BUDGET_CONFIG_MAPS` that is gone is one of them, and names them."""
    keys = sorted(ended)
    if keys and not any(name in errors for name in BUDGET_CONFIG_MAPS):
        yield RoleFinding("ended-entries", {"number": len(keys), "entries": some_of(keys)})


def of_classes(settings: Json) -> Iterator[RoleFinding]:
    """Of the priority classes that the standings name, as `wire.StandingSettings` has them. Where pods are
    metered alone none is needed."""
    if settings["mode"] == "meter":
        return
    within, over = (settings["priorityClasses"][name] for name in ("inBudget", "overBudget"))
    missing = [each["name"] for each in (within, over) if each["value"] is None]
    if missing:
        yield RoleFinding("no-class", {"classes": " or ".join(missing)})
    elif over["value"] >= within["value"]:
        names = {"over": over["name"], "within": within["name"]}
        yield RoleFinding(
            "class-order", {**names, "overValue": over["value"], "withinValue": within["value"]}
        )
    elif default := _above(settings["priorityClasses"].get("clusterDefault"), within):
        figures = {"default": default["name"], "defaultValue": default["value"]}
        yield RoleFinding(
            "default-class", {**figures, "within": within["name"], "withinValue": within["value"]}
        )
    else:
        yield RoleFinding("classes", {})


def _above(default: Json | None, within: Json) -> Json | None:
    return default if default and default["value"] > within["value"] else None


def broken_sentences(answer: Json) -> Iterator[str]:
    """One for each budget entry with a mistake, and for each ConfigMap that is gone with its entries.
    ``answer``: of ``/v1/budgets``."""
    for broken in answer.get("broken", ()):
        is_gone = " gone" in broken["error"].partition(":")[0]
        why = "" if is_gone else "a budget entry has a mistake, so this text does not count: "
        yield f"{why}{broken['error']}"
