"""What `kubectl bursar save` writes of objects, and what it takes for a whole ledger."""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from timekeeper.cli.output import CommandError
from timekeeper.cli.save.command import manifest, marks
from timekeeper.cli.save.folder import Folder, rows_of
from timekeeper.core.budgets.config_maps import is_read

STORED = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {
        "name": "physics",
        "namespace": "bursar-system",
        "labels": {"bursar.dev/budgets": "true"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "ours"},
        "uid": "1",
        "resourceVersion": "2",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "managedFields": [{}],
        "ownerReferences": [{}],
        "generation": 3,
        "selfLink": "/",
    },
    "data": {"physics": "gpuHours: 1"},
    "immutable": True,
    "status": {},
}


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {key.replace("_", "/"): text for key, text in labels.items()}}
    }


def test_a_manifest_has_what_people_wrote_and_nothing_of_one_api_server() -> None:
    assert manifest(STORED) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "physics",
            "namespace": "bursar-system",
            "labels": {"bursar.dev/budgets": "true"},
            "annotations": {"note": "ours"},
        },
        "data": {"physics": "gpuHours: 1"},
        "immutable": True,
    }


@given(
    data=st.dictionaries(
        st.text("abc", min_size=1),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t \r:#|-")),
    )
)
def test_each_text_is_read_from_its_file_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, str]
) -> None:
    folder = Folder(tmp_path_factory.mktemp("saved"))

    name = folder.write_manifest({**manifest(STORED), "data": data})

    assert yaml.safe_load((folder.path / name).read_bytes())["data"] == data


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (config_map("bursar-settings"), True),
        (config_map("bursar-budgets"), True),
        (config_map("physics", **{"bursar.dev_budgets": "true"}), True),
        (config_map("physics", **{"bursar.dev_budgets": "false"}), False),
        (config_map("notes"), False),
    ],
)
def test_the_config_maps_with_budgets_are_those_that_bursar_reads(found: Any, expected: bool) -> None:
    assert is_read(found) == expected


def test_the_commands_write_our_marks_again_as_they_were_and_no_others() -> None:
    text = 'it\'s $(touch x) "quoted"\nand long'
    metadata = {
        "name": "n1",
        "labels": {"bursar.node-restriction.kubernetes.io/gpu-node": "true", "pool": "big"},
        "annotations": {"bursar.dev/cordoned-cards": text, "bursar.dev/holders": "[]", "x.bursar.dev/y": "z"},
    }
    (label, annotate) = marks("node", [{"metadata": metadata}])

    assert label == ("kubectl label node n1 --overwrite bursar.node-restriction.kubernetes.io/gpu-node=true")
    assert shlex.split(annotate) == [
        *("kubectl", "annotate", "node", "n1", "--overwrite"),
        f"bursar.dev/cordoned-cards={text}",
    ]


def exported(rows: int) -> list[bytes]:
    lines = [b'{"bursar":"ledger","version":1}\n', *(rows * [b'{"table":"grants","row":{}}\n'])]
    trailer = {"lines": len(lines), "sha256": hashlib.sha256(b"".join(lines)).hexdigest()}
    return [*lines, json.dumps(trailer).encode() + b"\n"]


def test_a_whole_ledger_is_counted_by_table() -> None:
    assert rows_of(exported(3)) == {"grants": 3}


@pytest.mark.parametrize("lines", [[], exported(3)[:-1], exported(3)[:-2] + exported(3)[-1:], [b"\xff\n"]])
def test_a_ledger_that_is_cut_off_is_none(lines: list[bytes]) -> None:
    with pytest.raises(CommandError, match="cut off after"):
        rows_of(lines)


def test_a_folder_with_a_file_is_refused_and_a_new_one_is_its_users_alone(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "new" / "folder")
    folder.write("a", "text")

    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert (folder.path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandError, match=r"^DIR: .*folder is not empty: it must be a new or an empty"):
        Folder(folder.path)


def test_a_file_that_could_not_be_completed_is_not_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path)

    def fail() -> None:
        with folder.writing("ledger") as out:
            out.write(b"half")
            raise CommandError("it ended")

    with pytest.raises(CommandError, match="it ended"):
        fail()
    assert list(tmp_path.iterdir()) == []
