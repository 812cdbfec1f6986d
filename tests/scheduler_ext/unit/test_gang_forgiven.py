"""What the extender notes on pods whose gang does not start, before it evicts them."""

from tests.scheduler_ext.gang_worlds import START_MS, GangWorld, members
from tests.scheduler_ext.reserving import stamp

NOTE = "bursar.dev/gang-forgiven"


def unused(world: GangWorld) -> GangWorld:
    """One of two gets a node, and the other none by the deadline."""
    world.step()
    world.bind("a")
    world.try_("b")
    world.calls.clear()
    world.steps(58)
    return world


def notes(world: GangWorld) -> list[tuple[str, str, str]]:
    """The evictions, and the notes with their times."""
    written = (
        (what, name, body["metadata"].get("annotations", {}).get(NOTE, ""))
        for what, name, body in world.calls
    )
    return [each for each in written if each[0] == "evict" or each[2]]


def test_it_notes_until_when_a_failed_start_is_not_charged_and_then_evicts() -> None:
    world = unused(GangWorld({"n1": 1, "n2": 1}, members("ab")))
    assert notes(world) == []

    world.step(2)

    assert notes(world) == [("patch", "a", stamp(START_MS + 60_000)), ("evict", "a", "")]
    ((_, _, note), (_, _, evicted)) = [
        call for call in world.calls if NOTE in str(call) or call[0] == "evict"
    ]
    assert note["metadata"]["finalizers"] == [NOTE]  # the object stays until a timekeeper has read it
    versions = (
        note["metadata"]["resourceVersion"],
        evicted["deleteOptions"]["preconditions"]["resourceVersion"],
    )
    assert versions[0] != versions[1]  # each in the version that the call before it left


def test_it_notes_it_once_though_the_eviction_is_refused_again_and_again() -> None:
    world = GangWorld({"n1": 1, "n2": 1}, members("ab"))
    original, world.answers = world.call, {}

    def protected(method: str, path: str, body: dict[str, object], **more: object) -> object:
        world.answers = {"a": 429} if path.endswith("eviction") else {}
        return original(method, path, body, **more)

    world.call = protected  # type: ignore[method-assign, assignment]
    unused(world)
    world.steps(20)

    assert [what for what, _, _ in notes(world)] == ["patch"] + ["evict"] * 4


def test_a_gang_that_leaves_after_its_start_is_charged() -> None:
    world = GangWorld({"n1": 1, "n2": 1}, members("ab"), ready_for_ms=30_000)
    world.step()
    world.bind("ab", phase="Pending")
    world.calls.clear()
    world.steps(35)

    assert notes(world) == [("evict", "a", ""), ("evict", "b", "")]
