"""What the budget ConfigMaps say, as immutable values. Amounts in milli-GPU x milliseconds, parts in
thousandths."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal, get_args

from timekeeper.core.accelerators import UnknownAccelerators, accelerator_of, is_extended
from timekeeper.core.budgets.protection import Protection
from timekeeper.core.claims.drivers import DriverRule
from timekeeper.core.dialects import GPU_RESOURCE_PATTERN, may_be_device
from timekeeper.core.names import Mode

GPU_HOUR = 3_600_000_000  # milli-GPU x milliseconds in one GPU-hour

PERIODS = ("hour", "day", "week", "month", "quarter", "year", "once")
ON_EXHAUSTED = ("reclaim", "deprioritize", "evict", "deny", "hold")
# of these: pods that are created over budget wait behind a scheduling gate
HOLDS = ("hold", "evict")
STOPS = ("deny", *HOLDS)  # of these: those that hold Kueue's queues, too
CHARGE_BY = ("dominant", "compute", "memory", "mean")
# in the last two nothing is done to pods, and nothing that their own metadata says of Bursar counts
MODES = get_args(Mode)
OVERUSE = ("observe", "evict")
IDLE = ("off", "reclaim", "evict", "scale")
RESERVE = ("lookahead", "declared")
OVERTIME = ("warn", "evict")
GANGS = ("annotated", "auto")
KUEUE = ("off", "hold")
SWITCH = ("on", "off")
WHOLE_CARDS = ("plugin", "bursar")
RULE_MODES = ("enforce", "warn", "off")


USUAL_SHARE = 1_000, 14 * 86_400_000  # weight in thousandths, and half-life

GROUP = "_group."  # and a name: the subject of a group's account, and the key of its entry
DEFAULTS = "_defaults"  # the key of the entry of namespaces without one
SETTINGS = "_settings"  # the key of the cluster's settings
MODE = (
    "_mode/bursar-mode"  # that of what the ConfigMap ``bursar-mode`` says; no ConfigMap can have such a key
)


def group_key(group: str) -> str:
    """The key of a group's own entry."""
    return GROUP + group


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Budget:
    """The entry of a namespace, of a group (``_group.NAME``) or ``_defaults``."""

    amount: int | None  # None: unlimited
    period: str = "month"
    carry_over_milli: int = 0  # the part of the remainder that is carried over
    on_exhausted: str = "deprioritize"
    warn_at_milli: int | None = None  # None: no warning
    group: str = ""  # "": none
    policy: str = ""  # placement policy; of pods without an annotation; "": the extender's
    mode: Mode | Literal[""] = ""  # "": the cluster's
    placement: str = ""  # "": the cluster's
    whole_cards: str = ""  # "": the cluster's
    sidecar: str = ""  # "": the cluster's; on: no annotation of a pod turns it off
    rules: tuple[tuple[str, str], ...] = ()  # (rule, mode) overrides of the cluster's
    # users and groups whose objects get warnings instead of refusals, in addition to the cluster's
    exempt: tuple[str, ...] = ()
    max_gpus_milli: int | None = None  # what its pods may hold at one time, in milli-GPU; None: any amount
    max_gpus_per_pod_milli: int | None = None  # likewise one pod
    max_waiting: int | None = None  # pods without a node that schedulers see; None: no bound
    price: str = ""  # per weighted GPU-hour, decimal text; "": the cluster's
    later_prices: tuple[tuple[date, str], ...] = ()  # from these days of the budgets' time zone on, in order
    overuse: str = ""  # "": the cluster's
    overuse_grace_ms: int | None = None  # None: the cluster's
    evict_grace_ms: int | None = None  # None: the cluster's
    evict_rate: int | None = None  # None: the cluster's
    idle: str = ""  # "": the cluster's
    # declared: a pod is created with the gate, and reserves its whole declared time before it is released
    reserve: str = "lookahead"
    require_duration: bool = False  # a pod must declare how long it means to run
    overtime: str = ""  # "": the cluster's
    host_share_milli: int | None = None  # None: the cluster's
    # of a group's entry: (namespace, amount) that it passes on anew in each of its periods
    split: tuple[tuple[str, int], ...] = ()
    leads: tuple[str, ...] = ()  # of a group's entry: names of people that its namespaces ask for more
    protect: Protection | None = None  # which pods keep class and cards when the budget is spent
    # auto: the pods of a parallel Job and its like start together, by the fields of these
    gangs: str = "annotated"
    in_budget_class: str = ""  # "": the group's, else the cluster's; so are the next two
    over_budget_class: str = ""
    keeps_classes: bool = False
    kueue: str = "off"  # hold: Kueue's LocalQueues stop where the namespace is over budget
    # of `fairShare`; None: those of `_defaults`, else `USUAL_SHARE`
    share_milli: int | None = None
    half_life_ms: int | None = None
    ended: tuple[str, ...] = ()  # a sentence on each field of an earlier release that it still has


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class BudgetSettings:
    """The entry ``_settings``, each field with its default."""

    time_zone: str = "UTC"
    weights: tuple[tuple[str, int], ...] = ()  # (model, thousandths)
    in_budget_class: str = "gpu-default-priority"  # priority class of pods admitted in budget
    over_budget_class: str = "gpu-lower-priority"  # priority class of pods admitted over budget
    keeps_classes: bool = False  # pods keep their user's class, and get none
    mode: Mode = "enforce"
    placement: str = "on"  # off: pods keep their scheduler, and get no cards of Bursar
    whole_cards: str = (
        "plugin"  # bursar: what pods request of NVIDIA's plugin becomes cards of Bursar's nodes
    )
    rules: tuple[tuple[str, str], ...] = ()
    exempt: tuple[str, ...] = ()
    scheduler_name: str = "bursar-scheduler"
    sidecar: str = "on"
    charge_by: str = "dominant"
    # (named resource, 10^-12 of a GPU for one unit); of any other resource: its part of the card
    unit_costs: tuple[tuple[str, int], ...] = ()
    lookahead_ms: int = 600_000  # how far ahead running sessions reserve
    max_grace_period_ms: int = 600_000
    settle_after_ms: int = 3_600_000  # a session without evidence for this long is posted
    pdb_grace_ms: int = 600_000  # how long a PodDisruptionBudget protects a pod that must leave
    overuse: str = "observe"  # what happens to pods over their memory share
    overuse_grace_ms: int = 600_000
    evict_grace_ms: int = 600_000  # with onExhausted evict: from a pod's notice until it may be evicted
    evict_rate: int = 6  # such evictions of one account in a minute
    idle: str = "off"  # what happens to pods that do not use their cards
    idle_below_milli: int = 50  # a pod that uses less of what it holds is idle
    idle_after_ms: int = 3_600_000  # for how long, before the pod is warned
    idle_grace_ms: int = 900_000  # from the warning on
    overtime: str = "warn"  # what happens to pods past their declared time
    # the rule host-share: how many times its part of a node's CPU and memory a pod may request
    host_share_milli: int = 2_000
    unknown_standing: str = "inBudget"
    # what becomes of pods that request accelerators which no dialect reads
    unknown_accelerators: UnknownAccelerators = "refuse"
    # (resource, model) of devices that no dialect reads and no table has; `NO_DEVICE`: it is none's
    devices: tuple[tuple[str, str], ...] = ()
    # where the reservation pods of KAI are, which no tenant may write
    reservation_namespaces: tuple[str, ...] = ("kai-resource-reservation",)
    drivers: tuple[DriverRule, ...] = ()  # of devices that claims hold; of others, those that are built in
    price: str = ""
    later_prices: tuple[tuple[date, str], ...] = ()
    currency: str = "USD"
    cluster_name: str = ""  # in reports, beside those of other clusters
    fair_share: str = "off"  # on: of waiting pods those go first whose accounts have used least of late
    ended: tuple[str, ...] = ()  # a sentence on each field of an earlier release that it still has

    @property
    def device_models(self) -> dict[str, str]:
        """The model of each resource that `devices` makes an accelerator."""
        return {name: model for name, model in self.devices if model != NO_DEVICE and may_be_device(name)}

    def classes_of(self, budget: Budget, group: Budget | None) -> tuple[str, str, bool]:
        """The priority classes of pods in and over budget, and whether pods keep their user's, up to the
        first: by the namespace's entry, else its group's, else here."""
        entries = (budget, group) if group is not None else (budget,)
        within = next(filter(None, (entry.in_budget_class for entry in entries)), self.in_budget_class)
        lower = next(filter(None, (entry.over_budget_class for entry in entries)), self.over_budget_class)
        said = (e for e in entries if e.keeps_classes or e.in_budget_class or e.over_budget_class)
        keeps = next(said, self).keeps_classes
        return within, within if keeps else lower, keeps


