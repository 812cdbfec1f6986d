"""What people make in a simulated cluster, at random: nodes, workloads, budgets."""

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from tests import worlds
from tests.story.balances import GROUP, Need
from tests.story.pods import Json, Workload
from tests.timekeeper.oracle_accounts import HOUR

MODES = ("evict", "evict", "hold", "deny", "deprioritize", "reclaim", "reclaim")
CARD = 1_000  # milli-GPU
SIZES = {"A100": 40_000, "T4": 16_000}  # MiB

Limits = tuple[tuple[tuple[str, str], ...], ...]
PERCENT, MEMORY = "bursar.dev/gpu-percent", "bursar.dev/gpu-memory"
# what the containers of a pod ask for: parts of a card, whole cards, memory alone, both, two containers
SHAPES: tuple[Limits, ...] = (
    (((PERCENT, "25"),),),
    (((PERCENT, "50"),),),
    (((PERCENT, "100"),),),
    (((PERCENT, "200"),),),
    (((MEMORY, "6000"),),),
    (((PERCENT, "30"), (MEMORY, "9000")),),
    (((PERCENT, "50"),), ((PERCENT, "25"),)),
)


@dataclass(frozen=True)
class Size:
    """How large a run is, and what it has. ``ending``: the part of the running pods that end by themselves in
    a step; ``scale``: of budgets; ``rate``: evictions a minute; ``changing``: how likely a budget changes in
    a step; ``declaring``: the part of the namespaces whose pods reserve their declared time; ``capping``: of
    the budgets that cap cards; ``amounts``: thousandths of GPU-hours; ``idle``: what happens to idle pods;
    ``observing``: the part of the budgets that only report; ``parts``: cards for each pod; ``lengths``:
    declared times in seconds, 0: none; ``idling``: the part of the workloads that do not always use their
    cards; ``late``: of those that no kubelet ends at their time; ``in_turn``: namespaces have amounts,
    modes and workloads in turn, and not at random; ``grouping``: the part of the namespaces that are in a
    group; ``group_capping``: of the groups that cap cards; ``pod_caps``: in milli-GPU for a pod;
    ``overtime``: what happens to pods past their time; ``graces``: in seconds; ``firsts``: pods that
    kube-scheduler tries for the first time in a step, 0: all."""

    pods: int
    namespaces: int
    groups: tuple[str, ...] = ("lab",)
    ending: float = 0.003
    sub_steps: int = 4
    rate: int = 12
    scale: int = 1
    modes: tuple[str, ...] = MODES
    changing: float = 0.02
    declaring: float = 0.3
    capping: float = 0.2
    amounts: tuple[int | None, ...] = (0, 100, 300, 1_000, 3_000, 20_000, 20_000, None)
    periods: tuple[str, ...] = ("hour", "day")
    observing: float = 0.1
    priorities: tuple[int, ...] = (0, 0, 0, -3)
    shapes: tuple[Limits, ...] = SHAPES
    parts: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)
    lengths: tuple[int, ...] = (0, 120, 600, 1_500)
    idle: tuple[str, ...] = ("", "reclaim", "evict")
    idling: float = 0.3
    late: float = 0.2
    in_turn: bool = False
    grouping: float = 0.4
    group_capping: float = 0.2
    pod_caps: tuple[int, ...] = (250, 750, 1_000)
    overtime: tuple[str, ...] = ("", "evict")
    graces: tuple[int, ...] = (1, 30, 60)
    firsts: int = 0


def small(random: Random) -> Size:
    """5 to 200 pods, mostly few. In every second of the largest runs kube-scheduler is slow."""
    pods = int(5 * 40 ** (random.random() ** 2))
    return Size(pods, random.randint(2, 5), firsts=5 if pods > 100 and pods % 2 else 0)


