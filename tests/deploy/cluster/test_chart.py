"""The chart by helm itself: what is rendered from it, and which values it refuses."""

import itertools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import rendered
from deploy.local.cluster import ControlPlane
from deploy.local.errors import LocalError
from tests.deploy.chart_values import ADDED, EXTRA, ON, Values, merged
from tests.deploy.reading import MANIFESTS, ROOT, documents, loaded
from tests.support.control_plane import apply
from timekeeper.runtime.oidc_settings import OidcSettings
from timekeeper.settings import read as timekeeper_settings


@pytest.fixture(scope="module")
def helm() -> Path:
    return rendered.helm()


def test_the_manifests_are_what_is_rendered_from_the_chart(helm: Path) -> None:
    files = rendered.files(helm)

    for file, text in files.items():
        assert file.read_text() == text, f"{file}: write it anew: python -m deploy.generated"
    assert set(MANIFESTS.iterdir()) == {file for file in files if file.parent == MANIFESTS}


def test_kustomize_takes_the_manifests_as_a_base(control_plane: ControlPlane) -> None:
    done = control_plane.kubectl("kustomize", str(MANIFESTS))

    assert done.returncode == 0, done.stderr
    assert canonical(loaded(done.stdout)) == canonical(documents())


def canonical(found: Iterable[Values]) -> list[str]:
    """Objects without the order in which they and their fields come."""
    return sorted(json.dumps(each, sort_keys=True) for each in found)


def _volume(of: str, name: str) -> str:
    return f"--set={of}.extraVolumes[0].name={name},{of}.extraVolumes[0].emptyDir.sizeLimit=1Mi"


def _mount(of: str, name: str, path: str) -> str:
    return f"{of}.extraVolumeMounts[0].name={name},{of}.extraVolumeMounts[0].mountPath={path}"


BAD: tuple[tuple[str, str], ...] = (
    (
        "--set=images.prefix=",
        "images.prefix: no public registry has Bursar's images. Build and push your own",
    ),
    ("--set=images.prefix=a//b", "at '/images/prefix': 'a//b' does not match pattern"),
    ("--set=webhok.replicas=3", "additional properties 'webhok' not allowed"),
    ("--set=webhook.replica=3", "at '/webhook': additional properties 'replica' not allowed"),
    ("--set=webhook.replicas=0", "at '/webhook/replicas': minimum: got 0, want 1"),
    ("--set=mode=observed", "at '/mode': value must be one of 'enforce', 'observe'"),
    (
        "--set=settings.mode=observe",
        "settings.mode: it has a value of its own; for example --set mode=observe",
    ),
    (
        "--set=settings.placement=off",
        "settings.placement: it has a value of its own; for example --set placement=off",
    ),
    ("--set=placement=none", "at '/placement': value must be one of 'on', 'off'"),
    (
        "--set=policies.warn={bursar-holds}",
        "at '/policies/warn/0': value must be one of 'bursar-anti-",
    ),
    ("--set=dashboard.ingress.enabled=true", "at '/dashboard/ingress/host': minLength: got 0, want 1"),
    ("--set=dashboard.gateway.enabled=true", "at '/dashboard/gateway/parentRefs': minItems: got 0, want 1"),
    (
        "--set=mode=meter,dashboard.gateway.enabled=true,dashboard.gateway.host=a,dashboard.gateway.parentRefs[0].name=b",
        "dashboard.gateway.enabled: mode meter has no CA that a gateway can verify; set it to false",
    ),
    ("--set=networkPolicies.enabled=true", "at '/networkPolicies/apiServers': minItems: got 0, want 1"),
    ("--set=timekeeper.storage.size=10GB", "at '/timekeeper/storage/size': '10GB' does not match pattern"),
    ("--set=policies.guardedPaths={/dev/a'b}", "at '/policies/guardedPaths/0': "),
    (
        "--set=timekeeper.extraVolumes[0].name=x,timekeeper.extraVolumes[0].hostPath.path=/",
        "at '/timekeeper/extraVolumes/0': additional properties 'hostPath' not allowed",
    ),
    (
        f"{_volume('timekeeper', 'ledger')}",
        "timekeeper.extraVolumes: there is a volume ledger already; give yours another name",
    ),
    (
        f"{_volume('scheduler', 'x')},{_mount('extender', 'tmp', '/x')}",
        "extender.extraVolumeMounts: there is no volume tmp in scheduler.extraVolumes",
    ),
    *(
        (
            f"{_volume('timekeeper', 'x')},{_mount('timekeeper', 'x', path)}",
            f"timekeeper.extraVolumeMounts: {shown} would hide {ours} or lie in it; choose another path",
        )
        for path, shown, ours in (
            ("/etc/", "/etc", "/etc/bursar/tls"),
            ("//etc/bursar/tls", "/etc/bursar/tls", "/etc/bursar/tls"),
            ("/etc/bursar/tls/x", "/etc/bursar/tls/x", "/etc/bursar/tls"),
            ("/", "/", "/opt/bursar"),
        )
    ),
    (
        "--set=database.secretName=a,timekeeper.extraEnv[0].name=BURSAR_DATABASE",
        "timekeeper.extraEnv: BURSAR_DATABASE is set already",
    ),
    ("--set=timekeeper.extraEnv[0].name=1", "at '/timekeeper/extraEnv/0/name': got number, want string"),
    (
        "--set=timekeeper.extraEnv[0].name=BURSAR_LISTEN",
        "timekeeper.extraEnv: BURSAR_LISTEN has no effect beside the flag --listen, which is set",
    ),
    ("--set=certificates.replicas=3", "at '/certificates': additional properties 'replicas' not allowed"),
    (
        "--set=podLabels.app\\.kubernetes\\.io/name=other",
        "at '/podLabels/app.kubernetes.io~1name': false schema",
    ),
)


