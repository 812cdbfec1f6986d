"""The page on governed pods names figures that stand in the code."""

from pathlib import Path

from timekeeper.core.admission.policy import Sidecar

PAGE = (Path(__file__).parents[3] / "docs" / "governed-pods.md").read_text()


def test_the_sidecars_amounts_are_those_of_the_code() -> None:
    sidecar = Sidecar("", "", "")

    assert f"requests **{sidecar.cpu}** cpu and **{sidecar.memory}** memory" in PAGE
