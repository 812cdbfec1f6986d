"""The files under deploy/, as values for the tests that compare them with each other and with the code."""

import configparser
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = ROOT / "deploy" / "manifests"
SAMPLES = ROOT / "deploy" / "samples"
NAMESPACE = "bursar-system"
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, which takes a tenth of the time
AGENTS = "bursar-node"  # the namespace of the nodes' agents


def loaded(text: str) -> list[Json]:
    """The objects of a YAML text."""
    return [document for document in yaml.load_all(text, LOADER) if document]


@cache
def documents(folder: Path = MANIFESTS) -> list[Json]:
    """Every object of a folder's YAML files, in the order in which kubectl applies them; not to be
    changed."""
    texts = (file.read_text() for file in sorted(folder.glob("*.yaml")))
    return [document for text in texts for document in loaded(text)]


def of_kind(*kinds: str) -> list[Json]:
    """The manifests' objects of these kinds."""
    return [document for document in documents() if document["kind"] in kinds]


def the(kind: str, name: str) -> Json:
    """The manifests' one object of this kind and name."""
    (found,) = (document for document in of_kind(kind) if document["metadata"]["name"] == name)
    return found


def workloads() -> list[Json]:
    """What starts pods."""
    return of_kind("Deployment", "StatefulSet", "DaemonSet")


def named(document: Json) -> str:
    """How a test's id calls an object."""
    return f"{document['kind']}-{document['metadata']['name']}"


def template(workload: Json) -> Json:
    """The pod that a workload starts."""
    pod: Json = workload["spec"]["template"]
    return pod


def containers() -> Iterator[tuple[str, Json]]:
    """Every container of every workload, with a name that tells both."""
    for workload in workloads():
        for container in template(workload)["spec"]["containers"]:
            yield f"{workload['metadata']['name']}/{container['name']}", container


def container(name: str) -> Json:
    """The container named ``workload/container``."""
    return dict(containers())[name]


def console_scripts() -> dict[str, str]:
    """The console scripts that setup.cfg declares: name -> module:function."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    return dict((part.strip() for part in line.split("=", 1)) for line in lines)  # type: ignore[misc]
