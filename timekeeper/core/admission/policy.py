"""The values that decisions depend on: a namespace's standing, and the policy of its pods."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from timekeeper.core.accelerators import UnknownAccelerators
from timekeeper.core.budgets.policy import HOLDS
from timekeeper.core.dialects import BY_NAME
from timekeeper.core.dialects.others import claims as of_claims
from timekeeper.core.gangs import SCHEDULERS, foreign_mark
from timekeeper.core.json_values import Json, mapping
from timekeeper.core.names import Mode
from timekeeper.core.request.claims import NO_OBJECTS, KnownClaims
from timekeeper.core.request.host import CardHost
from timekeeper.core.request.request import ParsedRequest, parse_new
from timekeeper.core.standings import NO_CAPS, Caps
from timekeeper.core.values import GPURequest
from timekeeper.core.wire import HeldFor, StandingWord

UnknownStanding = Literal["inBudget", "overBudget"]

DEFAULT_SCHEDULERS = ("", "default-scheduler")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A priority class that Bursar assigns."""

    name: str
    value: int | None  # None: not known yet
    # Known only while the timekeeper sees the class in the cluster: then value and policy are those that the
    # API server uses, and may be written into a pod.
    preemption_policy: str | None = None
    absent: bool = False  # the cluster has no such class; the API server refuses pods that name it


@dataclass(frozen=True, slots=True)
class Standing:
    """A namespace's standing at this moment, with the figures that warnings quote."""

    status: StandingWord
    ratio_milli: int | None = None  # used thousandths of the grant
    warn_at_milli: int | None = None  # users are warned from here on
    by_estimate: bool = False  # over budget only by what this worker admitted since the last table
    on_exhausted: str = "deprioritize"  # the budget's setting
    remaining: int | None = None  # of the account that decides, in milli-GPU x milliseconds
    until_ms: int | None = None  # end of the budget's period, Unix milliseconds; None: it has no end
    hold: HeldFor = ""  # how new pods are held whatever the word is, but for UNKNOWN
    is_protected: bool = False  # of a pod: it is in budget because `protect` selects it
    group: str = ""  # key of the group's budget entry if its account determines the standing


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The settings of the injected container."""

    image: str
    timekeeper_url: str
    ca: str  # PEM text of the CAs that it trusts
    cpu: str = "30m"  # quantity: request and limit
    memory: str = "64Mi"  # quantity: request and limit
    ephemeral_storage: str = "64Mi"  # quantity: request and limit; its log fills at most 50Mi of the node
    log_format: str = "logfmt"  # of its lines on stderr; the webhook's own
    has_own_user: bool = True  # False: the cluster or the pod determines user and group
    pull_secret: str = ""  # by which the kubelet pulls its image, beside the pod's own; "": by these alone


@dataclass(frozen=True, slots=True)
class SidecarImages:
    """The images that a container of the sidecar's name may have when its pod is created, also where none is
    injected now: another replica may have injected it."""

    image: str  # the configured one
    mirrors: tuple[str, ...] = ()  # how other images may begin

    def allow(self, image: object) -> bool:
        """Whether this is the configured image, also by a digest of its repository, which webhooks that check
        signatures write, or one under a mirror."""
        if not isinstance(image, str) or image == self.image or image.startswith(self.mirrors):
            return isinstance(image, str)
        name, _, digest = image.partition("@")
        ours, _, pinned = self.image.partition("@")
        folder, slash, last = ours.rpartition("/")
        names = ours, f"{folder}{slash}{last.partition(':')[0]}"
        return name in names and pinned in ("", digest) and _DIGEST.fullmatch(digest) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """How the pods of one namespace are governed now."""

    known: bool  # False: these are this process's flags, because no table of standings was received yet
    mode: Mode
    scheduler_name: str  # of Bursar's scheduler
    in_budget: PriorityClass
    over_budget: PriorityClass
    unknown_standing: UnknownStanding
    max_grace_s: int
    runtime_class: str  # for pods that name none; empty: none is set
    sidecar: Sidecar | None  # None: none is injected
    sidecar_images: SidecarImages
    requires_sidecar: bool = False  # no annotation of a pod turns it off
    waits_for_sidecar: bool = False  # pods of the namespace have not started for minutes, because it has not
    cluster_default: str = ""  # the class that the cluster gives pods which name none; "": there is none
    keeps_classes: bool = False  # pods keep their class, or none, unless it is above the one in budget
    # False: pods keep their scheduler, and get no cards, variables and sidecar of Bursar
    places: bool = True
    # what pods request of NVIDIA's plugin becomes whole cards of Bursar's nodes
    takes_whole_cards: bool = False
    finds_gangs: bool = False  # the pods of parallel owners start together, by the owners' fields
    rules: Mapping[str, str] = field(default_factory=dict)  # modes that differ from the catalogue's
    exempt: frozenset[str] = frozenset()  # users and groups; a rule that can be relaxed warns them
    other_schedulers: frozenset[str] = frozenset()  # of other systems; pods that these place stay theirs
    caps: Caps = NO_CAPS  # what the namespace's pods may hold at one time
    # the pods reserve their whole declared time; they must declare how long they mean to run
    reserves_declared: bool = False
    requires_duration: bool = False
    # what becomes of pods that request accelerators which no dialect reads
    unknown_accelerators: UnknownAccelerators = "refuse"
    # resource -> whether `devices` in `_settings` makes it an accelerator, or none
    devices: Mapping[str, bool] = field(default_factory=dict)
    card_host: CardHost | None = None  # CPU and memory for each card; None: no node with cards is known
    host_share_milli: int = 2_000  # how many times its part of these a pod may request
    mps_pipes: str = ""  # folder of the MPS daemon's pipes in containers; empty: MPS is off
    gpu_node_taint: str = ""  # key of the taint of GPU nodes; empty: no pod gets a toleration
    # by what claims are read: kept up to date by another thread
    claims: KnownClaims = field(default=NO_OBJECTS, compare=False)
    claim_scheduler: str = DEFAULT_SCHEDULERS[-1]  # the one scheduler that allocates devices to claims

    def parsed(self, pod: Json, namespace: str) -> ParsedRequest:
        """The request of a pod that is about to be admitted to the namespace."""
        return parse_new(pod, self.unknown_accelerators, self.claims, namespace, self.accelerators)

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The resources that `_settings` make accelerators."""
        return tuple(name for name, is_device in self.devices.items() if is_device)

    def class_of(self, word: StandingWord) -> PriorityClass:
        """The class of pods with this standing; in observe mode it is always the one in budget."""
        demoted = word == "OVER_BUDGET" or (word == "UNKNOWN" and self.unknown_standing == "overBudget")
        return self.over_budget if demoted and self.mode == "enforce" else self.in_budget

    def hold_of(self, standing: Standing, by_other: bool = False, is_known: bool = True) -> HeldFor:
        """How a pod that is created with this standing is held. Nothing is held in observe mode, nor while
        the standing is unknown. ``by_other``: another scheduler places it; where there is a cap, the
        timekeeper releases such pods within it. ``is_known``: what it requests is known; else the timekeeper
        releases it once that is so."""
        if self.mode != "enforce":
            return ""
        waits_for_turn = not is_known
        if standing.status != "UNKNOWN":
            if standing.status == "OVER_BUDGET" and standing.on_exhausted in HOLDS:
                return "budget"
            if standing.hold:
                return standing.hold
            waits_for_turn = waits_for_turn or (by_other and self.caps.is_set)
        return "turn" if waits_for_turn else ""