def in_mode(own: Budget | BudgetSettings | None, said: Budget | BudgetSettings | None) -> BudgetSettings:
    """The cluster's settings by its own entry, and with what the ConfigMap ``bursar-mode`` says; None: there
    is none."""
    settings = own if isinstance(own, BudgetSettings) else BudgetSettings()
    if not isinstance(said, BudgetSettings):
        return settings
    placement = "off" if "off" in (settings.placement, said.placement) else "on"
    return replace(settings, mode=said.mode, placement=placement)


NO_DEVICE = "none"  # in `devices`: the resource is no accelerator's
UNLIMITED = Budget(amount=None, on_exhausted="deprioritize")


def places(budget: Budget, settings: BudgetSettings) -> bool:
    """Whether Bursar places the pods of the namespace with this budget."""
    return (budget.placement or settings.placement) != "off"


def takes_whole_cards(budget: Budget, settings: BudgetSettings) -> bool:
    """Whether the namespace's pods get whole cards on Bursar's nodes in place of those of NVIDIA's plugin."""
    return (budget.whole_cards or settings.whole_cards) == "bursar" and places(budget, settings)


def effect_of(on_exhausted: str, is_placed: bool) -> str:
    """What ``onExhausted`` comes to: where Bursar gives out no cards, it takes none for others."""
    return "deprioritize" if on_exhausted == "reclaim" and not is_placed else on_exhausted


