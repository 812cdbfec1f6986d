"""Files that another process renews."""

from pathlib import Path

import pytest

from deploy.local.identity import new_authority
from timekeeper.runtime.file_watch import FileWatch
from timekeeper.runtime.tls import ca_text


def test_a_file_is_looked_at_once_a_second_and_loaded_when_it_changed(tmp_path: Path) -> None:
    path, clock, loads, said = tmp_path / "f", [0], [], []

    def load() -> str:
        loads.append(path.read_text())
        if "bad" in loads[-1]:
            raise ValueError("not good")
        return loads[-1]

    value = FileWatch(
        (path,),
        load,
        lambda: clock[0],
        lambda event, **fields: said.append(f"{event} {fields.get('error', '')}"),
    )
    assert value() is None
    path.write_text("one")
    assert value() is None
    clock[0] = 1_000
    assert (value(), value()) == ("one", "one")
    path.write_text("bad file")
    clock[0] = 2_000
    assert value() == "one"
    clock[0] = 3_000
    assert value() == "one"
    path.write_text("three")
    clock[0] = 4_000
    assert value() == "three"

    assert said[0].startswith("not-loaded [Errno 2]")
    assert said[1:] == ["loaded ", "not-loaded not good", "loaded "]


def test_a_ca_bundle_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(new_authority("x").pem)
    assert ca_text(tmp_path / "ca") == (tmp_path / "ca").read_text()
    for text in ("", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        (tmp_path / "ca").write_text(text)
        with pytest.raises((ValueError, OSError)):
            ca_text(tmp_path / "ca")
