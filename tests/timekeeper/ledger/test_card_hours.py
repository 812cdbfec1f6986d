"""Cards that are held, free and waited for, by model and hour, beside an own count of a city in all modes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from random import Random
from threading import Event, Thread

import pytest

from deploy.local.limits import LONGEST_S
from tests import worlds
from tests.support.waiting import eventually
from tests.timekeeper.claims import DRIVER, _selector, allocated, device_claim, device_slice
from tests.timekeeper.faults import Fuse, KilledError
from tests.timekeeper.ledger.test_claims import pod as claiming
from tests.timekeeper.ledger.test_metered import GPU, HAMI, PLAIN, SHARED, SINGLE, WHOLE, holding
from tests.timekeeper.ledger.test_reservation_pods import at, fraction, reservation
from tests.timekeeper.ledger.test_reserved_cards import reserved
from tests.timekeeper.worlds import HOUR, MINUTE, SECOND, T0, Json, Town, budgets, gpu_pod, lease, node
from timekeeper.edge.reflector import WatchFailed
from timekeeper.settler.cluster.cluster_state import WatchUpdate
from timekeeper.store.engine.engine import ConflictError, UnavailableError
from timekeeper.store.fencing import EpochOverError
from timekeeper.store.retention import forget_old

BOTH_DATABASES = "hours are added up by SQL"
STEP = 30 * SECOND  # cards are counted so often
H100, NVIDIA = "NVIDIA H100 80GB HBM3", "gpu.nvidia.com"
MIG_2G, A100_40 = 286, "NVIDIA-A100-SXM4-40GB"  # two of seven slices, in thousandths, rounded up

Rows = dict[tuple[int, str], tuple[int, int, int, int]]


def stored(town: Town) -> Rows:
    """Hour and model -> known time, held, free, waiting."""
    with town.store.reading() as connection:
        rows = connection.exec_driver_sql(
            "SELECT hour_ms, model, known_ms, held, free, waiting FROM card_hours"
        )
        return {(row[0], row[1]): (row[2], row[3], row[4], row[5]) for row in rows}


def hours(town: Town, query: str = "") -> list[Json]:
    answer = town.get(f"/v1/cards{query}")
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.get_json()["hours"]
    return found


def goes_on(town: Town, ms: int) -> None:
    for _ in range(ms // STEP):
        town.advance(STEP)
        town.writer.step()


def sick() -> Json:
    """Of three cards one is unhealthy, and one is cordoned."""
    cards = worlds.inventory(worlds.card(0, healthy=False), worlds.card(1), worlds.card(2))
    noted = {"bursar.dev/inventory": cards, "bursar.dev/cordoned-cards": "GPU-1"}
    return {"metadata": {"name": "sick", "annotations": noted}}


def cordoned() -> Json:
    return node("cordoned", 2) | {"spec": {"unschedulable": True}}


def not_ready() -> Json:
    return node("silent", 2) | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


def instances() -> Json:
    """Two MIG instances of one card, for claims."""
    said = {"type": "mig", "profile": "3g.40gb", "productName": H100, "parentUUID": "GPU-9"}
    attributes = {name: {"string": text} for name, text in said.items()}
    return device_slice("mig-0", "mig-1", node="mig", driver=NVIDIA, attributes=attributes)


# model -> thousandths of whole cards that take pods, by node; added up by hand
OFFERED = {
    ("n1", "A100"): 4_000,
    ("sick", "A100"): 1_000,
    ("single", A100_40): 6 * MIG_2G,
    ("shared", "Tesla-T4"): 2_000,
    ("hami", "NVIDIA-Tesla V100"): 2_000,
    ("plain", ""): 2_000,
    ("dra", "H200"): 2_000,
    ("mig", H100): 2 * 429,
}


@dataclass(frozen=True)
class Tenant:
    """A pod, or a claim with its pod, as a test makes it. ``milli``: what it holds; ``asks``: what of whole
    cards it waits for, and of which model; ``is_usable``: of cards that others could get."""

    name: str
    node: str
    model: str
    milli: int
    asks: tuple[str, int] | None
    _: KW_ONLY
    card: int = 0
    limits: Json | None = field(default=None, compare=False)
    device: tuple[str, str] | None = None
    is_usable: bool = True
    namespace: str = "team-a"

    def raw(self, life: int, on: bool, ended_ms: int | None = None) -> Json:
        name = f"{self.name}-{life}"
        where = {"node": self.node if on else "", "started_ms": T0 if on else None, "ended_ms": ended_ms}
        if self.device is not None:
            body = claiming(name, ended_ms=ended_ms, on=self.node if on else "")
            body["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": f"c-{name}"}]
        elif self.limits is None:
            body = gpu_pod(name, percent=self.milli // 10, card=self.card, **where)  # type: ignore[arg-type]
        else:
            body = holding(self.limits, self.node, name)
            body = body | {"status": gpu_pod(name, **where)["status"]}  # type: ignore[arg-type]
            if not on:
                del body["spec"]["nodeName"]
        body["metadata"]["namespace"] = self.namespace
        return body


TENANTS = [
    *(Tenant(f"whole-{at}", "n1", "A100", 1_000, ("", 1_000), card=at) for at in range(3)),
    *(Tenant(f"part-{at}", "n1", "A100", 300, ("", 300), card=3) for at in range(3)),
    Tenant("observed", "n1", "A100", 100, ("", 100), card=3, namespace="observed"),
    Tenant("on-unhealthy", "sick", "A100", 1_000, None, card=0, is_usable=False),
    Tenant("on-cordoned", "sick", "A100", 500, None, card=1, is_usable=False),
    Tenant("beside-them", "sick", "A100", 400, None, card=2),
    Tenant("of-a-closed-node", "cordoned", "A100", 1_000, None, card=0, is_usable=False),
    *(
        Tenant(f"mig-{at}", "single", A100_40, MIG_2G, ("", 1_000), limits={GPU: "1"}, namespace="metered")
        for at in range(6)
    ),
    *(
        Tenant(
            f"replica-{at}", "shared", "Tesla-T4", 250, ("", 1_000), limits={GPU: "1"}, namespace="metered"
        )
        for at in range(5)
    ),
    Tenant(
        *("memory", "hami", "NVIDIA-Tesla V100", 250, None),
        limits={GPU: "1", "nvidia.com/gpumem": "8192"},
        namespace="metered",
    ),
    Tenant("unknown", "plain", "", 1_000, ("", 1_000), limits={GPU: "1"}, namespace="metered"),
    *(Tenant(f"claim-{at}", "dra", "H200", 1_000, None, device=(DRIVER, f"gpu-{at}")) for at in range(2)),
    *(Tenant(f"instance-{at}", "mig", H100, 429, None, device=(NVIDIA, f"mig-{at}")) for at in range(2)),
]


class City:
    """The town with these nodes, and an own count of it."""

    def __init__(self, town: Town) -> None:
        self.town, self.held, self.waiting = town, set[Tenant](), set[Tenant]()
        self.lives = Counter[Tenant]()
        self.expected: dict[tuple[int, str], Counter[str]] = {}
        names = {"single": SINGLE, "shared": SHARED, "hami": HAMI, "plain": PLAIN}
        of_claims = (node(name, 0) for name in ("dra", "mig"))
        nodes = [node("n1", 4), sick(), cordoned(), not_ready(), *of_claims, *names.values()]
        entries = budgets(metered="gpuHours: 100\nmode: meter", observed="gpuHours: 100\nmode: observe")
        slices = device_slice("gpu-0", "gpu-1", node="dra", model="H200"), instances()
        town.begin(
            *(("nodes", raw) for raw in nodes),
            *(("resourceslices", raw) for raw in slices),
            ("resourceclaims", device_claim("none")),
            ("leases", lease(T0)),
            ("configmaps", entries),
        )
        town.writer.step()

    def step(self, random: Random) -> None:
        """The time of one count: then a few pods come, are bound, or end."""
        for hour, model, name, milli in self.counted():
            of_hour = self.expected.setdefault((hour, model), Counter({"known": 0}))
            of_hour["known"] += STEP if name == "known" else 0
            of_hour[name] += milli * STEP if name != "known" else 0
        self.town.clock.turn(STEP)
        for tenant in random.sample(TENANTS, random.randrange(4)):
            self.move(tenant)
        for name in ("n1", "sick", "cordoned", *{where for where, _ in OFFERED}):
            self.town.hear("leases", lease(self.town.clock(), name))
        self.town.quiet()
        self.town.quiet("resourceclaims")
        self.town.tick()
        self.town.writer.step()

    def move(self, tenant: Tenant) -> None:
        now, device, life = self.town.clock(), tenant.device, self.lives[tenant]
        claim = f"c-{tenant.name}-{life}"
        if tenant in self.held:
            self.held.remove(tenant)
            self.lives[tenant] += 1
            ended = tenant.raw(life, True, now)
            self.town.hear("pods", ended)
            self.town.hear("pods", ended, deleted=True)
            if device:
                self.town.hear("resourceclaims", device_claim(claim, namespace=tenant.namespace))
        elif tenant in self.waiting or tenant.asks is None:
            self.waiting.discard(tenant)
            self.held.add(tenant)
            self.town.hear("pods", tenant.raw(life, True))
            if device:
                given = allocated(device[1], pool=tenant.node, driver=device[0])
                pods = (f"uid-{tenant.name}-{life}",)
                raw = device_claim(claim, given, at_ms=now, pods=pods)
                raw["status"]["allocation"]["nodeSelector"] = _selector(tenant.node)
                self.town.hear("resourceclaims", raw)
        else:
            self.waiting.add(tenant)
            self.town.hear("pods", tenant.raw(life, False))

    def counted(self) -> Iterator[tuple[int, str, str, int]]:
        """Hour, model, what, and thousandths of cards."""
        hour = self.town.clock() // HOUR * HOUR
        free = Counter(OFFERED)
        for tenant in self.held:
            yield hour, tenant.model, "held", tenant.milli
            free[tenant.node, tenant.model] -= tenant.milli if tenant.is_usable else 0
        for (_, model), milli in free.items():
            yield hour, model, "free", milli
            yield hour, model, "known", 0
        for tenant in self.waiting:
            assert tenant.asks
            yield hour, tenant.asks[0], "waiting", tenant.asks[1]


@pytest.mark.parametrize("seed", range(2))
def test_hours_of_a_city_in_all_modes_are_those_of_an_own_count(town: Town, seed: int) -> None:
    city, random = City(town), Random(seed)

    for _ in range(2 * HOUR // STEP):
        city.step(random)

    found = stored(town)
    models = {model for _, model in found}
    assert models == {model for _, model in OFFERED}
    own = {
        key: (HOUR, *(of_hour[name] for name in ("held", "free", "waiting")))
        for key, of_hour in city.expected.items()
    }
    assert {key: row for key, row in found.items() if key[0] < T0 + 2 * HOUR} == own
    assert all(any(row[at] for row in own.values()) for at in (1, 2, 3))


def plain(town: Town) -> None:
    """Of two cards a pod holds one, and another pod waits for 40 % of one."""
    pods = gpu_pod("a", started_ms=T0), gpu_pod("w", node="", percent=40)
    town.begin(("nodes", node()), ("leases", lease(T0)), *(("pods", raw) for raw in pods))
    town.writer.step()


def means(hour: int, known: int, model: str = "A100") -> Json:
    """Of `plain`."""
    found = {"hour": hour, "known": known, "model": model, "heldMilli": 0, "freeMilli": 0, "waitingMilli": 0}
    return found | ({"heldMilli": 1_000, "freeMilli": 1_000, "waitingMilli": 400} if model else {})


def both(hour: int, known: int) -> list[Json]:
    return [means(hour, known, model) for model in ("", "A100")]


def test_a_settler_that_was_away_leaves_a_gap_and_never_a_zero(town: Town) -> None:
    plain(town)
    goes_on(town, 20 * MINUTE)
    town.clock.turn(25 * MINUTE)
    town.restart()
    town.node_heard()
    town.tick()
    town.writer.step()
    goes_on(town, 15 * MINUTE)
    town.clock.turn(HOUR)  # nothing ticks
    goes_on(town, 10 * MINUTE)

    # the first count after a gap says nothing of the time before it
    assert hours(town) == [*both(T0, 35 * MINUTE), *both(T0 + 2 * HOUR, 10 * MINUTE - STEP)]


@pytest.mark.parametrize("source", ["pods", "nodes", "resourceclaims"])
def test_while_a_watch_fails_nothing_is_counted(town: Town, source: str) -> None:
    plain(town)
    goes_on(town, 10 * MINUTE)
    for _ in range(10):
        town.clock.turn(STEP)
        town.settler.apply(WatchUpdate(source, town.clock(), WatchFailed("refused")))
        town.tick()
        town.writer.step()
    town.hear_all(source)
    goes_on(town, 10 * MINUTE)

    assert {row[0] for row in stored(town).values()} == {20 * MINUTE}


def test_a_database_that_was_away_leaves_a_gap(town: Town) -> None:
    plain(town)
    goes_on(town, 10 * MINUTE)
    fuse = Fuse(town.store)
    fuse.leave()
    for _ in range(10):
        town.clock.turn(STEP)
        assert not town.tick()
        with pytest.raises(UnavailableError):
            town.writer.step()
    fuse.away = False
    town.node_heard()
    town.tick()
    town.writer.step()
    goes_on(town, 10 * MINUTE)

    assert {row[0] for row in stored(town).values()} == {20 * MINUTE}


@pytest.mark.parametrize("killed", [True, False])
def test_an_hour_has_no_more_than_was_counted_whatever_fails_and_its_means_are_right(
    database_url: str, killed: bool
) -> None:
    """Also where the transaction was committed, and nobody heard of it."""
    town = Town(database_url)
    plain(town)
    fuse, failures = Fuse(town.store), 0
    for step in range(2 * HOUR // STEP):
        town.clock.turn(STEP)
        town.node_heard()
        town.tick()
        before = stored(town)
        fuse.light(step // 3 % 12 + 1 if step % 3 == 2 else 0, killed=killed)
        try:
            town.writer.step()
        except KilledError:
            fuse.out()
            failures += 1
            town.store.engine.dispose()
            town.restart()
            town.tick()
        except (ConflictError, UnavailableError):
            failures += 1
        fuse.out()
        town.writer.step()
        for key, (known, *figures) in stored(town).items():
            was = before.get(key, (0, 0, 0, 0))[0]
            assert known - was in (0, STEP), step
            rates = (0, 0, 0) if not key[1] else (1_000, 1_000, 400)
            assert figures == [rate * known for rate in rates]
    assert failures > 20
    assert HOUR // 3 < stored(town)[T0, "A100"][0] < HOUR
    town.close()


def test_a_settler_that_stands_still_adds_nothing(town: Town) -> None:
    plain(town)
    goes_on(town, 10 * MINUTE)
    for _ in range(10):
        town.clock.turn(STEP)
        town.writer.step()

    assert {row[0] for row in stored(town).values()} == {10 * MINUTE}


def test_a_settler_whose_term_is_over_adds_nothing(town: Town) -> None:
    plain(town)
    goes_on(town, 10 * MINUTE)
    former = town.writer
    view = town.settler.view
    town.resume()
    goes_on(town, 5 * MINUTE)
    before = stored(town)
    former._settler.view = replace(view, decided_ms=view.decided_ms + STEP)

    with pytest.raises(EpochOverError):
        former.step()

    assert stored(town) == before


def test_a_clock_that_is_set_back_makes_no_hour_longer(town: Town) -> None:
    plain(town)
    goes_on(town, 55 * MINUTE)
    town.clock.turn(-30 * MINUTE)
    goes_on(town, 30 * MINUTE)

    assert [row for row in hours(town) if row["hour"] == T0] == both(T0, HOUR)


@pytest.mark.parametrize(
    "change",
    [{"is_earlier": True}, {"ended_ms": T0}, {"bound_ms": T0 + HOUR}, {"charge": "host"}, {}],
    ids=str,
)
def test_a_session_that_holds_no_cards_now_is_not_held(town: Town, change: Json) -> None:
    plain(town)
    view = town.settler.view
    session = replace(view.sessions["uid-a"], **change)

    for number in range(2):
        at_ms = view.decided_ms + (1 + number) * STEP
        town.settler.view = replace(view, sessions={session.uid: session}, decided_ms=at_ms)
        town.writer.step()

    (known, held, free, _) = stored(town)[T0, "A100"]
    assert (held // known, free // known) == (500, 1_500) if change else (1_000, 1_000)


def test_devices_that_settings_name_are_counted_by_that_name(town: Town) -> None:
    raw = {"metadata": {"name": "n"}, "status": {"capacity": {"amd.com/gpu": "4"}}}
    town.hear("configmaps", budgets(_settings="mode: meter\ndevices: {amd.com/gpu: MI300X}"))
    town.begin(("nodes", raw), ("pods", holding({"amd.com/gpu": "1"}, "n")))
    town.writer.step()
    goes_on(town, 5 * MINUTE)

    found = {row["model"]: (row["heldMilli"], row["freeMilli"]) for row in hours(town)}
    assert found == {"": (0, 0), "MI300X": (1_000, 3_000)}


def test_reserved_cards_are_held(town: Town) -> None:
    """From when no other pod holds them, while the pod waits on."""
    town.begin(("nodes", node()), ("leases", lease(T0)), ("pods", gpu_pod(node="")))
    town.clock.turn(2 * MINUTE)
    town.change("pods", reserved(free=T0 + 2 * MINUTE, until=T0 + 30 * MINUTE))
    town.writer.step()
    goes_on(town, 5 * MINUTE)

    assert hours(town)[1] == means(T0, 5 * MINUTE) | {"waitingMilli": 1_000}


def test_a_card_that_kai_divides_is_held_once(town: Town) -> None:
    """Its reservation pod holds all of it, and pods with fractions hold parts of that."""
    town.hear("configmaps", budgets(_settings="mode: meter\nweights: {A100: 2}"))
    town.begin(("nodes", WHOLE), ("pods", reservation()), ("pods", at(fraction("f", "0.25"), T0)))
    town.writer.step()
    goes_on(town, 5 * MINUTE)

    (found,) = (row for row in hours(town) if row["model"])
    assert (found["heldMilli"], found["freeMilli"]) == (1_000, 1_000)


def test_a_pod_that_names_a_model_waits_for_that_model(town: Town) -> None:
    wants = gpu_pod("w", node="", annotations={"bursar.dev/gpu-models": "H100"})
    nodes = node("n1"), node("n2", cards=1, model="H100")
    town.begin(*(("nodes", raw) for raw in nodes), ("pods", wants))
    town.writer.step()
    goes_on(town, 10 * MINUTE)

    waiting = {row["model"]: (row["freeMilli"], row["waitingMilli"]) for row in hours(town)}
    assert waiting == {"": (0, 0), "A100": (2_000, 0), "H100": (1_000, 1_000)}


def test_a_range_is_answered_by_its_hours_and_one_that_is_none_is_refused(town: Town) -> None:
    plain(town)
    goes_on(town, 2 * HOUR)

    assert hours(town, f"?from={T0 + HOUR}&to={T0 + 2 * HOUR}") == both(T0 + HOUR, HOUR)
    assert hours(town, f"?to={T0}") == []
    for query in (f"from={T0}&to={T0}", f"from=1&to={T0}"):
        refused = town.get(f"/v1/cards?{query}")
        assert (refused.status_code, refused.get_json()["field"]) == (400, "from")


def test_who_may_read_a_namespace_reads_the_cards_of_the_cluster(town: Town) -> None:
    plain(town)
    goes_on(town, 5 * MINUTE)
    town.reviews.denied |= {("admin", "get", "sessions", "")}

    assert town.get("/v1/cards").status_code == 403
    assert hours(town, "?namespace=team-b") == both(T0, 5 * MINUTE)


def test_hours_are_deleted_by_their_own_time(town: Town) -> None:
    plain(town)
    goes_on(town, 3 * HOUR)
    stop = Event()
    kept = (0, 0, HOUR)  # of decisions, use and cards
    forgetting = Thread(target=forget_old, args=(town.store, town.clock, *kept, stop))

    forgetting.start()
    eventually(lambda: {hour for hour, _ in stored(town)} == {T0 + 2 * HOUR})
    stop.set()
    forgetting.join(LONGEST_S)

    assert not forgetting.is_alive()
