"""Words that the shell offers, and the flags and arguments that have some."""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
import pytest

from timekeeper.accounts.usage import GROUPS
from timekeeper.cli.completion import answer
from timekeeper.cli.main import cli
from webhook.dryrun.flags import audit_flags, review_flags

# Texts, numbers, times, addresses and identities that the user has from elsewhere: nothing can be offered.
FREE = {
    *("--server", "--reason", "--key", "GPU_HOURS", "--from", "--to", "--month", "--uid", "--selector"),
    *("node --from", "node --to", "node --server"),
    *("--priority-class", "--other-schedulers", "--template-path"),
}


def leaves(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{name} ")
        else:
            yield prefix, command


def offers(parameter: click.Parameter) -> bool:
    words = type(parameter.type).shell_complete is not click.ParamType.shell_complete
    return words or parameter._custom_shell_complete is not None


def test_every_flag_and_argument_that_names_something_offers_names() -> None:
    silent = {
        prefix + (max(each.opts, key=len) if isinstance(each, click.Option) else str(each.metavar))
        for prefix, command in leaves(cli)
        for each in command.params
        if not offers(each)
        and not (isinstance(each, click.Option) and each.is_flag)
        and not isinstance(each.type, click.types._NumberRangeBase)
    }

    assert silent == FREE


def flags_of(options: Iterator[tuple[Sequence[str], Iterable[object] | None]]) -> dict[str, list[str]]:
    """Each spelling of a flag with its choices."""
    return {flag: list(map(str, choices or ())) for flags, choices in options for flag in flags}


@pytest.mark.parametrize(("name", "parser"), [("check", review_flags()), ("audit", audit_flags())])
def test_check_and_audit_offer_the_flags_of_the_webhook(name: str, parser: argparse.ArgumentParser) -> None:
    offered = flags_of(
        (each.opts, each.type.choices if isinstance(each.type, click.Choice) else ())
        for each in cli.commands[name].params
        if isinstance(each, click.Option)
    )
    known = (each for each in parser._actions if each.dest not in ("help", "version"))
    offered.pop("--month", None)  # of the ledger

    assert offered == flags_of((each.option_strings, each.choices) for each in known)


POD = {
    "metadata": {
        "name": "train-0",
        "labels": {"pod-template-hash": "7d"},
        "ownerReferences": [{"controller": True, "kind": "ReplicaSet", "name": "train-7d"}],
    }
}
BUDGETS = {"data": {"team-a": "", "_group.research": "gpuHours: 1", "_settings": ""}}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that answers by the kind that it is asked for; the file has its calls."""
    lists = {"pods": [POD], "configmaps": [BUDGETS, {"metadata": {}}]}
    for kind, items in lists.items():
        (tmp_path / kind).write_text(json.dumps({"items": items}))
    for kind in ("namespaces", "nodes", "serviceaccounts"):
        (tmp_path / kind).write_text(f"{kind}-1\n{kind}-2\n")
    script = f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat {tmp_path}/$2\n'
    (tmp_path / "kubectl").write_text(script)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "calls"


@pytest.mark.parametrize(
    ("words", "offered", "called"),
    [
        ("explain -n a ", ["train-0", "Deployment/train"], "pods -n a -l bursar.dev/governed=true"),
        ("why -n a De", ["Deployment/train"], "pods -n a"),
        ("waiting ", ["train-0"], "pods -l"),
        ("budget ", ["namespaces-1", "namespaces-2"], "namespaces"),
        ("budget _", ["_group.research"], "configmaps -n bursar-system"),
        ("top -n _", ["_group.research"], "configmaps -n bursar-system"),
        ("grant t 1 --group ", ["research"], "configmaps -n bursar-system"),
        ("grants --system-namespace x --group r", ["research"], "configmaps -n x"),
        ("grant t 1 --from namespaces-2", ["namespaces-2"], "namespaces"),
        ("map --node nodes-", ["nodes-1", "nodes-2"], "nodes"),
        ("top -n a --account ", ["serviceaccounts-1", "serviceaccounts-2"], "serviceaccounts -n a"),
        ("top --account b/", ["b/serviceaccounts-1", "b/serviceaccounts-2"], "serviceaccounts -n b"),
        ("decisions --kind ref", ["refused"], ""),
        ("grants --na", ["--namespace"], ""),
        ("grants --group g --na", [], ""),
        ("budget team-a --na", [], ""),
        ("map --na", [], ""),
        ("audit --namespace ", ["namespaces-1", "namespaces-2"], "namespaces"),
        ("audit --cont", ["--context"], ""),
        ("check -o ya", ["yaml"], ""),
        ("check --mode enforce --standing in", ["in-budget"], ""),
        ("usage --group namespace,o", ["namespace,owner"], ""),
        ("usage --group ", [*GROUPS, "label:"], ""),
    ],
)
def test_names_are_offered(calls: Path, words: str, offered: list[str], called: str) -> None:
    said = answer(words.split(" "))

    assert [line.partition("\t")[0] for line in said] == [*offered, ":4"]
    assert (calls.read_text() if calls.exists() else "").startswith(f"get {called}" if called else "")


def test_check_offers_files() -> None:
    assert answer(["check", "a.y"]) == [":0"]


def test_a_kubectl_that_fails_offers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\necho not logged in >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    for words in ("explain ", "budget _", "map --node "):
        assert answer(words.split(" ")) == [":4"]
