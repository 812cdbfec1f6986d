"""The timekeeper's own metrics. No label names a tenant.

Settler and workers are separate processes: if ``PROMETHEUS_MULTIPROC_DIR`` is set (the supervisor sets it),
each writes files there, and a scrape sums them.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import REGISTRY

from timekeeper.core.findings import METRIC, METRIC_LABELS, METRIC_MEANS
from timekeeper.runtime.metrics_folder import VARIABLE

HEARTBEATS = Counter("bursar_heartbeats", "heartbeats by result", ["outcome"])
NODE_REPORTS = Counter("bursar_nodeusage_reports", "reports of node agents: `new`, `repeated`", ["outcome"])
NODE_STRAYS = Counter(
    "bursar_nodeusage_strays",
    "pods left out of reports of node agents: `on another node`, `no session`",
    ["reason"],
)
OVERUSE_EVICTIONS = Counter(
    "bursar_overuse_evictions",
    "attempts to evict a pod over its memory share: `evicted`, `gone`, `protected` by a PodDisruptionBudget, "
    "`refused` by the API server, `unclear` (no answer)",
    ["result"],
)
OVERUSE_HELD_BACK = Gauge(
    "bursar_overuse_evictions_held_back",
    "pods over their share that are due and wait because of the bounds of these evictions",
    multiprocess_mode="mostrecent",
)
BUDGET_OBJECTS = Counter(
    "bursar_budget_objects", "writes of GPUBudget objects: `written`, `failed`", ["result"]
)
DECISIONS = Counter(
    "bursar_decisions",
    "decisions recorded, by the role that decided: `webhook`, `extender`, `timekeeper`",
    ["source"],
)
DECISIONS_DROPPED = Counter(
    "bursar_decisions_dropped", "the settler's own decisions that were lost because more than 10,000 waited"
)
WOULD = Counter(
    "bursar_would_pods",
    "new pods of metered namespaces by what enforcement would have done: `admitted`, `demoted`, `held`,"
    " `refused`; and `evicted`; `unjudged` and `dropped`: too many at once",
    ["verdict"],
)
HELD = Gauge(
    "bursar_held_pods", "pods that wait behind the gate `bursar.dev/budget`", multiprocess_mode="mostrecent"
)
GANG_EVICTIONS = Counter(
    "bursar_gang_evictions",
    "attempts to evict the pods that a preemption has left of a gang",
    ["result"],
)
CLAIM_EXCESS_EVICTIONS = Counter(
    "bursar_claim_excess_evictions",
    "attempts to evict pods whose claims hold more GPUs than the pods were judged for",
    ["result"],
)
CLAIM_RECLAIMS = Counter(
    "bursar_claim_reclaims",
    "devices for which pods over budget were to leave: `allocated` to their claim; `elsewhere`: the claim "
    "got another; `gone`: its pod went; `expired`: nothing came of it in time; `withdrawn`: no pod was "
    "evicted",
    ["result"],
)
CLAIM_RECLAIM_EVICTIONS = Counter(
    "bursar_claim_reclaim_evictions",
    "attempts to evict pods over budget for the device of a waiting pod's claim",
    ["result"],
)
KEPT_DEVICES = Gauge(
    "bursar_kept_devices", "devices that a taint keeps for a claim", multiprocess_mode="mostrecent"
)
RELEASES = Counter(
    "bursar_releases",
    "attempts to release a held pod: `released`, `changed` (the pod is gone or has changed), "
    "`refused`, `unclear` (no answer)",
    ["result"],
)
BUDGET_EVICTIONS = Counter(
    "bursar_budget_evictions",
    "attempts to evict pods of spent budgets, by the same results, and `deleted` after `pdbGrace`",
    ["result"],
)
BUDGET_EVICTION_NOTICES = Gauge(
    "bursar_budget_eviction_notices",
    "pods with a notice of their eviction",
    multiprocess_mode="mostrecent",
)
IDLE_EVICTIONS = Counter("bursar_idle_evictions", "attempts to evict idle pods", ["result"])
OVERTIME_EVICTIONS = Counter(
    "bursar_overtime_evictions", "attempts to evict pods past their declared time", ["result"]
)
OVERTIME_PODS = Gauge(
    "bursar_overtime_pods", "pods that hold cards past their declared time", multiprocess_mode="mostrecent"
)
PROMETHEUS_READS = Counter(
    "bursar_prometheus_reads", "queries of Prometheus for the use of metered pods' cards", ["outcome"]
)
IDLE_PODS = Gauge(
    "bursar_idle_pods",
    "pods that use less than idleBelow of what they hold, by their nodes' reports",
    multiprocess_mode="mostrecent",
)
REQUESTS = Counter("bursar_requests", "answers of the REST API", ["route", "status"])
SECONDS = Histogram("bursar_request_seconds", "time to answer", ["route"])
REVIEWS = Counter(
    "bursar_reviews",
    "TokenReviews and SubjectAccessReviews: sent, failed, or answered from the cache",
    ["kind", "outcome"],
)

LOGINS = Counter(
    "bursar_logins",
    "logins to the dashboard by OpenID Connect: `accepted`, `refused`, `provider away`",
    ["outcome"],
)

TICKS = Counter(
    "bursar_settler_ticks",
    "ticks of the settler: `written`, `nothing new`, `database away`",
    ["outcome"],
)
POSTINGS = Counter("bursar_postings", "postings written", ["kind"])
SESSIONS_OPENED = Counter(
    "bursar_sessions_opened",
    "sessions opened, by the source of their rate: the placement, or the request alone",
    ["by"],
)
UNREADABLE_PODS = Counter("bursar_unreadable_pods", "pods whose GPU request cannot be charged")
CLAIMED_GPUS = Gauge(
    "bursar_claimed_gpus",
    "GPUs that device claims hold and pay for, unweighted, by the device's driver",
    ["driver"],
    multiprocess_mode="mostrecent",
)
CLAIMING_PODS = Gauge(
    "bursar_pods_with_claims_alone",
    "pods of metered namespaces that hold devices by resource claims alone, where claims are not followed",
    multiprocess_mode="mostrecent",
)
UNCLASSIFIED = Gauge(
    "bursar_unclassified_resource_nodes",
    "nodes with some of a resource of which neither a table nor `devices` in `_settings` says whether it is "
    "an accelerator's",
    ["resource"],
    multiprocess_mode="mostrecent",
)
FINDINGS = Gauge(METRIC, METRIC_MEANS, METRIC_LABELS, multiprocess_mode="mostrecent")
LOST_ENDS = Counter(
    "bursar_lost_ends", "ends of pods that were lost because the database was away for too long"
)
LAWS_BROKEN = Counter(
    "bursar_broken_laws",
    "facts that contradicted a law of the ledger: the account is not written until they do not",
    ["law"],
)
WATCH_FAILURES = Counter("bursar_watch_failures", "failed calls of a watch", ["source"])
EVIDENCE = Gauge("bursar_open_sessions", "sessions that are not settled", multiprocess_mode="mostrecent")
STANDINGS = Gauge("bursar_standings", "namespaces by standing", ["standing"], multiprocess_mode="mostrecent")
BROKEN = Gauge(
    "bursar_broken_budgets",
    "budget entries with a mistake, and ConfigMaps that are gone with theirs",
    multiprocess_mode="mostrecent",
)
MISSING_NAMESPACES = Gauge(
    "bursar_budgets_without_namespace",
    "budget entries whose namespace does not exist",
    multiprocess_mode="mostrecent",
)
MODE = Gauge(
    "bursar_mode",
    "1 for the mode of the cluster, 0 for the others",
    ["mode"],
    multiprocess_mode="mostrecent",
)
GRACE_POLICIES = Gauge(
    "bursar_grace_policies_differing",
    "policies on grace periods whose figure is not `maxGracePeriod`",
    multiprocess_mode="mostrecent",
)
DATABASE = Gauge("bursar_database", "1 for the kind of database", ["kind"], multiprocess_mode="mostrecent")
DATABASE_BYTES = Gauge(
    "bursar_database_bytes",
    "size of the database by its kind, on SQLite with its log; read once a minute",
    ["kind"],
    multiprocess_mode="mostrecent",
)
DATABASE_FREE_BYTES = Gauge(
    "bursar_database_free_bytes",
    "free space of the volume that the SQLite file is on",
    ["kind"],
    multiprocess_mode="mostrecent",
)
LEADS = Gauge(
    "bursar_settler_leads", "1 where this replica settles, 0 where it follows", multiprocess_mode="mostrecent"
)
TERM = Gauge(
    "bursar_settler_term", "the epoch in which this replica settled last", multiprocess_mode="mostrecent"
)
CLOCK_OFFSET = Gauge(
    "bursar_clock_offset_seconds",
    "how far the clock of the settler's machine is ahead of the API server's; 0 within 2 s",
    multiprocess_mode="mostrecent",
)
NODE_CLOCK_OFFSET = Gauge(
    "bursar_node_clock_offset_seconds",
    "the same of the node with GPUs where it differs most; 0 within 5 s",
    multiprocess_mode="mostrecent",
)
TICK_SECONDS = Gauge(
    "bursar_settler_tick_seconds", "duration of the last tick", multiprocess_mode="mostrecent"
)


# All are there from the first scrape on, so that the first of a kind is an increase from 0 for Prometheus.
for _metric, _words in (
    (BUDGET_OBJECTS, ("written", "failed")),
    (LOGINS, ("accepted", "refused", "provider away")),
    (DECISIONS, ("webhook", "extender", "timekeeper")),
    (TICKS, ("written", "nothing new", "database away")),
):
    for _word in _words:
        _metric.labels(_word)


def exposition() -> bytes:
    """All metrics of all processes in Prometheus' text format."""
    if VARIABLE not in os.environ:  # the same condition as in prometheus_client
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
