"""Commands that open a database."""

from pathlib import Path

import pytest

from timekeeper.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["migrate", "--database=nonsense"], "not a database URL"),
        (["migrate", "--database=sqlite:////no/such/folder/x.db"], "unable to open database file"),
        (["settle", "--kubeconfig=/no/such/file"], "kubeconfig /no/such/file: "),
        (["workers", "--kubeconfig=/no/such/file"], "kubeconfig /no/such/file: "),
        (["serve", "--tls-cert=/no/such/file"], "there is no file /no/such/file"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_migrations_by_command(tmp_path: Path) -> None:
    assert main(["migrate", f"--database=sqlite:///{tmp_path}/new.db"]) == 0
    assert (tmp_path / "new.db").stat().st_size > 0
