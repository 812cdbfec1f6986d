"""What is rendered from the chart in deploy/chart: its values.yaml and the table of its values, which follow
from the schema; and the plain manifests with their kustomization, which are what helm makes of the chart.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any

from deploy.local.build import binaries
from deploy.local.errors import LocalError
from deploy.local.tools import HELM_TOOL, KUBERNETES_VERSION

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "chart"
MANIFESTS = ROOT / "deploy" / "manifests"
# what a template includes as it is, for its braces are Prometheus' own
ALERTS = CHART / "files" / "alerts.yaml"
# templates cannot read values.yaml, nor the schema
DEFAULTS = CHART / "files" / "defaults.yaml"
DASHBOARDS = CHART / "files" / "dashboards"
# objects that are off by default
API_SERVICE = ROOT / "deploy" / "samples" / "api-service.yaml"
# the same object as a manifest of this name, for the other database
POSTGRESQL = ROOT / "deploy" / "postgresql" / "timekeeper.yaml"

# for what has no default: the manifests say what to put in its place (docs/helm.md)
_PLACEHOLDERS = "images: {prefix: bursar}"
_SOURCE = re.compile(r"^# Source: bursar/templates/(\S+)\n", re.M)
_NAMED = re.compile(r"^(kind|  name|  namespace): (\S+)$", re.M)

Schema = Mapping[str, Any]


def helm() -> Path:
    """The path of helm. It is built where it is missing (deploy/local/build.py)."""
    return binaries(lambda line: print(line, file=sys.stderr), (HELM_TOOL,))["helm"]


def files(program: Path) -> dict[Path, str]:
    """Each rendered file with its text."""
    plain = rendered(program)
    postgresql = rendered(program, "--set=database.secretName=bursar-database")
    aggregated = rendered(program, "--set=apiService.enabled=true")
    others = {
        CHART / "values.yaml": values_yaml(),
        POSTGRESQL: postgresql["timekeeper-postgresql.yaml"],
        API_SERVICE: aggregated["api-service.yaml"],
        MANIFESTS / "Kustomization": _kustomization(plain),
    }
    return others | {MANIFESTS / name: text for name, text in plain.items()}


def rendered(program: Path, *flags: str) -> dict[str, str]:
    """What helm makes of each template that has objects, by the template's name. An install shows the version
    of the cluster's API server to the chart; here it is the version that is tested. Values that have no
    default are placeholders, unless flags set them. Raises LocalError with what helm says.
    """
    version = f"--kube-version=v{KUBERNETES_VERSION}"
    command = [str(program), "template", "bursar", str(CHART), version, "--values=-", *flags]
    done = subprocess.run(command, capture_output=True, text=True, input=_PLACEHOLDERS)
    if done.returncode:
        raise LocalError(done.stderr.strip())
    found: dict[str, list[str]] = {}
    for _, name, text in (_SOURCE.split(part) for part in re.split(r"^---\n", done.stdout, flags=re.M)[1:]):
        found.setdefault(name, []).append(re.sub(r" +$", "", text.strip("\n"), flags=re.M) + "\n")
    return {name: _in_order(name, parts) for name, parts in found.items()}


def _in_order(name: str, parts: list[str]) -> str:
    """The objects in the order of their template; helm sorts them by kind."""
    template = (CHART / "templates" / name).read_text()
    order = {_key(part): at for at, part in enumerate(re.split(r"^---$", template, flags=re.M))}
    return "---\n".join(sorted(parts, key=lambda part: order.get(_key(part), len(order))))


def _key(text: str) -> tuple[tuple[str, str], ...]:
    """Kind, name and namespace of an object. Templates of plain manifests have them in full."""
    found: dict[str, str] = {}
    for name, value in _NAMED.findall(text):
        found.setdefault(name, value)
    return tuple(sorted(found.items()))


def dashboards() -> dict[Path, str]:
    """Grafana's dashboards, as the chart's ConfigMap has them."""
    folder = ROOT / "deploy" / "monitoring" / "dashboards"
    return {DASHBOARDS / each.name: each.read_text() for each in sorted(folder.glob("*.json"))}


def alerts() -> str:
    """The groups of rules, as the chart's PrometheusRule has them."""
    text = (ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text()
    return dedent(text.partition("\nspec:\n")[2])


def _kustomization(plain: Mapping[str, str]) -> str:
    """Its name has no suffix, so that ``kubectl apply -f`` of the folder leaves it out."""
    resources = "".join(f"  - {name}\n" for name in sorted(plain))
    return (
        "# Rendered from deploy/chart: a base for kustomize.\n"
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"
    )


def schema() -> dict[str, Any]:
    """The schema of the chart's values."""
    read: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return read


def values_yaml() -> str:
    """The default values, each under its description."""
    return "# The values of Bursar's chart, rendered from values.schema.json. See docs/helm.md.\n" + "".join(
        _section(schema()["properties"], "")
    )


def defaults() -> str:
    """The default of each value by its path, as templates read them."""
    return "".join(
        f"{path}: {json.dumps(value['default'])}\n" for path, value in leaves(schema()["properties"])
    )


def _section(properties: Mapping[str, Schema], margin: str) -> Iterator[str]:
    for name, each in properties.items():
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each["description"])
        yield "" if margin else "\n"
        yield from (f"{margin}# {line}\n" for line in wrap(text, 118 - len(margin)))
        if each.get("properties") and "default" not in each:
            yield f"{margin}{name}:\n"
            yield from _section(each["properties"], margin + "  ")
        else:
            yield f"{margin}{name}: {json.dumps(each['default'])}\n"


def leaves(properties: Mapping[str, Schema], above: str = "") -> Iterator[tuple[str, Schema]]:
    """Each value with a default, by its path."""
    for name, each in properties.items():
        if "default" in each:
            yield above + name, each
        else:
            yield from leaves(each["properties"], f"{above}{name}.")