# runs in which one law has many cases
CALM = Size(
    *(16, 2, ()),
    changing=0.0,
    declaring=0.0,
    capping=0.0,
    group_capping=0.0,
    observing=0.0,
    priorities=(0,),
    shapes=SHAPES[1:3],
    parts=(0.3,),
    lengths=(0,),
    idling=0.0,
    in_turn=True,
)
DEBTORS = replace(CALM, modes=("reclaim",), amounts=(20, 20_000))
# beside debtors a namespace over budget whose pods stay
STAYING = replace(
    CALM,
    pods=24,
    namespaces=3,
    modes=("reclaim", "reclaim", "deprioritize"),
    amounts=(20, 20_000, 20),
)
# nothing but its priority makes a pod leave
LOWERED = replace(DEBTORS, modes=("deprioritize",))
EVICTING = replace(CALM, pods=24, modes=("evict",), amounts=(50, 100), priorities=(0, -3))
CAPPED = replace(
    CALM,
    pods=24,
    namespaces=3,
    groups=("lab",),
    grouping=0.7,
    modes=("deprioritize", "reclaim", "hold"),
    amounts=(20_000, None, 300),
    changing=0.2,
    capping=0.8,
    group_capping=0.8,
    ending=0.03,
    shapes=SHAPES,
)
# a group allows a pod less than some cards take for its memory
GROUPED = replace(
    CAPPED,
    capping=0.0,
    group_capping=1.0,
    grouping=1.0,
    pod_caps=(250,),
    amounts=(20_000, None),
    shapes=SHAPES[:1] + SHAPES[4:5],
)
DECLARED = replace(
    CALM,
    modes=("hold",),
    groups=("lab",),
    amounts=(1_000, 2_000),
    periods=("hour",),
    declaring=1.0,
    lengths=(600, 3_000),
    late=0.5,
    ending=0.02,
)
OVERTIME = replace(
    DECLARED, lengths=(120,), late=1.0, ending=0.0, overtime=("evict",), graces=(30, 60), grouping=0.0
)
# kube-scheduler has more pods to try than it can, and some are held at first
PAUSING = replace(
    CALM,
    pods=100,
    namespaces=4,
    modes=("deprioritize",),
    amounts=(20_000, None),
    declaring=0.5,
    lengths=(600,),
    late=1.0,
    ending=0.05,
    shapes=SHAPES[:1],
    parts=(0.5,),
    in_turn=False,
    firsts=2,
)
IDLE = replace(CALM, idling=1.0, amounts=(20_000, None), idle=("reclaim", "evict"))
LARGE = Size(5_000, 40, ("lab", "hall", "yard"), 0.01, 6, 600, 20)


@dataclass(frozen=True)
class Facts:
    """A budget as its author means it. ``hours``: thousandths of GPU-hours, None: unlimited; caps in
    milli-GPU."""

    hours: int | None
    period: str
    mode: str
    group: str = ""
    observes: bool = False
    most: int | None = None
    most_of_pod: int | None = None
    waiting: int | None = None
    policy: str = ""
    declared: bool = False  # its pods reserve the time that they declare
    requires: bool = False  # they must declare it
    overtime: str = ""
    idle: str = ""

    def text(self) -> str:
        """The entry of the ConfigMap."""
        lines = [
            f"gpuHours: {'unlimited' if self.hours is None else self.hours / 1000}",
            f"period: {self.period}",
            f"onExhausted: {self.mode}",
            f"group: {self.group}" if self.group else "",
            "mode: observe" if self.observes else "",
            f"maxGPUs: {self.most / 1000}" if self.most is not None else "",
            f"maxGPUsPerPod: {self.most_of_pod / 1000}" if self.most_of_pod is not None else "",
            f"maxWaiting: {self.waiting}" if self.waiting is not None else "",
            f"policy: {self.policy}" if self.policy else "",
            "reserve: declared" if self.declared else "",
            "requireDuration: true" if self.requires else "",
            f"overtime: {self.overtime}" if self.overtime else "",
            f"idle: {self.idle}" if self.idle else "",
        ]
        return "\n".join(filter(None, lines))


