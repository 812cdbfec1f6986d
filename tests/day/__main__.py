"""``make soak-day``: a day of a busy cluster in two hours, and what it leaves behind.

``python -m tests.day --minutes 120 --pods 100000 --nodes 2000 [--json FILE]``. Pods are created at an even
rate on kwok nodes that come and go; certificates are renewed all the time; in the first 60 % of it leaders
are killed, each role is replaced, and the database is away. It ends with the charge of every pod, compared
with the oracle's, and with a sentence for each law that does not hold.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field

from tests import postgresql
from tests.bench.command import arguments, write
from tests.day.judge import LEAST_POINTS, Record, complaints, growth, outside, ratio, stayed
from tests.day.sampling import PASSING, Sampler, count_rows
from tests.day.traffic import NAMESPACES, Traffic
from tests.day.world import FAULTS, World, running
from tests.support.waiting import eventually

FAULTS_UNTIL = 0.60  # of the day: what is replaced later has no last quarter
CHURN = 4  # a quarter of the nodes is replaced
MARGIN_S = 5.0  # calls are slow for a while after a fault


@dataclass
class Day:
    """One day. ``serials``: of the certificates that were served; ``happened``: the faults, with their
    times."""

    world: World
    traffic: Traffic
    record: Record
    serials: set[int] = field(default_factory=set)
    happened: list[tuple[str, float, float]] = field(default_factory=list)
    verbs: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)

    def look(self) -> None:
        """What is sampled beside the processes: certificates, and the mean time of the extenders' calls."""
        self.serials |= self.world.serials()
        for name, by_verb in self.world.verbs().items():
            for verb, (seconds, count) in by_verb.items():
                had, counted = self.verbs.get(name, {}).get(verb, (0.0, 0.0))
                if count > counted:  # less: it is a new process
                    mean = 1000 * (seconds - had) / (count - counted)
                    self.record.calls.setdefault(verb, []).append((self.traffic.now, mean))
            self.verbs[name] = by_verb

    def break_things(self) -> None:
        """One fault after the other, each in a window in which nothing is deleted."""
        for at, fault in enumerate(FAULTS, start=1):
            due = FAULTS_UNTIL * self.record.length_s * at / len(FAULTS)
            time.sleep(max(0.0, due - self.traffic.now))
            self.traffic.quiet.clear()
            begun = self.traffic.now
            fault(self.world)
            self.traffic.quiet.set()
            ended = self.traffic.now
            self.happened.append((fault.__name__, round(begun, 1), round(ended, 1)))
            self.record.faults.append((begun - MARGIN_S, ended + MARGIN_S))
            print(f"{ended:7.0f} s  {fault.__name__} ({ended - begun:.1f} s), {self._state()}", flush=True)

    def _state(self) -> str:
        pods = f"{len(self.traffic.created)} pods created, {self.traffic.ended()} ended"
        return f"{pods}, {self.traffic.replaced} nodes replaced"


def lived(day: Day, pods: int, nodes: int) -> None:
    """The whole day, until nothing is left of its pods."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            day.break_things()
        except BaseException as error:
            raised.append(error)
            day.traffic.give_up()

    breaking = threading.Thread(target=guarded, daemon=True)
    breaking.start()
    day.traffic.run(pods, day.record.length_s, nodes)
    breaking.join()
    if raised:
        raise raised[0]
    print(f"{day.traffic.now:7.0f} s  all created; {day._state()}", flush=True)


def settled(day: Day) -> None:
    """Until all pods are gone and posted; what is left in spite of that is counted afterwards."""
    try:
        day.traffic.drain()
        eventually(lambda: not any(count_rows(day.world.url, PASSING).values()), "no passing row")
    except AssertionError as error:
        day.traffic.errors.append(str(error))


def wrong_charges(day: Day, token: str) -> list[str]:
    """The pods whose charge differs from the oracle's."""
    found = []
    until = int(time.time() * 1000) + 86_400_000
    for name in NAMESPACES:
        owed = {uid: amount for uid, amount in day.traffic.owed[name].items() if amount}
        path = f"/v1/usage?group=pod&namespace={name}&from=0&to={until}"
        rows = day.world.stack.get(path, token)["rows"]
        charged = {row["uid"]: row["posted"] for row in rows if row["amount"]}
        found += [f"{name}: {row['uid']} has pending {row['pending']}" for row in rows if row["pending"]]
        for uid in charged.keys() | owed.keys():
            if charged.get(uid, 0) != owed.get(uid, 0):
                found.append(f"{name}: {uid} is charged {charged.get(uid, 0)}, it owes {owed.get(uid, 0)}")
    return found