def without_placement(policy: AdmissionPolicy, dialect: str = "", pod: Json | None = None) -> AdmissionPolicy:
    """The policy, and where Bursar places no pod, none of this dialect, or this one on Windows, without what
    only placement on Linux needs."""
    if policy.places and dialect != of_claims.NAME and not (pod and is_of_windows(pod["spec"])):
        return policy
    if policy.sidecar is None and not policy.runtime_class and not policy.mps_pipes:
        return policy
    return replace(policy, sidecar=None, runtime_class="", mps_pipes="")


def is_of_windows(spec: Json) -> bool:
    """Whether the pod runs on Windows, by its own word, else by its selector of nodes."""
    named = mapping(spec.get("os")).get("name")
    selected = mapping(spec.get("nodeSelector"))
    return (named or selected.get("kubernetes.io/os") or selected.get("beta.kubernetes.io/os")) == "windows"


def is_above_budget_class(spec: Json, policy: AdmissionPolicy) -> bool:
    """Whether the user's class is above the one of pods in budget, by the values that the API server resolves
    before any webhook runs; false where either value is not known."""
    own, value, most = spec.get("priorityClassName"), spec.get("priority"), policy.in_budget.value
    theirs = bool(own) and own not in (policy.in_budget.name, policy.over_budget.name, policy.cluster_default)
    return theirs and value is not None and most is not None and value > most


def may_name_its_node(request: GPURequest | None, policy: AdmissionPolicy) -> bool:
    """Whether no scheduler assigns the pod's cards, but the plugin of the node where it runs. ``request`` is
    None where it is not valid."""
    return not policy.places and (request is None or bool(BY_NAME[request.dialect].by_plugin))


def mark_of_its_scheduler(pod: Json, policy: AdmissionPolicy) -> str:
    """What says that the scheduler of another system, which the pod names, starts it with others; ""
    without."""
    ours = (*DEFAULT_SCHEDULERS, policy.scheduler_name)
    return "" if (pod["spec"].get("schedulerName") or "") in ours else foreign_mark(pod, SCHEDULERS)


def scheduler_of(dialect: str, given: str, policy: AdmissionPolicy) -> str:
    """The schedulerName that enforcing gives a pod. A scheduler of another system that may keep such pods
    keeps them; pods that only such a scheduler places are never given to Bursar's, and where Bursar places
    none, none are."""
    speaks = BY_NAME[dialect]
    if not policy.places:
        return given
    if dialect == of_claims.NAME:
        return policy.claim_scheduler
    if given in speaks.schedulers and given in policy.other_schedulers:
        return given
    if not speaks.placed_by_others:
        return policy.scheduler_name
    if not speaks.schedulers:  # any places them
        return given or DEFAULT_SCHEDULERS[-1]
    return speaks.schedulers[0] if given in DEFAULT_SCHEDULERS else given
