"""Scenes that are lived together: while one waits, the others of its file go on.

A scene is a test that yields where it would wait: a sentence, and what is called until it returns something
true, which the `yield` returns. All scenes of a file begin with the first of them, in namespaces and on nodes
of their own. Each test then ends as its scene has ended: one that fails, or waits too long, fails at its own
`yield`, and no other does.

    @scene
    def test_a_pod_gets_a_node(stack: Stack) -> Scene:
        stack.cp.api.call("POST", path, pod)
        node = yield "its binding", lambda: node_of("a")
        assert node == "n1"
"""

import functools
import inspect
import time
from collections.abc import Callable, Collection, Generator
from typing import Any

import pytest

from deploy.local.limits import LONGEST_S
from tests.support.waiting import pause_s

Awaited = tuple[str, Callable[[], object]]
Scene = Generator[Awaited, Any, None]
Part = Generator[Awaited, Any, Any]  # of a scene, by `yield from`


class Meeting:
    """A condition that nothing but all scenes make true: once each that is under way waits for it, what it
    was made with is done."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self._is_over = False

    def __call__(self) -> bool:
        return self._is_over

    def hold(self) -> None:
        """Now."""
        self._act()
        self._is_over = True


class Lived:
    """A scene under way. ``failure``: what it ended with; None where it ended well."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._awaited: Awaited = ("its beginning", lambda: True)
        self._since = time.monotonic()
        self.has_ended = False
        self.failure: Exception | None = None
        self._go_on(lambda: next(scene))

    @property
    def condition(self) -> Callable[[], object]:
        """What it waits for."""
        return self._awaited[1]

    def look(self) -> None:
        """Goes on where there is what it waits for."""
        try:
            seen = self.condition()
            if not seen and time.monotonic() - self._since > LONGEST_S:
                raise AssertionError(f"not within {LONGEST_S:.0f} s; last seen: {seen!r}")
        except Exception as error:
            self.fail(error)
            return
        if seen:
            self._go_on(lambda: self._scene.send(seen))

    def fail(self, error: Exception) -> None:
        """It fails where it waits."""
        error.add_note(f"while it waited for {self._awaited[0]}")
        self._go_on(lambda: self._scene.throw(error))

    def _go_on(self, step: Callable[[], Awaited]) -> None:
        """To the next wait, or to its end."""
        try:
            self._awaited = step()
            self._since = time.monotonic()
        except StopIteration:
            self.has_ended = True
        except Exception as error:
            self.has_ended, self.failure = True, error


def live(scenes: Collection[Lived], check: Callable[[], None]) -> None:
    """Until all have ended. ``check`` raises what ends all of them: a part of the cluster is gone."""
    begun = time.monotonic()
    while going := [scene for scene in scenes if not scene.has_ended]:
        looked = time.monotonic()
        try:
            check()
            _hold_meeting(going)
        except Exception as error:
            for scene in going:
                scene.fail(error)
        else:
            for scene in going:
                scene.look()
        time.sleep(pause_s(begun, time.monotonic() - looked))


def _hold_meeting(going: Collection[Lived]) -> None:
    first, *others = {scene.condition for scene in going}
    if isinstance(first, Meeting) and not others:
        first.hold()


def scene(script: Callable[..., Scene]) -> Callable[..., None]:
    """The test of a scene. It may ask for fixtures of its module and of the session."""

    @functools.wraps(script)
    def test(scenes: dict[str, Lived], request: pytest.FixtureRequest, **_of_the_script: object) -> None:
        failure = scenes[request.node.name].failure
        if failure is not None:
            raise failure

    signature = inspect.signature(script)
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("scenes", "request")]
    parameters = [*signature.parameters.values(), *more]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    test.script = script  # type: ignore[attr-defined]
    return test


def alone(script: Callable[..., Scene]) -> Callable[..., None]:
    """The test of a scene that would disturb the others: it is lived when its test runs."""

    @functools.wraps(script)
    def test(**fixtures: object) -> None:
        lived = Lived(script(**fixtures))
        live([lived], lambda: None)
        if lived.failure is not None:
            raise lived.failure

    return test


def lived_by(request: pytest.FixtureRequest, check: Callable[[], None]) -> dict[str, Lived]:
    """The module's scenes, of those tests that run, after their ends; by the tests' names."""
    scenes: dict[str, Lived] = {}
    for item in request.session.items:
        script = getattr(getattr(item, "function", None), "script", None)
        if script is None or item.path != request.path:
            continue
        parameters: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
        fixtures = inspect.signature(script).parameters.keys() - parameters.keys()
        given = {name: request.getfixturevalue(name) for name in sorted(fixtures)}
        scenes[item.name] = Lived(script(**given, **parameters))
    live(scenes.values(), check)
    return scenes
