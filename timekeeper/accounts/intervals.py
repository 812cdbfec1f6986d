"""How often sidecars shall beat and nodes' agents report: seldom enough that all of them together never ask
more than a timekeeper can take."""

# Beats a second that are asked for at most, whatever the cluster's size. A timekeeper on two cores takes as
# many even where each comes on a TLS connection of its own (docs/performance.md), and more where
# connections are kept.
MOST_A_SECOND = 500
MOST_MS = 300_000  # what a sidecar follows; also the most that a silent pod's last beat may be old


def interval_ms(sessions: int, least_ms: int) -> int:
    """The interval to ask of the sidecars of so many sessions: ``least_ms``, the operator's setting, or
    longer.

    A function of what the database holds, so that all workers ask the same. What it costs: where a pod's end
    is proved by nothing and its node was not heard either, its charge ends up to one interval early.
    """
    return max(least_ms, min(MOST_MS, sessions * 1000 // MOST_A_SECOND))


# A report is a transaction of its own, with a row for each of the node's GPU pods.
MOST_REPORTS_A_SECOND = 100
LEAST_REPORT_MS = 15_000
MOST_REPORT_MS = 60_000  # so that what two minutes hold is never the last report but one


def report_interval_ms(nodes: int) -> int:
    """The interval to ask of the agents of so many nodes."""
    return max(LEAST_REPORT_MS, min(MOST_REPORT_MS, nodes * 1000 // MOST_REPORTS_A_SECOND))
