"""Scenes that are lived together (`tests.support.scenes`): each ends for itself; a meeting waits for all."""

from tests.support.scenes import Lived, Meeting, Scene, live


def lived(*scenes: Scene) -> list[str]:
    """How each of them ended; empty where it ended well."""
    under_way = [Lived(scene) for scene in scenes]
    live(under_way, lambda: None)
    return ["" if scene.failure is None else type(scene.failure).__name__ for scene in under_way]


def test_one_that_fails_or_cannot_look_ends_alone() -> None:
    looks = iter([False, False, "seen"])
    seen: list[object] = []

    def good() -> Scene:
        seen.append((yield "the third look", lambda: next(looks)))

    def wrong() -> Scene:
        yield "nothing", lambda: True
        raise AssertionError

    def blind() -> Scene:
        nothing: dict[str, bool] = {}
        yield "what is not there", lambda: nothing["there"]

    assert lived(wrong(), blind(), good()) == ["AssertionError", "KeyError", ""]
    assert seen == ["seen"]


def test_a_meeting_is_held_once_when_all_that_are_under_way_wait_for_it() -> None:
    order: list[str] = []
    meeting = Meeting(lambda: order.append("held"))

    def scene(name: str, looks: int) -> Scene:
        waits = iter([False] * looks + [True])
        yield "its turn", lambda: next(waits)
        order.append(name)
        yield "the others", meeting
        order.append(name)

    def leaves_before() -> Scene:
        yield "its turn", lambda: True
        raise AssertionError

    assert lived(scene("a", 0), scene("b", 2), leaves_before()) == ["", "", "AssertionError"]
    assert order == ["a", "b", "held", "a", "b"]


def test_what_ends_the_cluster_ends_all() -> None:
    def scene() -> Scene:
        yield "what never is", lambda: False

    def check() -> None:
        raise OSError

    under_way = [Lived(scene()), Lived(scene())]
    live(under_way, check)

    assert [type(each.failure) for each in under_way] == [OSError, OSError]
