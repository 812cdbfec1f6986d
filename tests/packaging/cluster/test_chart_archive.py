"""The chart's archive, by helm itself."""

import subprocess
from pathlib import Path

import pytest

from deploy.rendered import CHART, helm
from tests.packaging.conftest import Release
from timekeeper.core import __version__


@pytest.mark.soak
def test_helm_renders_the_archive_as_it_renders_the_folder(released: Release) -> None:
    program = helm()

    def rendered(chart: Path) -> str:
        command = [
            str(program),
            "template",
            "bursar",
            str(chart),
            "--set=database.secretName=ledger,images.prefix=bursar",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    packed = released.file(f"bursar-{__version__}.tgz")
    assert rendered(packed) == rendered(CHART)
