"""Timelines: what happens to pods, moment by moment, and what they are charged, as values of a table.

A timeline is a sequence of steps. Times are milliseconds since it began; `at` sets the clock, and the other
steps happen at the clock's time. Expectations are steps too, so that they may stand between others.
"""

from collections.abc import Callable, Iterable

from tests.timekeeper.worlds import GPU, Json, Town, gpu_pod

Step = Callable[[Town, int], object]  # with the moment at which the timeline began
Posted = tuple[int, int] | tuple[int, int, int, str]  # from, to; rate and kind unless a whole card is settled


def live(town: Town, timeline: Iterable[Step]) -> None:
    """All that happens, from now on."""
    began_ms = town.clock()
    for step in timeline:
        step(town, began_ms)


# what happens


def at(ms: int, *steps: Step) -> Step:
    """It is this moment, and then this happens."""

    def turned(town: Town, began_ms: int) -> None:
        town.clock.at_ms = began_ms + ms
        for step in steps:
            step(town, began_ms)

    return turned


def heard(ms: int, *steps: Step) -> Step:
    """At this moment the node and the watch are heard, a tick follows, and then this."""
    return at(ms, node_heard, tick, *steps)


def silent(ms: int, *steps: Step) -> Step:
    """At this moment is a tick, and then this; nothing has been heard since the last step."""
    return at(ms, tick, *steps)


def beat(sequence: int, *ages_ms: int, boot: str = "run-1") -> Step:
    """The sidecar of the pod ``p`` posts heartbeats, which are taken."""

    def posted_by_sidecar(town: Town, _: int) -> None:
        answer = town.beat(gpu_pod(), sequence, *ages_ms, boot=boot)
        _equal("status of the heartbeat", answer.status_code, 200)

    return posted_by_sidecar


def hear(source: str, raw: Json, deleted: bool = False, unheard: bool = False) -> Step:
    return lambda town, _: town.hear(source, raw, deleted, unheard)


def change(source: str, raw: Json, deleted: bool = False) -> Step:
    return lambda town, _: town.change(source, raw, deleted)


def tick(town: Town, _: int = 0) -> None:
    _equal("a tick is written", town.tick(), True)


def quiet(town: Town, _: int = 0) -> None:
    town.quiet()


def node_heard(town: Town, _: int = 0) -> None:
    town.node_heard()


def list_all(town: Town, _: int = 0) -> None:
    town.list_all()


def restart(town: Town, _: int = 0) -> None:
    town.restart()


def resume(town: Town, _: int = 0) -> None:
    town.resume()


# what is expected


def pending(ms: int) -> Step:
    """So long a whole card is owed and not yet posted."""
    return budget(pending=ms)


def budget(**ms: int) -> Step:
    """These figures of the namespace's budget, as time of a whole card."""

    def compared(town: Town, _: int) -> None:
        said = town.budget()
        _equal(
            "budget", {name: said[name] for name in ms}, {name: GPU * length for name, length in ms.items()}
        )

    return compared


def charged(ms: int, namespace: str = "team-a", rate: int = GPU) -> Step:
    """Posted and pending together: so long at this rate."""
    return lambda town, _: _equal("charged", town.charged(namespace), rate * ms)


def settled(until_ms: int) -> Step:
    """The pod's one posting: a whole card from the beginning."""
    return posted((0, until_ms))


def posted(*postings: Posted, uid: str = "uid-p") -> Step:
    """All postings of a pod, in the order of writing."""

    def compared(town: Town, began_ms: int) -> None:
        wanted = [(*posting, GPU, "settled")[:4] for posting in postings]
        moved = [(began_ms + since, began_ms + until, rate, kind) for since, until, rate, kind in wanted]
        _equal("postings", town.postings(uid), moved)

    return compared


def _equal(what: str, said: object, wanted: object) -> None:
    assert said == wanted, f"{what}: {said}, and not {wanted}"
