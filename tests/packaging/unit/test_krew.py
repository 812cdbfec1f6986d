"""Krew's manifest of an archive that is published somewhere."""

from pathlib import Path

import pytest
import yaml

from deploy.release.krew import manifest


@pytest.mark.parametrize(
    "downloads", ["https://downloads.example.com/v1", "https://downloads.example.com/v1/"]
)
def test_the_archives_address_is_below_the_folder_that_is_named(downloads: str, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tar.gz"
    packed.write_bytes(b"")

    made = manifest(packed, tmp_path / "cli.pyz", "1.0.0", downloads, tmp_path)

    (platform,) = yaml.safe_load(made.read_text())["spec"]["platforms"]
    assert platform["uri"] == "https://downloads.example.com/v1/packed.tar.gz"