def books_of(facts: Facts) -> tuple[int | None, str, str]:
    """Amount, period and group, as the oracle takes them."""
    return None if facts.hours is None else facts.hours * HOUR, facts.period, facts.group


def new_facts(random: Random, size: Size, subject: str) -> Facts:
    """A budget of this namespace or group."""
    hours = random.choice(size.amounts)
    if size.in_turn:
        hours = size.amounts[int(subject[-1], 36) % len(size.amounts)]
    is_group = subject.startswith(GROUP)
    hours = None if hours is None else hours * size.scale * (3 if is_group else 1)
    period, mode = random.choice(size.periods), random.choice(size.modes)
    if size.in_turn and not is_group:
        mode = size.modes[int(subject[-1], 36) % len(size.modes)]
    capping = size.group_capping if is_group else size.capping
    most = random.choice((500, 1_000, 2_500)) * size.scale if random.random() < capping else None
    of_pod = random.choice(size.pod_caps) if random.random() < 0.75 * capping else None
    if is_group:
        return Facts(hours, period, mode, most=most, most_of_pod=of_pod)
    return Facts(
        hours,
        period,
        mode,
        random.choice(size.groups) if size.groups and random.random() < size.grouping else "",
        random.random() < size.observing,
        most,
        of_pod,
        random.choice((1, 3)) * size.scale if random.random() < 0.1 else None,
        random.choice(("", "", "spread", "binpack", "fragmentation")),
        random.random() < size.declaring,
        random.random() < size.declaring / 2,
        random.choice(size.overtime),
        random.choice(size.idle),
    )


def new_workloads(random: Random, size: Size) -> list[Workload]:
    """Workloads that together keep so many pods."""
    made: list[Workload] = []
    left = size.pods
    while left > 0:
        replicas = min(left, random.choice((1, 2, 4, 8)) * size.scale)
        number = len(made) if size.in_turn else random.randrange(1_000)
        namespace = f"team-{number % size.namespaces}"
        made.append(
            Workload(
                f"w{len(made)}",
                namespace,
                random.choice(size.shapes),
                random.choice(size.priorities),
                replicas,
                random.random() < 0.25,
                random.choice(size.graces),
                random.choice(size.lengths),
                random.random() < size.late,
                random.random() < size.idling,
            )
        )
        left -= replicas
    return made


@cache
def needs_of(limits: Limits) -> tuple[Need, ...]:
    """What the containers ask for, as the oracle reads it."""
    found = []
    for each in limits:
        given = dict(each)
        percent = int(given.get(PERCENT, 0))
        cards = max(1, percent // 100)
        found.append(Need(cards, 10 * percent // cards, int(given.get(MEMORY, 0)) // cards))
    return tuple(found)


@cache
def most_milli(limits: Limits, sizes: frozenset[int]) -> int:
    """The most that a pod can hold on cards of these sizes in MiB, unweighted."""
    return max(
        sum(n.cards * max(n.share, -(-1000 * n.of(size) // size)) for n in needs_of(limits)) for size in sizes
    )


def new_nodes(random: Random, size: Size) -> tuple[list[Json], dict[str, Json]]:
    """Nodes whose cards hold a part of the pods; and each one's cards by UUID, for the oracle."""
    cards = max(2, int(size.pods * random.choice(size.parts)))
    raws, known = list[Json](), dict[str, Json]()
    while cards > 0:
        count, model = min(cards, random.choice((1, 2, 4, 8))), random.choice(tuple(SIZES))
        name = f"n{len(raws)}"
        listed: list[Json] = [
            worlds.card(at, SIZES[model], model, uuid=f"GPU-{name}-{at}") for at in range(count)
        ]
        annotations = {"bursar.dev/inventory": worlds.inventory(*listed)}
        metadata: dict[str, Any] = {"name": name, "annotations": annotations}
        raws.append({"metadata": metadata, "status": {}})
        known[name] = {each["uuid"]: each for each in listed}
        cards -= count
    return raws, known