@pytest.mark.parametrize(("flag", "said"), BAD, ids=[flag.removeprefix("--set=") for flag, _ in BAD])
def test_a_bad_value_is_refused_by_its_name(helm: Path, flag: str, said: str) -> None:
    with pytest.raises(LocalError) as refused:
        rendered.rendered(helm, flag)

    assert said in str(refused.value)


def values_of(page: str) -> Iterator[Values]:
    """The chart's values in the examples of a page."""
    for kind, text in re.findall(r"^```(yaml|hcl)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        if kind == "hcl":
            (found,) = re.findall(r"yamlencode\((.*)\)", text)
            yield yaml.safe_load(found.replace(" =", ":"))
        else:
            spec = yaml.safe_load(text)["spec"]
            yield spec["values"] if "values" in spec else spec["source"]["helm"]["valuesObject"]


def test_the_values_in_the_examples_for_other_tools_are_the_charts(helm: Path, tmp_path: Path) -> None:
    examples = [*values_of((ROOT / "docs" / "gitops.md").read_text())]

    assert len(examples) == 3
    for values in examples:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        text = "".join(rendered.rendered(helm, f"--values={tmp_path}/values.yaml").values())
        assert "registry.example.com/bursar/timekeeper:" in text
        assert "bursar-webhook" not in text


def of_another_kind(each: rendered.Schema) -> Any:
    return "text" if isinstance(each["default"], dict) else {"an": "object"}


def out_of_range(path: str, each: rendered.Schema) -> Any:
    """Of the right kind, and not allowed. ``settings`` is free, and switches have two values."""
    match each["default"]:
        case bool():
            return None
        case str():
            return "\t"
        case int():
            return -1
    return {
        "tolerations": [{"opertor": "Exists"}],
        "resources": {"limits": {"cpu": "1 core"}},
        "affinity": {"nodeAfinity": {}},
        "digests": {"webhook": "latest"},
        "settings": None,
        "otherSchedulers": [""],
    }.get(path.rpartition(".")[2], {"a": 1} if isinstance(each["default"], dict) else ["\t"])


@pytest.mark.parametrize("kind", ["of another kind", "out of range"])
def test_every_wrong_value_is_refused_by_its_name(helm: Path, tmp_path: Path, kind: str) -> None:
    leaves = list(rendered.leaves(rendered.schema()["properties"]))
    made = {
        path: of_another_kind(each) if kind == "of another kind" else out_of_range(path, each)
        for path, each in leaves
    }
    wrong = {path: value for path, value in made.items() if value is not None}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(merged(map(nested, wrong, wrong.values()))))

    with pytest.raises(LocalError) as refused:
        rendered.rendered(helm, f"--values={tmp_path}/wrong.yaml")

    said = re.findall(r"at '/([^']*)': \S", str(refused.value))
    named = {each.replace("/", ".") for each in said}
    unnamed = [path for path in wrong if not any(f"{each}.".startswith(f"{path}.") for each in named)]
    assert unnamed == []
    assert len(wrong) > 50


