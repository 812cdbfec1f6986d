"""What the budget ConfigMaps say, as immutable values. Amounts in milli-GPU x milliseconds, parts in
thousandths."""

from dataclasses import dataclass

GPU_HOUR = 3_600_000_000  # milli-GPU x milliseconds in one GPU-hour

PERIODS = ("hour", "day", "week", "month", "quarter", "year", "once")
ON_EXHAUSTED = ("reclaim", "deprioritize", "evict", "deny", "hold")
BUILT_ON_EXHAUSTED = ("reclaim", "deprioritize", "deny")  # the others act as deprioritize, and say so
CHARGE_BY = ("dominant", "compute", "memory", "mean")
CHARGE_FROM = ("running", "bound")
MODES = ("enforce", "observe")
OVERUSE = ("observe", "evict")
SIDECARS = ("on", "container", "off")
RULE_MODES = ("enforce", "warn", "off")


@dataclass(frozen=True, slots=True)
class Budget:
    """One entry: of a namespace, a group (``_group.NAME``) or ``_defaults``. ``amount`` None: unlimited.

    ``carry_over_milli``: the part of what is left at a period's end that moves on. ``group`` empty: in none.
    ``price``: of a weighted GPU-hour, decimal text; empty: the cluster's. ``mode`` empty: the cluster's.
    ``rules``: (rule, mode) where the namespace differs from the cluster.
    ``exempt``: users and groups, beside the cluster's, whose objects are warned of and not refused.
    ``overuse`` empty, ``overuse_grace_ms`` None: the cluster's.
    """

    amount: int | None
    period: str = "month"
    carry_over_milli: int = 0
    on_exhausted: str = "reclaim"
    warn_at_milli: int | None = None
    group: str = ""
    policy: str = ""
    mode: str = ""
    rules: tuple[tuple[str, str], ...] = ()
    exempt: tuple[str, ...] = ()
    max_gpus: int | None = None
    price: str = ""
    overuse: str = ""
    overuse_grace_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """The entry ``_settings``, each field with its default."""

    time_zone: str = "UTC"
    weights: tuple[tuple[str, int], ...] = ()
    in_budget_class: str = "gpu-default-priority"
    over_budget_class: str = "gpu-lower-priority"
    mode: str = "enforce"
    rules: tuple[tuple[str, str], ...] = ()
    exempt: tuple[str, ...] = ()
    scheduler_name: str = "bursar-scheduler"
    sidecar: str = "on"
    charge_by: str = "dominant"
    charge_from: str = "running"
    lookahead_ms: int = 600_000
    start_grace_ms: int = 600_000
    max_grace_period_ms: int = 600_000
    settle_after_ms: int = 3_600_000
    pdb_grace_ms: int = 600_000
    overuse: str = "observe"
    overuse_grace_ms: int = 600_000
    unknown_standing: str = "inBudget"
    price: str = ""
    currency: str = "USD"


UNLIMITED = Budget(amount=None, on_exhausted="deprioritize")


def ineffective_fields(entry: Budget | BudgetSettings, key: str = "") -> tuple[str, ...]:
    """A sentence for each thing that the entry under ``key`` asks and that is not done: nothing is accepted
    in silence."""
    return () if isinstance(entry, BudgetSettings) else _not_built_of_budget(entry, key)


def _not_built_of_budget(budget: Budget, key: str) -> tuple[str, ...]:
    asked = {
        "onExhausted": (
            budget.on_exhausted not in BUILT_ON_EXHAUSTED and budget.amount is not None,
            f"not built yet, {budget.on_exhausted} acts as deprioritize",
        ),
        "maxGPUs": (budget.max_gpus is not None, "not built yet, it has no effect"),
        "carryOver": (
            budget.carry_over_milli > 0 and budget.period == "once",
            "it has no effect where the period is once",
        ),
    }
    of_a_group = {
        "mode": bool(budget.mode),
        "rules": bool(budget.rules),
        "exempt": bool(budget.exempt),
        "price": bool(budget.price),
        "policy": bool(budget.policy),
        "overuse": bool(budget.overuse),
        "overuseGrace": budget.overuse_grace_ms is not None,
    }
    sentences = [f"{field}: {sentence}" for field, (is_asked, sentence) in asked.items() if is_asked]
    if key.startswith("_group."):
        sentences += [
            f"{field}: it has no effect in a group's entry"
            for field, is_asked in of_a_group.items()
            if is_asked
        ]
    return tuple(sentences)
