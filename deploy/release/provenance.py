"""Of what and by what the files of a release were made: an in-toto statement with SLSA's provenance, v1.

It is not signed, and names no time and machine, so that everybody who makes the release again can compare it.
"""

import hashlib
import json
import platform
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from deploy.release.archives import Commit
from deploy.release.dependencies import Dependency

_TYPE = "https://bursar.dev/make-dist/v1"


def statement(
    files: Mapping[str, Path], commit: Commit, downloads: str, inside: Mapping[str, Dependency]
) -> str:
    """The statement about files by their names; `inside`: the packages that one of them has inside."""
    materials = [
        {"name": "source", "digest": {"gitCommit": commit.name}},
        *({"uri": f"pkg:pypi/{key}@{each.version}"} for key, each in inside.items()),
        {"uri": f"pkg:pypi/setuptools@{version('setuptools')}"},
    ]
    predicate = {
        "buildDefinition": {
            "buildType": _TYPE,
            "externalParameters": {"command": "make dist", "DOWNLOADS": downloads},
            "internalParameters": {"SOURCE_DATE_EPOCH": commit.epoch_s},
            "resolvedDependencies": materials,
        },
        "runDetails": {
            "builder": {
                "id": f"{_TYPE}#checkout",
                "version": {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION},
            },
        },
    }
    subjects = [{"name": name, "digest": {"sha256": sha256(file)}} for name, file in sorted(files.items())]
    whole = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    return json.dumps(whole, indent=2) + "\n"


def sha256(file: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