def test_pods_get_labels_and_annotations_beside_those_that_select_them(helm: Path) -> None:
    flags = ("--set=podLabels.team=gpus", "--set-string=podAnnotations.logs=off")
    texts = {**rendered.rendered(helm, *flags)}
    texts |= rendered.rendered(helm, *flags, "--set=database.secretName=bursar-database")
    made = [each["spec"]["template"]["metadata"] for each in _workloads(texts)]

    assert len(made) == 6
    for metadata in made:
        assert metadata["annotations"] == {"logs": "off"}
        assert metadata["labels"].items() > {"team": "gpus", "app.kubernetes.io/name": "bursar"}.items()


@pytest.mark.parametrize("database", ["", "bursar-database"])
def test_containers_take_volumes_and_variables_beside_their_own(
    helm: Path, tmp_path: Path, database: str
) -> None:
    properties = rendered.schema()["properties"]
    given = {
        of: {name: value for name, value in EXTRA.items() if name in properties[of]["properties"]}
        for of in set(itertools.chain(*ADDED.values()))
    }
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(given))
    found: dict[tuple[str, bool], tuple[list[Values], ...]] = {}
    for flags in ((), (f"--values={tmp_path}/more.yaml",)):
        texts = rendered.rendered(helm, f"--set=database.secretName={database}", *flags)
        pods = [each["spec"]["template"]["spec"] for each in _workloads(texts)]
        for pod in pods:
            for one in pod["containers"]:
                added = pod.get("volumes", []), one.get("volumeMounts", []), one.get("env", [])
                found[one["name"], bool(flags)] = added

    for name, (of, of_pod) in ADDED.items():
        added = (given[of_pod]["extraVolumes"], given[of]["extraVolumeMounts"], given[of].get("extraEnv", []))
        for before, after, more in zip(found[name, False], found[name, True], added, strict=True):
            assert after == [*before, *more], name
    for name in {name for name, _ in found} - ADDED.keys():
        assert found[name, True][1:] == found[name, False][1:]


