"""Budget entries for namespaces that do not exist: most often a mistyped name."""

from timekeeper import metrics
from timekeeper.settler.budget_entries import BudgetNotice
from timekeeper.settler.cluster.cluster_state import ClusterState


class MissingNamespaces:
    """Reports each such entry once, until its namespace exists or the entry is removed."""

    def __init__(self) -> None:
        self._compared: tuple[int, int] | None = None
        self._reported = frozenset[str]()

    def notices(self, cluster: ClusterState) -> tuple[BudgetNotice, ...]:
        """Notices on entries that have not been reported; none before the namespaces are listed."""
        versions = cluster.budgets_version, cluster.existing_version
        if "namespaces" not in cluster.listed_sources or versions == self._compared:
            return ()
        self._compared = versions
        entries = {key: each for each in cluster.config_maps.values() for key, _ in each.data}
        missing = frozenset(
            key for key in entries if not key.startswith("_") and key not in cluster.existing_namespaces
        )
        fresh, self._reported = missing - self._reported, missing
        metrics.MISSING_NAMESPACES.set(len(missing))
        return tuple(BudgetNotice(entries[key], "MissingNamespace", _sentence(key)) for key in sorted(fresh))


def _sentence(key: str) -> str:
    return f"{key}: namespace {key} does not exist. The budget applies once it does; is the name right?"
