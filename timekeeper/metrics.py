"""The timekeeper's own metrics. No label names a tenant.

Settler and workers are separate processes: if ``PROMETHEUS_MULTIPROC_DIR`` is set (the supervisor sets it),
each writes files there, and a scrape sums them.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import REGISTRY

from timekeeper.runtime.metrics_folder import VARIABLE

HEARTBEATS = Counter("bursar_heartbeats", "Heartbeats by outcome", ["outcome"])
NODE_REPORTS = Counter("bursar_nodeusage_reports", "Reports of node agents by outcome", ["outcome"])
NODE_STRAYS = Counter(
    "bursar_nodeusage_strays", "Pods left out of reports of node agents, by reason", ["reason"]
)
OVERUSE_EVICTIONS = Counter(
    "bursar_overuse_evictions",
    "Attempts to evict a pod over its memory share, by result",
    ["result"],
)
OVERUSE_HELD_BACK = Gauge(
    "bursar_overuse_evictions_held_back",
    "Pods that are due for eviction for overuse and wait because of the bounds on evictions",
    multiprocess_mode="mostrecent",
)
BUDGET_OBJECTS = Counter("bursar_budget_objects", "Writes of GPUBudget objects, by result", ["result"])
DECISIONS = Counter("bursar_decisions", "Decisions recorded, by the role that decided", ["source"])
DECISIONS_DROPPED = Counter(
    "bursar_decisions_dropped", "The settler's own decisions that were lost because too many waited"
)
HELD = Gauge(
    "bursar_held_pods", "Pods that wait behind the gate bursar.dev/budget", multiprocess_mode="mostrecent"
)
RELEASES = Counter("bursar_releases", "Attempts to release a held pod, by result", ["result"])
BUDGET_EVICTIONS = Counter(
    "bursar_budget_evictions",
    "Attempts to evict a pod of an exhausted account with onExhausted: evict, by result",
    ["result"],
)
BUDGET_EVICTION_NOTICES = Gauge(
    "bursar_budget_eviction_notices",
    "Pods with a notice that they are evicted because an account is exhausted",
    multiprocess_mode="mostrecent",
)
IDLE_EVICTIONS = Counter("bursar_idle_evictions", "Attempts to evict an idle pod, by result", ["result"])
OVERTIME_EVICTIONS = Counter(
    "bursar_overtime_evictions", "Attempts to evict a pod past its declared time, by result", ["result"]
)
OVERTIME_PODS = Gauge(
    "bursar_overtime_pods", "Pods that hold cards past their declared time", multiprocess_mode="mostrecent"
)
IDLE_PODS = Gauge(
    "bursar_idle_pods",
    "Pods that use no card of theirs, by their nodes' reports",
    multiprocess_mode="mostrecent",
)
NOTIFICATIONS = Counter(
    "bursar_notifications", "Notifications sent and given up, and posts that failed", ["result"]
)
REQUESTS = Counter("bursar_requests", "Answers by route and status", ["route", "status"])
SECONDS = Histogram("bursar_request_seconds", "Time to answer, by route", ["route"])
REVIEWS = Counter("bursar_reviews", "Reviews by the API server, by kind and outcome", ["kind", "outcome"])

TICKS = Counter("bursar_settler_ticks", "Ticks of the settler by outcome", ["outcome"])
POSTINGS = Counter("bursar_postings", "Postings written, by kind", ["kind"])
SESSIONS_OPENED = Counter("bursar_sessions_opened", "Sessions opened, by the source of their rate", ["by"])
UNREADABLE_PODS = Counter("bursar_unreadable_pods", "Pods whose GPU request cannot be charged")
LOST_ENDS = Counter("bursar_lost_ends", "Ends of pods lost because the database was unreachable for too long")
WRONG_SUMS = Counter("bursar_wrong_sums", "Sums of the settler that differed from those of the sessions")
WATCH_FAILURES = Counter("bursar_watch_failures", "Failed calls of a watch", ["source"])
EVIDENCE = Gauge("bursar_open_sessions", "Sessions that are not settled", multiprocess_mode="mostrecent")
STANDINGS = Gauge("bursar_standings", "Namespaces by standing", ["standing"], multiprocess_mode="mostrecent")
BROKEN = Gauge("bursar_broken_budgets", "Budget entries that are wrong now", multiprocess_mode="mostrecent")
MISSING_NAMESPACES = Gauge(
    "bursar_budgets_without_namespace",
    "Budget entries whose namespace does not exist",
    multiprocess_mode="mostrecent",
)
MODE = Gauge("bursar_mode", "1 for the cluster's mode of admission", ["mode"], multiprocess_mode="mostrecent")
GRACE_POLICIES = Gauge(
    "bursar_grace_policies_differing",
    "Policies on grace periods whose figure is not maxGracePeriod",
    multiprocess_mode="mostrecent",
)
DATABASE = Gauge("bursar_database", "1 for the kind of database", ["kind"], multiprocess_mode="mostrecent")
LEADS = Gauge(
    "bursar_settler_leads", "1 where this replica settles, 0 where it follows", multiprocess_mode="mostrecent"
)
TERM = Gauge(
    "bursar_settler_term", "The epoch in which this replica settled last", multiprocess_mode="mostrecent"
)
CLOCK_OFFSET = Gauge(
    "bursar_clock_offset_seconds",
    "How far this machine's clock is ahead of the API server's; 0 within 2 s",
    multiprocess_mode="mostrecent",
)
TICK_SECONDS = Gauge(
    "bursar_settler_tick_seconds", "How long the last tick took", multiprocess_mode="mostrecent"
)


# All are there from the first scrape on, so that the first of a kind is an increase from 0 for Prometheus.
for _metric, _words in (
    (BUDGET_OBJECTS, ("written", "failed")),
    (DECISIONS, ("webhook", "extender", "timekeeper")),
    (NOTIFICATIONS, ("sent", "given up", "failed")),
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