def told(day: Day) -> None:
    """The tables."""
    end = day.record.length_s
    print("\nprocess                       MiB   last quarter   files +   threads +")
    for name, series in sorted(day.record.sizes.items()):
        grown, files, threads = (
            growth(series, 3 * end / 4, end),
            stayed(day.record.files[name], end),
            stayed(day.record.threads[name], end),
        )
        shown = "      -" if grown is None else f"{grown:+7.2%}"
        print(f"{name:28} {series[-1][1]:6.1f}      {shown}   {_number(files)}   {_number(threads)}")
    print("\ncall            samples   last half, of the first")
    for name, series in sorted(day.record.calls.items()):
        slower = ratio(outside(series, day.record.faults), end)
        print(f"{name:12} {len(series):10}   {'-' if slower is None else f'{slower:.2f}'}")


def _number(value: float | None) -> str:
    return "      -" if value is None else f"{value:7.0f}"


def main() -> int:
    """Exit code 1 where a law does not hold."""
    given = arguments(
        __doc__,
        minutes=(120.0, "how long pods are created"),
        pods=(100_000, ""),
        nodes=(2_000, ""),
        growth=(1.0, "percent of a process's size that it may grow in the last quarter"),
        each=(5.0, "seconds between two samples"),
    )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    length = 60 * given.minutes
    try:
        with ExitStack() as stack:
            world = stack.enter_context(running(length))
            token = world.stack.reader_token()
            traffic = stack.enter_context(Traffic(world.stack.cp, given.nodes).flowing())
            day = Day(world, traffic, Record(length))
            sampler = Sampler(day.record, world.roles, lambda: traffic.now, given.each, day.look)
            with sampler.looking():
                lived(day, given.pods, given.nodes // CHURN)
                settled(day)
            found = judged(day, sampler, token, given.growth / 100)
    finally:
        postgresql.end()
    told(day)
    write(given.json, asdict(day.record) | {"happened": day.happened, "complaints": found})
    print("\n" + "\n".join(found or ["all laws hold"]), flush=True)
    return 1 if found else 0


def judged(day: Day, sampler: Sampler, token: str, most_growth: float) -> list[str]:
    """All complaints. What ran for a moment only, as a part of a start, is no process of the day."""
    record = day.record
    for name in [name for name, series in record.sizes.items() if len(series) < LEAST_POINTS]:
        for kind in (record.sizes, record.files, record.threads):
            del kind[name]
    day.record.left = count_rows(day.world.url, PASSING)
    day.record.calls["create"] = day.traffic.created
    wrong = wrong_charges(day, token)
    print(f"{day.traffic.ended()} pods were charged, {len(wrong)} wrongly; calls made again:", flush=True)
    for reason, count in day.traffic.failures.most_common(10):
        print(f"  {count} x {reason}")
    found = complaints(day.record, most_growth) + wrong[:20]
    rotations = len(day.serials) - 1
    checks: tuple[tuple[bool, Callable[[], str]], ...] = (
        (rotations < 3, lambda: f"certificates were renewed {rotations} times only"),
        (not day.traffic.replaced, lambda: "no node was replaced"),
        (len(day.happened) < len(FAULTS), lambda: f"only {len(day.happened)} faults happened"),
        (not day.traffic.ended(), lambda: "no pod ended"),
    )
    found += [say() for is_missing, say in checks if is_missing]
    print(f"{rotations} renewals of certificates, {day.traffic.replaced} nodes replaced,", end=" ")
    print(f"{day.traffic.bound_again} conditions written after the binding", flush=True)
    return found + sampler.errors[:5] + day.traffic.errors[:5]


if __name__ == "__main__":
    sys.exit(main())
