"""The check of growth, on a checkout."""

import subprocess
from pathlib import Path

import pytest

from tests import growth


def test_a_checkout_is_compared_with_the_commit_that_the_tag_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*command: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=tmp_path, check=True
        )

    monkeypatch.setattr(growth, "ROOT", tmp_path)
    (tmp_path / "webhook").mkdir()
    (tmp_path / "webhook" / "a.py").write_text("\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"]):
        git(*command)
    assert (growth.main(), "nothing is compared" in capsys.readouterr().out) == (0, True)
    git("tag", growth.LANDED)
    assert growth.main() == 0

    (tmp_path / "webhook" / "b.py").write_text("\n")
    assert growth.main() == 1
    assert "lines of the product: 1 more than the landed commit" in capsys.readouterr().out
    (tmp_path / "webhook" / "a.py").unlink()
    assert growth.main() == 0