AKS = [
    {"key": "control-plane", "operator": "DoesNotExist"},
    {"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]},
]


def test_the_webhook_configurations_get_what_a_platform_wants_of_them(helm: Path, tmp_path: Path) -> None:
    page = (rendered.ROOT / "docs" / "platforms" / "aks.md").read_text()
    (flag,) = re.findall(r"--set-string '(webhook\S+)'", page)
    wanted = {"configuration": {"labels": {"team": "platform"}, "matchExpressions": AKS}}
    (tmp_path / "aks.yaml").write_text(yaml.safe_dump({"webhook": wanted}))
    more = (f"--values={tmp_path}/aks.yaml", f"--set-string={flag}")
    before, after = (
        loaded(rendered.rendered(helm, *flags)["webhook-configurations.yaml"]) for flags in ((), more)
    )

    for plain, changed in zip(before, after, strict=True):
        assert changed["metadata"]["annotations"] == {"admissions.enforcer/disabled": "true"}
        assert changed["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "platform"}
        for own, webhook in zip(plain["webhooks"], changed["webhooks"], strict=True):
            terms = own["namespaceSelector"]["matchExpressions"]
            assert webhook["namespaceSelector"]["matchExpressions"] == [*terms, *AKS]


def test_the_rights_to_scale_the_owners_of_idle_pods_are_optional(helm: Path) -> None:
    without, with_them = (
        {resource for role in loaded(rendered.rendered(helm, f"--set=idleScaling={on}")["rbac.yaml"])
         for rule in role.get("rules", []) for resource in rule.get("resources", [])}
        for on in ("false", "true")
    )  # fmt: skip

    assert with_them - without == {
        *("deployments", "replicasets", "horizontalpodautoscalers", "notebooks"),
        *("deployments/scale", "replicasets/scale", "statefulsets/scale"),
    }


@pytest.mark.parametrize(("mode", "file"), [("enforce", "rbac.yaml"), ("meter", "meter-rbac.yaml")])
def test_the_rights_to_hold_kueues_queues_are_optional(helm: Path, mode: str, file: str) -> None:
    without, with_them = (
        [
            (role["metadata"]["name"], rule)
            for role in loaded(rendered.rendered(helm, f"--set=mode={mode}", f"--set=kueue={on}")[file])
            for rule in role.get("rules", [])
        ]
        for on in ("false", "true")
    )

    queues = {"apiGroups": ["kueue.x-k8s.io"], "resources": ["localqueues"]}
    added = [rule for rule in with_them if rule not in without]
    assert added == [("bursar-timekeeper", queues | {"verbs": ["list", "watch", "patch"]})]


def _workloads(texts: dict[str, str]) -> list[Values]:
    objects = [each for text in texts.values() for each in loaded(text)]
    return [each for each in objects if "template" in each.get("spec", {})]


def test_what_secrets_and_configmaps_hold_is_mounted_where_it_is_named(helm: Path) -> None:
    flags = ("--set=database.secretName=url", "--set=database.caSecretName=db-ca")
    texts = rendered.rendered(helm, *flags, "--set=webhook.callersConfigMap=bursar-callers")

    def mounted(name: str, path: str) -> Values:
        """The source of the volume that a Deployment's only container has at a path."""
        objects = [each for each in loaded(texts[name]) if each["kind"] in ("Deployment", "StatefulSet")]
        spec = objects[0]["spec"]["template"]["spec"]
        (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if each["mountPath"] == path)
        (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
        return {key: value for key, value in volume.items() if key != "name"}

    items = [{"key": "ca.crt", "path": "ca.crt"}]
    database = mounted("timekeeper-postgresql.yaml", "/etc/bursar/database")
    assert database == {"secret": {"secretName": "db-ca", "defaultMode": 0o440, "items": items}}
    callers = mounted("webhook.yaml", "/etc/bursar/callers")
    assert callers == {"configMap": {"name": "bursar-callers", "items": items}}
    assert "--client-ca=/etc/bursar/callers/ca.crt\n" in texts["webhook.yaml"]


@pytest.mark.parametrize("database", ["", "--set=database.secretName=url"])
def test_the_login_of_the_page_becomes_flags_and_files_of_the_timekeeper(
    helm: Path, tmp_path: Path, database: str
) -> None:
    page = (rendered.ROOT / "docs" / "login.md").read_text()
    (tmp_path / "login.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    flags = [f"--values={tmp_path}/login.yaml", "--set=dashboard.oidc.caConfigMapName=cas"]
    flags += filter(None, [database])
    name = "timekeeper-postgresql.yaml" if database else "timekeeper.yaml"

    objects = loaded(rendered.rendered(helm, *flags)[name])

    (spec,) = (each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {}))
    (container,) = spec["containers"]
    assert timekeeper_settings(container["args"], {}).oidc == OidcSettings(
        issuer="https://login.example.com",
        client_id="bursar",
        client_secret_file=Path("/etc/bursar/oidc/client-secret"),
        ca_file=Path("/etc/bursar/oidc-ca/ca.crt"),
        username_claim="preferred_username",
        username_prefix="oidc:",
        groups_claim="groups",
        groups_prefix="oidc:",
        scopes="openid email profile groups",
        dashboard_url="https://bursar.example.com",
    )
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert (mounts["oidc"], mounts["oidc-ca"]) == ("/etc/bursar/oidc", "/etc/bursar/oidc-ca")
    assert volumes["oidc"]["secret"]["secretName"] == "bursar-oidc"
    assert volumes["oidc-ca"]["configMap"]["name"] == "cas"


@pytest.mark.parametrize("name", ["dashboard.url", "dashboard.oidc.clientId"])
def test_a_login_without_what_it_needs_is_refused_by_the_values_name(helm: Path, name: str) -> None:
    given = {"dashboard.url": "https://bursar.example.com", "dashboard.oidc.clientId": "bursar"}
    flags = [f"--set={key}={value}" for key, value in given.items() if key != name]

    with pytest.raises(LocalError) as refused:
        rendered.rendered(helm, "--set=dashboard.oidc.issuer=https://login.example.com", *flags)

    assert f"{name}: dashboard.oidc.issuer needs" in str(refused.value)


def test_an_image_with_a_digest_is_named_by_it_in_its_pods_and_by_the_webhook(helm: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    texts = rendered.rendered(helm, f"--set=images.digests.sidecar={digest}", "--set=images.tag=v1")

    (agent,) = (each for each in loaded(texts["node-agent.yaml"]) if each["kind"] == "DaemonSet")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"bursar/sidecar:v1@{digest}"
    assert f'"--sidecar-image=bursar/sidecar:v1@{digest}"\n' in texts["webhook.yaml"]
    assert 'image: "bursar/webhook:v1"\n' in texts["webhook.yaml"]


OTHER: Values = {
    "settings": {"ratio": 2},
    "resources": {"limits": {"memory": "77Mi"}},
    "replicas": 5,
    "extraArgs": ["--log-format=json"],
    "warn": [],
    "guardedPaths": ["/dev/other"],
    "apiServers": ["192.0.2.1/32"],
    "timekeeperClients": ["192.0.2.1/32"],
    "accelerators": ["example.com/npu"],
    "otherSchedulers": ["kai-scheduler"],
    "size": "7Gi",
    "tokenFile": "/other",
    "driverRoot": "/other",
    "serviceAnnotations": {"other": "annotation"},
    "annotations": {"other": "annotation"},
    "parentRefs": [{"name": "other"}],
    "matchExpressions": [{"key": "other", "operator": "Exists"}],
    **EXTRA,
    "tolerations": [{"key": "other", "operator": "Exists"}],
    "nodeSelector": {"other": "label"},
    "labels": {"other": "label"},
    "podLabels": {"other": "label"},
    "podAnnotations": {"other": "annotation"},
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "digests": {"sidecar": f"sha256:{'0' * 64}"},
    "maxGracePeriodSeconds": 7,
    **{probe: {"failureThreshold": 77} for probe in ("startupProbe", "livenessProbe", "readinessProbe")},
    "accessModes": ["ReadWriteOnce"],
    "kubeletDir": "/var/lib/k0s/kubelet",
    **dict.fromkeys(("cdi", "cdiRun", "containerd", "crio", "nri", "nvidiaRuntime"), "/var/other"),
    "commonLabels": {"other": "label"},
    "commonAnnotations": {"other": "annotation"},
    "url": "https://other.example.com",
    "issuer": "https://other.example.com",
}
ON_POSTGRESQL = ("database.secretKey", "database.caSecretName", "timekeeper.replicas")


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
    monitors = loaded(rendered.rendered(helm, "--set=monitors.enabled=true")["monitors.yaml"])
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


@pytest.mark.parametrize("database", ["", "--set=database.secretName=bursar-database"])
def test_without_placement_nothing_of_the_scheduler_is_installed_and_the_setting_is_written(
    helm: Path, tmp_path: Path, database: str
) -> None:
    values = tmp_path / "off.yaml"
    values.write_text("placement: off\nsettings: {idle: evict}\n" + yaml.safe_dump(ON))  # YAML 1.1: false
    flags = [f"--values={values}", "--set=podDisruptionBudgets=true", *filter(None, [database])]

    texts = rendered.rendered(helm, *flags)

    objects = [each for text in texts.values() for each in loaded(text)]
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    with_it = {each for text in rendered.rendered(helm).values() for each in map(_named, loaded(text))}
    gone = {name for kind, name in with_it - names if kind != "ConfigMap"}
    assert gone <= {
        *("bursar-kube-scheduler", "bursar-volume-scheduler", "bursar-scheduler", "bursar-extender"),
        "bursar-timekeeper",  # of the other database
    }
    assert not [name for _, name in names if "scheduler" in name or "extender" in name]
    (settings,) = [each["data"] for each in objects if each["metadata"]["name"] == "bursar-settings"]
    assert yaml.safe_load(settings["_settings"]) == {"idle": "evict"}
    (mode,) = [made["data"] for made in objects if made["metadata"]["name"] == "bursar-mode"]
    assert mode == {"mode": "enforce", "placement": "off"}
    assert "- --placement=off\n" in texts["webhook.yaml"]
    assert not [name for name, text in texts.items() if "--extender-url" in text]
    (rules,) = [each["spec"]["groups"] for each in objects if each["kind"] == "PrometheusRule"]
    both = yaml.safe_load((rendered.ROOT / "deploy/monitoring/alerts.yaml").read_text())["spec"]["groups"]
    assert rules == [each for each in both if each["name"] != "bursar-extender"]
    assert not re.search(r"absent\(bursar_extender", json.dumps(rules))


def _named(each: Values) -> tuple[str, str]:
    return each["kind"], each["metadata"]["name"]


def test_the_sidecars_user_is_left_to_the_cluster_by_a_value(helm: Path) -> None:
    texts = [rendered.rendered(helm, *flags)["webhook.yaml"] for flags in ((), ("--set=sidecarUser=none",))]

    assert ["--sidecar-user=none" in text for text in texts] == [False, True]


def test_a_secret_for_the_sidecar_is_added_by_a_value(helm: Path) -> None:
    flags = (), ("--set=sidecarPullSecret=bursar-pull",)
    texts = [rendered.rendered(helm, *flag)["webhook.yaml"] for flag in flags]

    assert ["--sidecar-pull-secret=bursar-pull" in text for text in texts] == [False, True]


def test_the_webhooks_see_the_accelerators_that_values_name(helm: Path, tmp_path: Path) -> None:
    devices = {"example.com/npu": "NPU", "rdma/hca": "none"}
    values = tmp_path / "devices.yaml"
    values.write_text(yaml.safe_dump({"accelerators": ["acme.com/card"], "settings": {"devices": devices}}))

    text = rendered.rendered(helm, f"--values={values}")["webhook-configurations.yaml"]

    webhooks = [webhook for configuration in loaded(text) for webhook in configuration["webhooks"]]
    conditions = [term["expression"] for webhook in webhooks for term in webhook.get("matchConditions", ())]
    of_pods = [expression for expression in conditions if "bursar\\.dev" in expression]
    named = " || k in ['acme.com/card', 'example.com/npu']"
    assert [expression.count(named) for expression in of_pods] == [2] * 4
    assert "rdma/hca" not in text


@pytest.mark.soak
def test_every_value_changes_what_is_rendered(helm: Path, tmp_path: Path) -> None:
    (tmp_path / "on.yaml").write_text(yaml.safe_dump(ON))
    sqlite, postgresql = f"--values={tmp_path}/on.yaml", "--set=database.secretName=bursar-database"
    before = {base: rendered.rendered(helm, base) for base in (sqlite, postgresql)}

    for path, each in rendered.leaves(rendered.schema()["properties"]):
        base = postgresql if path in ON_POSTGRESQL else sqlite
        whole = [nested(path, other(path, each))]
        if path.endswith(".extraVolumeMounts"):
            of = path.partition(".")[0].replace("extender", "scheduler")
            whole.append(nested(f"{of}.extraVolumes", EXTRA["extraVolumes"]))
        (tmp_path / "other.yaml").write_text(yaml.safe_dump(merged(whole)))

        assert rendered.rendered(helm, base, f"--values={tmp_path}/other.yaml") != before[base], path


def spelled(path: str, each: rendered.Schema, word: str) -> Any:
    """A value that has the word wherever it has a text; None where it has none, or only certain ones."""
    match path.rpartition(".")[2], each["default"]:
        case _, str() if "enum" not in each and re.search(each.get("pattern", ""), word):
            return word
        case "pullSecrets" | "otherSchedulers" | "gpuRuntimeClasses" | "exemptNamespaces", _:
            return [word]
        case "tolerations", _:
            return [{"key": word, "operator": "Equal", "value": word}]
        case (
            ("labels" | "podLabels" | "commonLabels" | "nodeSelector")
            | ("annotations" | "podAnnotations" | "commonAnnotations" | "serviceAnnotations"),
            _,
        ):
            return {"other": word}
    return None


def kinds(value: Any) -> Any:
    """The same with the kind of each scalar in its place."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    return [kinds(each) for each in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize(
    "word", ["123", *(pytest.param(word, marks=pytest.mark.soak) for word in ("true", "null", "0x1f"))]
)
def test_a_text_that_yaml_takes_for_something_else_stays_a_text(
    helm: Path, tmp_path: Path, word: str
) -> None:
    def objects(text: str, base: Values) -> list[Any]:
        leaves = rendered.leaves(rendered.schema()["properties"])
        values = {path: spelled(path, each, text) for path, each in leaves}
        given = [nested(path, value) for path, value in values.items() if value is not None]
        assert len(given) > 20
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(merged([*given, ON, base])))
        texts = rendered.rendered(helm, f"--values={tmp_path}/values.yaml")
        return [kinds(each) for name in sorted(texts) for each in loaded(texts[name])]

    for base in ({}, nested("database.secretName", "")):
        assert objects(word, base) == objects("word", base)


def daemon_set(namespace: str, **spec: Any) -> list[Values]:
    """A namespace with a DaemonSet whose pods have these fields."""
    labels = {"app": "net"}
    pod = {"containers": [{"name": "net", "image": "x"}], **spec}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "net", "namespace": namespace},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
    ]


def test_the_notes_name_what_would_be_refused_at_its_next_creation(
    helm: Path, control_plane: ControlPlane
) -> None:
    def host(path: str) -> Values:
        return {"volumes": [{"name": "host", "hostPath": {"path": path}}]}

    objects = [
        *daemon_set("calico-system", **host("//proc")),
        *daemon_set("node-exporter", hostPID=True),
        *daemon_set("harmless", **host("/opt/cni")),
        *daemon_set("exempt", **host("/")),
        *daemon_set("by-value", **host("/")),
        *daemon_set("kube-system", **host("/"))[1:],
        *daemon_set("of-value", **host("/opt")),
        *daemon_set("of-kubelet", **host("/data/k/pod-resources/kubelet.sock")),
        *daemon_set("beside", **host("/opt/gpus-of-others")),
    ]
    objects[6]["metadata"]["labels"] = {"bursar.dev/exempt": "true"}
    classes = "scheduling.k8s.io/v1"
    objects += [
        {"apiVersion": classes, "kind": "PriorityClass", "metadata": {"name": name}, "value": value} | default
        for name, value, default in (("everyday", 1000, {"globalDefault": True}), ("urgent", 5000, {}))
    ]
    apply(control_plane, *objects)
    words = (helm, "install", "bursar", rendered.CHART, "-n", "kube-system", "--dry-run=server")
    flags = ("--set=images.prefix=x", "--set=mode=observe", "--set=exemptNamespaces={by-value}")
    guarded = ("--set=policies.guardedPaths={/opt/gpus}", "--set=kubeletDir=/data/k")

    def noted(*more: str) -> str:
        done = subprocess.run(
            [*map(str, words), *flags, *guarded, *more, f"--kubeconfig={control_plane.admin_kubeconfig}"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split("NOTES:")[1]

    assert "everyday (1000)" not in noted("--set=settings.priorityClasses=keep")
    notes = noted()
    assert "everyday (1000), the cluster's default priority class, is above gpu-default-priority (0)" in notes
    assert "urgent" not in notes
    named = re.findall(r"^  (\S+/\S+) \((.*)\)$", notes, re.MULTILINE)
    assert named == [
        ("calico-system/net", "hostPath /proc"),
        ("node-exporter/net", "hostPID"),
        ("of-kubelet/net", "hostPath /data/k/pod-resources/kubelet.sock"),
        ("of-value/net", "hostPath /opt"),
    ]
