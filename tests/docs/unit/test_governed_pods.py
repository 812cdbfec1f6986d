"""The page on governed pods names figures that stand in the code."""

from pathlib import Path

from sidecar.reporter import MAX_SILENCE_MS
from webhook.policy import Sidecar

PAGE = (Path(__file__).parents[3] / "docs" / "governed-pods.md").read_text()


def test_the_sidecars_amounts_and_its_patience_are_those_of_the_code() -> None:
    sidecar = Sidecar("", "", "")

    assert f"requests **{sidecar.cpu}** cpu and **{sidecar.memory}** memory" in PAGE
    assert f"has not answered for **{MAX_SILENCE_MS // 60_000} minutes**" in PAGE
