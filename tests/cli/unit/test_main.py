"""The end of a command that fails."""

import sys
from collections.abc import Sequence

import pytest

from timekeeper.cli import main


def test_a_failure_is_a_sentence_also_where_output_was_closed_before_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(arguments: Sequence[str], prog_name: str) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(main, "cli", fails)
    monkeypatch.setattr(sys, "stdout", None)

    with pytest.raises(SystemExit) as ended:
        main.main([])

    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: no more files\n"
