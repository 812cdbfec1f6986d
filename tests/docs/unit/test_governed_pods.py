"""The page on governed pods names figures that stand in the code."""

from pathlib import Path

from timekeeper.core import names
from webhook.policy import Sidecar

PAGE = (Path(__file__).parents[3] / "docs" / "governed-pods.md").read_text()


def test_the_sidecars_amounts_are_those_of_the_code() -> None:
    sidecar = Sidecar("", "", "")

    assert f"requests **{sidecar.cpu}** cpu and **{sidecar.memory}** memory" in PAGE


def test_every_mark_that_bursar_leaves_on_a_pod_is_documented() -> None:
    for name in (names.GOVERNED, names.REQUEST, names.STANDING, names.DEVICES):
        assert f"`{name}`" in PAGE
    for prefix in names.BY_CONTAINER:
        assert f"`{prefix}CONTAINER`" in PAGE