def ineffective_fields(
    entry: Budget | BudgetSettings, placement: str = "on", fair_share: str = "on"
) -> tuple[str, ...]:
    """A sentence for each field of the entry that has no effect, or not the requested one. Nothing is ignored
    silently. ``placement``, ``fair_share``: the cluster's, as far as they are known."""
    unplaced = _unplaced_fields(entry) if (entry.placement or placement) == "off" else ()
    has_share = isinstance(entry, Budget) and (entry.share_milli, entry.half_life_ms) != (None, None)
    if has_share and fair_share == "off":
        unplaced = ("fairShare: it has no effect without fairShare: on in _settings", *unplaced)
    own = _dormant_fields(entry) if isinstance(entry, Budget) else _idle_devices(entry)
    return (*entry.ended, *own, *unplaced)


def _idle_devices(settings: BudgetSettings) -> Iterator[str]:
    for name, model in settings.devices:
        is_card = bool(accelerator_of(name) or GPU_RESOURCE_PATTERN.match(name))
        if is_card if model == NO_DEVICE and is_extended(name) else not may_be_device(name):
            yield f"devices: {name} has no effect: it is known already, or counts memory or cores"


_TAKES_NO_CARDS = "where placement is off, Bursar takes no cards for other pods"


def _unplaced_fields(entry: Budget | BudgetSettings) -> tuple[str, ...]:
    """The same of what only Bursar's scheduler does."""
    found = []
    if isinstance(entry, Budget) and entry.on_exhausted == "reclaim":
        found.append(f"onExhausted: reclaim acts as deprioritize: {_TAKES_NO_CARDS}")
    if entry.idle == "reclaim":
        found.append(f"idle: reclaim has no effect: {_TAKES_NO_CARDS}")
    if isinstance(entry, Budget) and entry.policy:
        found.append("policy: it has no effect where placement is off")
    if entry.whole_cards == "bursar":
        found.append("wholeCards: it has no effect where placement is off")
    if isinstance(entry, Budget) and entry.gangs == "auto":
        found.append("gangs: it has no effect where placement is off")
    if isinstance(entry, Budget) and entry.sidecar == "on":
        found.append("sidecar: it has no effect where placement is off")
    return tuple(found)


def _dormant_fields(budget: Budget) -> tuple[str, ...]:
    ineffective = {
        "evictGrace": (
            budget.evict_grace_ms is not None and budget.on_exhausted != "evict",
            "it has no effect without onExhausted: evict",
        ),
        "evictRate": (
            budget.evict_rate is not None and budget.on_exhausted != "evict",
            "it has no effect without onExhausted: evict",
        ),
        "reserve": (
            budget.reserve == "declared" and budget.amount is None and not budget.group,
            "it has no effect where neither the namespace nor a group of it has a limit",
        ),
        "carryOver": (
            budget.carry_over_milli > 0 and budget.amount is None,
            "it has no effect without a limit: of gpuHours: unlimited nothing remains to carry over",
        ),
        "warnAt": (
            budget.warn_at_milli is not None and budget.amount is None,
            "it has no effect without a limit; a group's entry has its own",
        ),
        "protect": (
            budget.protect is not None and budget.amount is None and not budget.group,
            "it has no effect where neither the namespace nor a group of it has a limit",
        ),
        "kueue": (
            budget.kueue == "hold"
            and not budget.group
            and (budget.amount is None or budget.on_exhausted not in STOPS),
            "it has no effect without a limit and onExhausted: hold, deny or evict",
        ),
        "overtime": (
            bool(budget.overtime) and budget.reserve != "declared",
            "it has no effect without reserve: declared",
        ),
    }
    sentences = [f"{field}: {sentence}" for field, (is_set, sentence) in ineffective.items() if is_set]
    return tuple(sentences)
