"""``GET /v1/metrics``: the accounts' figures for Prometheus, which name namespaces. `/metrics` names
none."""

from collections.abc import Callable, Iterable, Iterator

from flask import Flask, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from timekeeper.accounts.balance import NEARLY_SPENT_MILLI, Statement
from timekeeper.api.http.parameters import NAMESPACE
from timekeeper.api.http.routes import ApiRoute, Call, Right, serve
from timekeeper.api.http.services import Services
from timekeeper.api.ledger.ledger_reader import AccountReading

ACCOUNT_METRICS = ApiRoute(
    path="/v1/metrics",
    about="for Prometheus: granted, posted, pending, remaining, ratio, warn ratio, exhausted-at, decayed use"
    " and rank of every account, or of that of one namespace",
    right=Right("get", "balances"),
    answers={"text/plain": str},
    parameters=(NAMESPACE,),
)
ROUTES = (ACCOUNT_METRICS,)
GPU_SECOND = 1_000_000  # milli-GPU x milliseconds


def _seconds(amount: int | None) -> float | None:
    return None if amount is None else amount / GPU_SECOND


def _ratio(statement: Statement) -> float | None:
    ratio = statement.balance.ratio_milli
    return None if ratio is None else ratio / 1000


def _warn_ratio(statement: Statement) -> float | None:
    warn_at = statement.in_force.budget.warn_at_milli
    if statement.balance.ratio_milli is None:
        return None
    return (NEARLY_SPENT_MILLI if warn_at is None else warn_at) / 1000


def _exhausted_s(statement: Statement) -> float | None:
    return None if statement.exhausted_ms is None else statement.exhausted_ms / 1000


# name -> (help, value; None: the account has none)
FAMILIES: dict[str, tuple[str, Callable[[Statement], float | None]]] = {
    "granted_gpu_seconds": (
        "Granted in this period; absent without a limit",
        lambda s: _seconds(s.balance.granted),
    ),
    "posted_gpu_seconds": ("Settled charges of this period", lambda s: _seconds(s.balance.posted)),
    "pending_gpu_seconds": ("What open sessions owe", lambda s: _seconds(s.balance.pending)),
    "remaining_gpu_seconds": (
        "What remains; absent without a limit",
        lambda s: _seconds(s.balance.remaining),
    ),
    "used_ratio": ("The used part of the grant, 1 is all; absent without a limit", _ratio),
    "warn_ratio": ("The part from which on people are warned; absent without a limit", _warn_ratio),
    "exhausted_timestamp_seconds": (
        "Unix time at which the account will be out of budget at its present rate; absent if it will not be",
        _exhausted_s,
    ),
    "decayed_gpu_seconds": (
        "What is left of its use by its half-life, with what is reserved; absent while fairShare is off",
        lambda s: None if s.fair is None else _seconds(s.fair.use),
    ),
    "fair_rank": (
        "Whose waiting pods go first, 1 before 2; of groups among siblings; absent while fairShare is off",
        lambda s: None if s.fair is None else s.fair.rank,
    ),
}


def register(app: Flask, services: Services) -> None:
    """Add the route."""

    def figures(call: Call) -> Response:
        namespace = call.get("namespace")
        if namespace:
            accounts, groups = [services.ledger.account_now(namespace)], list[AccountReading]()
        else:
            accounts, groups = services.ledger.all_accounts()
        names = services.ledger.cluster_names()
        text = exposition(accounts, groups, names[-1][1] if names else "")
        return Response(text, content_type=CONTENT_TYPE_LATEST)

    serve(app, services, ACCOUNT_METRICS, figures)


def exposition(accounts: Iterable[AccountReading], groups: Iterable[AccountReading], cluster: str) -> bytes:
    """The accounts' figures in Prometheus' text format. ``cluster``: its name; "": none."""
    registry = CollectorRegistry()
    labels = {"cluster": cluster} if cluster else {}
    registry.register(_Accounts(tuple(accounts), tuple(groups), labels))
    return generate_latest(registry)


class _Accounts(Collector):
    """Of groups no amounts, so that a sum over the series counts nothing twice."""

    def __init__(
        self,
        accounts: tuple[AccountReading, ...],
        groups: tuple[AccountReading, ...],
        labels: dict[str, str],
    ) -> None:
        self._accounts, self._groups, self._labels = accounts, groups, labels

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (about, value_of) in FAMILIES.items():
            family = GaugeMetricFamily(f"bursar_account_{name}", about, labels=["namespace", *self._labels])
            groups = () if name.endswith("_gpu_seconds") else self._groups
            for account in (*self._accounts, *groups):
                value = value_of(account.statement)
                if value is not None:
                    family.add_metric([account.namespace, *self._labels.values()], value)
            yield family
