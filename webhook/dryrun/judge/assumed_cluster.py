"""The cluster that a dry run assumes: policy and standing of each namespace."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from timekeeper.core import names
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Standing
from timekeeper.core.admission.table import (
    StandingsEntry,
    StandingsSettings,
    StandingsTable,
    effective_policy,
)
from timekeeper.core.budgets.policy import (
    MODES,
    UNLIMITED,
    Budget,
    BudgetSettings,
    group_key,
    places,
    takes_whole_cards,
)
from timekeeper.core.budgets.reader import ParsedBudgets
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.names import Mode
from timekeeper.core.request.claims import known_by, namespaced
from timekeeper.core.request.device_classes import ClassParameters, DeviceClass, parameters
from timekeeper.core.request.host import CardHost
from timekeeper.core.standings import Cap, Caps
from timekeeper.core.wire import StandingWord
from webhook.admission import cel
from webhook.admission.workloads import TemplatePath

# the API server creates these
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}

# those that the drivers' own charts make
_OF_NVIDIA = ("gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com")
_CHANNELS = ("compute-domain-daemon.nvidia.com", "compute-domain-default-channel.nvidia.com")
VENDORS_CLASSES = (
    *(DeviceClass(name, "gpu.nvidia.com") for name in _OF_NVIDIA),
    *(DeviceClass(name, "compute-domain.nvidia.com") for name in _CHANNELS),
    *(DeviceClass(name, name) for name in ("gpu.amd.com", "gpu.intel.com")),
)
NO_BUDGETS = ParsedBudgets({}, None, (), {})
FILLED_IN = "(the CA bundle, filled in at admission)"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedCluster:
    """A cluster as far as flags and files describe it."""

    flags: AdmissionPolicy  # of the webhook's own settings
    table: StandingsTable | None = None  # from the budgets
    mode: Mode | None = None  # overrides the mode of the budgets
    standing: StandingWord | None = None  # of every namespace; None: by the budgets, unlimited without one
    namespace: str = "default"  # of objects without one
    template_paths: tuple[TemplatePath, ...] = ()  # besides the built-in ones
    classes: Mapping[str, int] = field(default_factory=dict)  # values of priority classes
    budgets: ParsedBudgets = NO_BUDGETS
    card_host: CardHost | None = None  # CPU and memory for each card, of the nodes that are known
    mode_labels: Mapping[str, Mode] = field(default_factory=dict)  # by namespace
    exempt: frozenset[str] = frozenset()  # namespaces whose label excludes them from admission

    def with_claims(self, objects: Iterable[Json], supposed: Iterable[DeviceClass] = ()) -> "AssumedCluster":
        """The same with these claims, templates, DeviceClasses and their settings. ``supposed``: further
        classes."""
        rules = self.budgets.in_force.drivers
        drivers = {rule.driver: rule.has_gpus for rule in rules}
        claims = known_by(objects, self.namespace, drivers, supposed)
        return replace(self, flags=replace(self.flags, claims=claims))

    def with_namespaces(self, namespaces: Iterable[Json]) -> "AssumedCluster":
        """The same with the labels of these namespaces."""
        labels = {
            namespaced(raw)[1]: mapping(mapping(raw.get("metadata")).get("labels")) for raw in namespaces
        }
        words = {name: given.get(names.MODE_LABEL) for name, given in labels.items()}
        return replace(
            self,
            mode_labels={name: _mode(str(word)) for name, word in words.items() if word in MODES},
            exempt=frozenset(name for name, given in labels.items() if given.get(cel.EXEMPT) == "true"),
        )

    @property
    def device_classes(self) -> ClassParameters:
        """What the API server's policies know of the DeviceClasses."""
        known = self.flags.claims
        return parameters(known.classes.values(), known.settings)

    def policy_for(self, namespace: str) -> AdmissionPolicy:
        """The policy of the namespace's pods."""
        policy = effective_policy(self.flags, self.table, True, namespace)
        own = self.table.namespaces.get(namespace) if self.table else None
        label = None if own is not None and own.mode else self.mode_labels.get(namespace)
        return replace(policy, known=True, mode=self.mode or label or policy.mode, card_host=self.card_host)

    def standing_of(self, namespace: str) -> Standing:
        """The namespace's standing."""
        if self.table is None:
            return Standing(self.standing or "IN_BUDGET")
        budgeted = self.table.entry_of(namespace).standing
        return replace(budgeted, status=self.standing or budgeted.status)

    def class_value(self, name: str) -> int | None:
        """The value of a priority class; None where it is not known."""
        known = {each.name: each.value for each in (self.flags.in_budget, self.flags.over_budget)}
        return {**_SYSTEM_CLASSES, **known, **self.classes}.get(name)


