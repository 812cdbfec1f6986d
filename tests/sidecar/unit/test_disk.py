"""The spool folder, well and unwell."""

from pathlib import Path

import pytest

from sidecar import spool
from sidecar.disk import FOLLOWED, SPOOL, SpoolFolder, node_boot
from sidecar.spool import SpooledBeat
from tests.sidecar.worlds import events

HELD = spool.add(spool.empty("r"), SpooledBeat(5, ()))


def test_a_folder_is_made_and_its_files_are_the_owners_alone(tmp_path: Path) -> None:
    disk = SpoolFolder(str(tmp_path / "a" / "b"), "boot")
    disk.save(HELD)
    disk.follow("configured", "followed")

    assert disk.load("s", 10).waiting == HELD.waiting
    assert disk.followed() == ("configured", "followed")
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a" / "b").iterdir()} == {
        SPOOL: 0o600,
        FOLLOWED: 0o600,
    }


def test_an_empty_folder_is_a_beginning(tmp_path: Path) -> None:
    disk = SpoolFolder(str(tmp_path), "boot")

    assert disk.load("s", 10) == spool.empty("s")
    assert disk.followed() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"configured": 1}'])
def test_files_of_nonsense_are_reported_and_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / SPOOL).write_text(text)
    (tmp_path / FOLLOWED).write_text(text)
    disk = SpoolFolder(str(tmp_path), "boot")

    assert (disk.load("s", 10), disk.followed()) == (spool.empty("s"), None)
    assert [line.split()[0] for line in events(capfd.readouterr().err)] == [
        "event=spool-unreadable",
        "event=followed-ca-unreadable",
    ]


def test_a_folder_that_takes_nothing_is_reported_once_until_it_is_well_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "spool"
    folder.write_text("in the way")
    disk = SpoolFolder(str(folder), "boot")
    disk.save(HELD)
    disk.save(HELD)
    folder.unlink()
    disk.save(HELD)
    disk.save(HELD)

    assert disk.load("s", 10).waiting == HELD.waiting
    assert capfd.readouterr().err.count("event=spool-not-written") == 1


def test_the_kernel_names_its_boot() -> None:
    assert len(node_boot()) == 36
