"""The spool folder, well and unwell."""

from pathlib import Path

import pytest

from sidecar.disk import FOLLOWED, SpoolFolder, node_boot
from tests.sidecar.worlds import events

FILE = "spool.json"


def load(disk: SpoolFolder) -> object:
    """What the file holds, which is of whole numbers."""
    return disk.load(FILE, lambda text: (None, [int(text)]), "spool-unreadable")


def test_a_folder_is_made_and_its_files_are_the_owners_alone(tmp_path: Path) -> None:
    disk = SpoolFolder(str(tmp_path / "a" / "b"))
    disk.replace(FILE, "5")
    disk.follow("configured", "followed")

    assert load(disk) == (None, [5])
    assert disk.followed() == ("configured", "followed")
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b").iterdir()} == {
        FILE: 0o600,
        FOLLOWED: 0o600,
    }


def test_the_bundle_that_an_earlier_sidecar_followed_is_known() -> None:
    disk = SpoolFolder(str(Path(__file__).parent.parent / "recorded"))

    assert disk.followed() == ("CONFIGURED", "FOLLOWED")


def test_an_empty_folder_is_a_beginning(tmp_path: Path) -> None:
    disk = SpoolFolder(str(tmp_path))

    assert load(disk) == (None, ())
    assert disk.followed() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"configured": 1}'])
def test_files_of_nonsense_are_reported_and_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / FILE).write_text(text)
    (tmp_path / FOLLOWED).write_text(text)
    disk = SpoolFolder(str(tmp_path))

    assert (load(disk), disk.followed()) == ((None, ()), None)
    assert [line.split()[0] for line in events(capfd.readouterr().err)] == [
        "event=spool-unreadable",
        "event=followed-ca-unreadable",
    ]


def test_a_folder_that_takes_nothing_is_reported_once_until_it_is_well_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spool"
    folder.write_text("in the way")
    disk = SpoolFolder(str(folder))
    disk.replace(FILE, "5")
    disk.replace(FILE, "5")
    folder.unlink()
    disk.replace(FILE, "5")
    disk.replace(FILE, "5")

    assert load(disk) == (None, [5])
    assert capfd.readouterr().err.count("event=spool-not-written") == 1


def test_the_kernel_names_its_boot() -> None:
    assert len(node_boot()) == 36