def flags_of(policy: AdmissionPolicy) -> AdmissionPolicy:
    """The policy of a webhook's own settings, with a placeholder for the sidecar's CA."""
    sidecar = policy.sidecar
    if sidecar is not None:
        sidecar = replace(sidecar, ca=FILLED_IN)
    return replace(policy, known=True, sidecar=sidecar)


def table_of(reading: ParsedBudgets) -> StandingsTable:
    """The table of standings for these budgets while nothing is used."""
    settings = reading.in_force
    default = reading.budgets.get("_defaults")
    budgets = reading.budgets
    own = {name: _entry(own, budgets, settings) for name, own in budgets.items() if not name.startswith("_")}
    return StandingsTable(
        etag="",
        generated_ms=0,
        settings=_settings(settings),
        default=_entry(default or UNLIMITED, budgets, settings),
        namespaces=own,
        read_ms=0,
        confirmed_ms=0,
    )


def _settings(settings: BudgetSettings) -> StandingsSettings:
    return StandingsSettings(
        mode=_mode(settings.mode),
        scheduler_name=settings.scheduler_name,
        sidecar=settings.sidecar != "off",
        in_budget=PriorityClass(settings.in_budget_class, None),
        over_budget=PriorityClass(settings.over_budget_class, None),
        unknown_standing="overBudget" if settings.unknown_standing == "overBudget" else "inBudget",
        max_grace_s=settings.max_grace_period_ms // 1000,
        lookahead_ms=settings.lookahead_ms,
        unknown_accelerators=settings.unknown_accelerators,
        devices={name: name in settings.device_models for name, _ in settings.devices},
        rules=dict(settings.rules),
        exempt=frozenset(settings.exempt),
        host_share_milli=settings.host_share_milli,
    )


def _entry(budget: Budget, budgets: Mapping[str, Budget], settings: BudgetSettings) -> StandingsEntry:
    group = budgets.get(group_key(budget.group)) if budget.group else None
    within, lower, keeps = settings.classes_of(budget, group)
    standing = Standing(
        "UNLIMITED" if budget.amount is None else "IN_BUDGET",
        on_exhausted=budget.on_exhausted,
        hold="budget" if budget.reserve == "declared" else "",
    )
    return StandingsEntry(
        standing=standing,
        remaining=budget.amount,
        valid_until_ms=None,
        mode=_mode(budget.mode) if budget.mode else None,
        rules=dict(budget.rules),
        exempt=frozenset(budget.exempt),
        reserves_declared=budget.reserve == "declared",
        requires_duration=budget.require_duration,
        host_share_milli=budget.host_share_milli,
        caps=Caps(_cap(budget), budget.group, _cap(group or UNLIMITED)),
        places=places(budget, settings),
        takes_whole_cards=takes_whole_cards(budget, settings),
        finds_gangs=budget.gangs == "auto" and places(budget, settings),
        sidecar=budget.sidecar == "on" if budget.sidecar else None,
        classes=(PriorityClass(within, None), PriorityClass(lower, None), keeps),
    )


def _cap(budget: Budget) -> Cap:
    return Cap(budget.max_gpus_milli, budget.max_gpus_per_pod_milli)


def _mode(word: str) -> Mode:
    return "observe" if word == "observe" else "meter" if word == "meter" else "enforce"
