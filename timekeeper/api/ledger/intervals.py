"""How often sidecars send heartbeats and node agents send reports: seldom enough that a timekeeper can serve
all of them."""

# Heartbeats a second at most, whatever the cluster's size. A timekeeper on two cores serves this many even if
# each uses a TLS connection of its own (docs/performance.md), and more on kept connections.
MAX_A_SECOND = 500
MAX_MS = 300_000  # the longest interval that a sidecar accepts; also the greatest age of a last heartbeat


def interval_ms(sessions: int, least_ms: int) -> int:
    """The interval for the sidecars of this number of sessions: ``least_ms`` (the operator's setting) or
    longer.

    A function of the database's content, so all workers return the same. The cost: if nothing proves a pod's
    end and its node was not observed either, its charge ends up to one interval early.
    """
    return max(least_ms, min(MAX_MS, sessions * 1000 // MAX_A_SECOND))


# Each report is a transaction, with a row for each GPU pod of the node.
MAX_REPORTS_A_SECOND = 100
LEAST_REPORT_MS = 15_000
MAX_REPORT_MS = 60_000  # figures expire after two minutes: at least one newer report arrives before that


def report_interval_ms(nodes: int) -> int:
    """The interval for the agents of this number of nodes."""
    return max(LEAST_REPORT_MS, min(MAX_REPORT_MS, nodes * 1000 // MAX_REPORTS_A_SECOND))
