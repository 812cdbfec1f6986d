"""The metrics of webhook, extender and timekeeper with kind, labels and their HELP."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from scheduler_ext.preemption.active import PreemptionCounts
from scheduler_ext.reports import metrics as extender
from scheduler_ext.reports.totals import Totals
from scheduler_ext.scoring.fragmentation_model import FragmentationModel
from scheduler_ext.scoring.typical_pods import TypicalPods
from scheduler_ext.snapshot.snapshot import Snapshot
from tests.reference.blocks import table, with_note
from tests.webhook.process_metrics import of_this_process
from timekeeper import metrics as timekeeper

_LINKS = {
    "bursar_budget_evictions_total": "[evictions.md](evictions.md)",
    "bursar_budget_objects_total": "[cli.md](cli.md#kubectl-get-gpubudgets)",
    "bursar_clock_offset_seconds": "[ledger.md](ledger.md#clocks)",
    "bursar_extender_decisions_reported_total": "[explain.md](explain.md)",
    "bursar_extender_fencing_stuck_pods": "[extender.md](extender.md#two-schedulers-or-two-extenders)",
    "bursar_extender_nodes_closed": "[extender.md](extender.md#closed-nodes)",
    "bursar_extender_nodes_refused_total": "[extender.md](extender.md#why-is-my-pod-pending)",
    "bursar_extender_pods_too_large": "[remedy](troubleshooting.md#a-pod-is-too-large-for-etcd)",
    "bursar_extender_pods_unsure": "[extender.md](extender.md#how-it-works)",
    "bursar_extender_preemptions_total": "[preemption.md](preemption.md)",
    "bursar_grace_policies_differing": "[maxGracePeriod](budget-settings.md#maxgraceperiod-and-the-policies)",
    "bursar_held_pods": "[held-pods.md](held-pods.md)",
    "bursar_idle_evictions_total": "[node-agent.md](node-agent.md#idle-pods)",
    "bursar_idle_pods": "[node-agent.md](node-agent.md#idle-pods)",
    "bursar_node_clock_offset_seconds": "[ledger.md](ledger.md#clocks)",
    "bursar_overtime_evictions_total": "[declared-time.md](declared-time.md)",
    "bursar_overtime_pods": "[declared-time.md](declared-time.md)",
    "bursar_overuse_evictions_total": "[node-agent.md](node-agent.md#overuse-evict)",
    "bursar_prometheus_reads_total": "[meter.md](meter.md#use-and-idle-pods)",
    "bursar_settler_leads": "[databases.md](databases.md#which-replica-settles)",
    "bursar_webhook_decisions_total": "[explain.md](explain.md)",
    "bursar_webhook_violations_total": "[rules.md](rules.md)",
}


def of_webhook() -> str:
    """Those of the webhook."""
    return _table(_declared(vars(of_this_process()).values()))


def of_timekeeper() -> str:
    """Those of the timekeeper."""
    return _table(_declared(vars(timekeeper).values()))


def extender_sources() -> extender.Sources:
    """Of a cluster without nodes."""
    return extender.Sources(
        snapshot=Snapshot,
        totals=Totals(lambda: FragmentationModel(TypicalPods(()))),
        waiting=dict,
        silent_s=dict,
        refused=dict,
        events=dict,
        bindings=dict,
        ends=dict,
        decisions=dict,
        preempted=PreemptionCounts,
        gangs=lambda: extender.GangFigures(0, 0, defaultdict(dict)),
        leading=lambda: (True, 0),
        fencing=lambda: (0, 0),
        wrong=dict,
    )


def of_extender() -> str:
    """Those of the extender, of a cluster without nodes."""
    sources = extender_sources()
    counted = _declared(vars(extender.ExtenderMetrics(sources)).values())
    return _table(counted | {_name(each): each for each in extender.ScrapedMetrics(sources).collect()})


def _declared(values: Iterable[Any]) -> dict[str, Any]:
    return {_name(each): each for each in values if hasattr(each, "_labelnames")}


def _table(found: Mapping[str, Any]) -> str:
    return table(("name", "kind, labels", "meaning"), (_row(name, each) for name, each in found.items()))


def _row(name: str, each: Any) -> tuple[str, str, str]:
    labels = ", ".join(f"`{label}`" for label in getattr(each, "_labelnames", ()))
    kind = getattr(each, "_type", "") or each.type
    return f"`{name}`", f"{kind}; {labels}" if labels else kind, with_note(_help(each), _LINKS.get(name, ""))


def _name(each: Any) -> str:
    """As it is scraped: a counter has a suffix."""
    if isinstance(each, Metric):
        return each.name + ("_total" if each.type == "counter" else "")
    return str(each._name) + ("_total" if each._type == "counter" else "")


def _help(each: Any) -> str:
    return str(each.documentation if isinstance(each, Metric) else each._documentation)
