"""The chart by helm itself: what is rendered from it, and which values it refuses."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import rendered
from deploy.local.cluster import ControlPlane
from deploy.local.errors import LocalError
from tests.deploy.reading import MANIFESTS, documents

Values = dict[str, Any]


@pytest.fixture(scope="module")
def helm() -> Path:
    return rendered.helm()


def test_the_manifests_are_what_is_rendered_from_the_chart(helm: Path) -> None:
    files = rendered.files(helm)

    for file, text in files.items():
        assert file.read_text() == text, f"{file}: write it anew: python -m deploy.generated"
    assert set(MANIFESTS.iterdir()) == {file for file in files if file.parent == MANIFESTS}


def test_kustomize_takes_the_manifests_as_a_base(shared_control_plane: ControlPlane) -> None:
    done = shared_control_plane.kubectl("kustomize", str(MANIFESTS))

    assert done.returncode == 0, done.stderr
    assert canonical(yaml.safe_load_all(done.stdout)) == canonical(documents())


def canonical(found: Iterable[Values]) -> list[str]:
    """Objects without the order in which they and their fields come."""
    return sorted(json.dumps(each, sort_keys=True) for each in found)


BAD: tuple[tuple[str, str], ...] = (
    ("--set=webhok.replicas=3", "additional properties 'webhok' not allowed"),
    ("--set=webhook.replica=3", "at '/webhook': additional properties 'replica' not allowed"),
    ("--set=webhook.replicas=0", "at '/webhook/replicas': minimum: got 0, want 1"),
    ("--set=mode=observed", "at '/mode': value must be one of 'enforce', 'observe'"),
    (
        "--set=settings.mode=observe",
        "settings.mode: the mode has a value of its own; for example --set mode=",
    ),
    (
        "--set=policies.warn={bursar-holds}",
        "at '/policies/warn/0': value must be one of 'bursar-anti-",
    ),
    ("--set=networkPolicies.enabled=true", "at '/networkPolicies/apiServers': minItems: got 0, want 1"),
    ("--set=timekeeper.storage.size=10GB", "at '/timekeeper/storage/size': '10GB' does not match pattern"),
    ("--set=policies.guardedPaths={/dev/a'b}", "at '/policies/guardedPaths/0': "),
)


@pytest.mark.parametrize(("flag", "said"), BAD, ids=[flag.removeprefix("--set=") for flag, _ in BAD])
def test_a_bad_value_is_refused_by_its_name(helm: Path, flag: str, said: str) -> None:
    with pytest.raises(LocalError) as refused:
        rendered.rendered(helm, flag)

    assert said in str(refused.value)


OTHER: Values = {
    "settings": {"ratio": 2},
    "resources": {"limits": {"memory": "77Mi"}},
    "replicas": 5,
    "extraArgs": ["--log-format=json"],
    "warn": [],
    "guardedPaths": ["/dev/other"],
    "apiServers": ["192.0.2.1/32"],
    "otherSchedulers": ["kai-scheduler"],
    "size": "7Gi",
    "interval": "7s",
    "tokenFile": "/other",
    "tolerations": [{"key": "other", "operator": "Exists"}],
    "nodeSelector": {"other": "label"},
    "labels": {"other": "label"},
    "maxGracePeriodSeconds": 7,
}
# what shows the values of parts that are off by default
ON = {
    "networkPolicies": {"enabled": True, "apiServers": ["10.0.0.1/32"]},
    "monitors": {"enabled": True},
    "prometheusRules": {"enabled": True},
}


def other(path: str, each: rendered.Schema) -> Any:
    """Another value than the default one."""
    name = path.rpartition(".")[2]
    match each:
        case {"type": "boolean", "default": bool(default)}:
            return not default and path.partition(".")[0] not in ON
        case {"enum": choices, "default": default}:
            return next(one for one in choices if one not in (default, ""))
        case {"default": list()} if name not in OTHER:
            return ["other"]
    return OTHER.get(name, "other")


def nested(path: str, value: Any) -> Values:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def test_the_rule_of_the_chart_has_the_alerts_of_the_rules_file(helm: Path) -> None:
    (found,) = rendered.rendered(helm, "--set=prometheusRules.enabled=true")["prometheus-rules.yaml"].split(
        "---\n"
    )

    alerts = rendered.ROOT / "deploy" / "monitoring" / "alerts.yaml"
    assert yaml.safe_load(found) == yaml.safe_load(alerts.read_text())


def test_the_operator_scrapes_what_a_prometheus_without_it_scrapes(helm: Path) -> None:
    monitors = yaml.safe_load_all(rendered.rendered(helm, "--set=monitors.enabled=true")["monitors.yaml"])
    ours = {
        (each.get("tlsConfig", {}).get("serverName"), each["path"], each.get("bearerTokenFile"))
        for monitor in monitors
        for each in monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    }

    plain = rendered.ROOT / "deploy" / "monitoring" / "scrape-configs.yaml"
    jobs = yaml.safe_load(plain.read_text())["scrape_configs"]
    assert len(ours) == 5
    assert ours == {
        (
            job.get("tls_config", {}).get("server_name"),
            job["metrics_path"],
            job.get("authorization", {}).get("credentials_file"),
        )
        for job in jobs
    }


def test_every_value_changes_what_is_rendered(helm: Path, tmp_path: Path) -> None:
    (tmp_path / "on.yaml").write_text(yaml.safe_dump(ON))
    sqlite, postgresql = f"--values={tmp_path}/on.yaml", "--set=database.secretName=bursar-database"
    before = {base: rendered.rendered(helm, base) for base in (sqlite, postgresql)}

    for path, each in rendered.leaves(rendered.schema()["properties"]):
        base = postgresql if path in ("database.secretKey", "timekeeper.replicas") else sqlite
        (tmp_path / "other.yaml").write_text(yaml.safe_dump(nested(path, other(path, each))))

        assert rendered.rendered(helm, base, f"--values={tmp_path}/other.yaml") != before[base], path
