"""What `make dist` writes: the same bytes from every checkout of a commit, and a bill of materials."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import cyclonedx.schema
import jsonschema_rs
import pytest

from deploy.release.dependencies import DISTRIBUTION
from tests.packaging.checkout import ROOT, copy
from tests.packaging.conftest import COMMITTED_S, Release, run
from timekeeper.core import __version__

pytestmark = pytest.mark.soak

SUBJECTS = [
    "RELEASE_NOTES.md",
    f"bursar-{__version__}.tgz",
    "bursar.yaml",
    *(f"gpu_bursar-{__version__}{end}" for end in ("-py3-none-any.whl", ".cdx.json", ".tar.gz")),
    f"kubectl-bursar-{__version__}.tar.gz",
    "kubectl-bursar.pyz",
]
NAMES = [*SUBJECTS, "provenance.intoto.json"]
SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"


def test_every_checkout_of_a_commit_makes_the_same_bytes(
    released: Release, repository: Path, tmp_path: Path
) -> None:
    """Another path, modes, times of files, locale and time zone, and changes that are not committed."""
    other = tmp_path / "some" / "other" / "path"
    run(tmp_path, "git", "clone", "-q", str(repository), str(other), umask=0o077)
    for file in other.rglob("*.py"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    with (other / "timekeeper" / "core" / "__init__.py").open("a") as module:
        module.write("# not committed\n")
    elsewhere = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    said = run(other, sys.executable, "-m", "deploy.release", "here", umask=0o077, env=elsewhere)

    made = {file.name: file.read_bytes() for file in (other / "here").iterdir()}
    assert sorted(made) == sorted(["SHA256SUMS", *NAMES])
    assert made == {file.name: file.read_bytes() for file in released.folder.iterdir()}
    assert "note: timekeeper/core/__init__.py and 0 more files differ from the commit" in said


def test_the_sums_are_those_of_the_files(released: Release) -> None:
    lines = (released.folder / "SHA256SUMS").read_text().splitlines()
    told = {name: digest for digest, name in (line.split("  ") for line in lines)}

    assert told == {name: hashlib.sha256((released.folder / name).read_bytes()).hexdigest() for name in NAMES}


def test_the_source_archive_makes_the_same_wheel(released: Release, tmp_path: Path) -> None:
    with tarfile.open(released.file(f"gpu_bursar-{__version__}.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    build = "import setuptools.build_meta as backend; backend.build_wheel('..')"
    run(source, sys.executable, "-c", build, env={"SOURCE_DATE_EPOCH": str(COMMITTED_S)})

    (again,) = tmp_path.glob("*.whl")
    assert contents(again) == contents(released.file(".whl"))


def contents(wheel: Path) -> dict[str, bytes]:
    """Each file of a wheel."""
    archive = zipfile.ZipFile(wheel)
    return {name: archive.read(name) for name in archive.namelist()}


def test_the_bill_of_materials_is_valid_by_the_schema_of_its_format(released: Release) -> None:
    schemas = {
        file.name: json.loads(file.read_text())
        for file in SCHEMAS.glob("*.json")
        if file.name.startswith(("bom-1.6.", "spdx.", "jsf-"))
    }
    named = [(f"http://cyclonedx.org/schema/{name}", schema) for name, schema in schemas.items()]
    registry = jsonschema_rs.Registry(named)
    valid = jsonschema_rs.validator_for(schemas["bom-1.6.SNAPSHOT.schema.json"], registry=registry)

    assert [error.message for error in valid.iter_errors(released.bill)] == []
    assert not valid.is_valid(released.bill | {"components": [{"name": "without a type"}]})


def test_the_bill_of_materials_lists_the_wheel_and_what_it_needs_as_it_is_installed(
    released: Release,
) -> None:
    bill = released.bill
    wheel = bill["metadata"]["component"]
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    pinned = [line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()]
    (told,) = (text for name, text in contents(released.file(".whl")).items() if name.endswith("/METADATA"))
    requires = re.findall(r"(?m)^Requires-Dist: (?!.*\"(?:all|dev|docs)\")([\w.-]+)", told.decode())

    assert (wheel["name"], wheel["version"]) == (DISTRIBUTION, __version__)
    assert wheel["hashes"][0]["content"] == hashlib.sha256(released.file(".whl").read_bytes()).hexdigest()
    listed = [each["bom-ref"] for each in bill["components"]]
    named = [(each["name"].lower().replace("_", "-"), each["version"]) for each in bill["components"]]
    assert [f"{name}=={version}" for name, version in named] == listed
    assert set(listed) <= set(pinned)
    assert {each for reached in needs.values() for each in reached} == set(listed)
    assert len(needs[wheel["bom-ref"]]) == len(set(requires)) > 10
    assert {"psycopg-binary", "werkzeug", "orjson"} <= {each.partition("==")[0] for each in listed}
    assert all(each["licenses"] for each in bill["components"])


def test_the_provenance_names_the_commit_and_every_file_by_its_digest(released: Release) -> None:
    told = json.loads(released.file("provenance.intoto.json").read_text())
    commit = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=released.checkout, text=True).strip()

    assert (told["_type"], told["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    assert told["subject"] == [
        {
            "name": name,
            "digest": {"sha256": hashlib.sha256((released.folder / name).read_bytes()).hexdigest()},
        }
        for name in SUBJECTS
    ]
    definition = told["predicate"]["buildDefinition"]
    source, *packages = definition["resolvedDependencies"]
    assert source == {"name": "source", "digest": {"gitCommit": commit}}
    assert definition["internalParameters"] == {"SOURCE_DATE_EPOCH": COMMITTED_S}
    assert {each["purl"] for each in released.bill["components"]} < {each["uri"] for each in packages}


def test_the_chart_is_packed_as_it_is_in_the_commit(released: Release) -> None:
    with tarfile.open(released.file(f"bursar-{__version__}.tgz")) as archive:
        held = {each.name: archive.extractfile(each) for each in archive}
        found = {name: file.read() for name, file in held.items() if file is not None}

    place = ROOT / "deploy" / "chart"
    files = [file for file in place.rglob("*") if file.is_file()]
    assert found == {f"bursar/{file.relative_to(place)}": file.read_bytes() for file in files}


def test_without_a_repository_there_is_a_sentence(tmp_path: Path) -> None:
    source = copy(tmp_path / "exported")
    command = [sys.executable, "-m", "deploy.release", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)

    assert done.returncode == 1
    assert re.fullmatch(
        r"error: a release is made of a commit, and \S+ shows none: run it in a clone"
        r" \(git status: fatal: not a git repository.*\)\n",
        done.stderr,
    ), done.stderr
