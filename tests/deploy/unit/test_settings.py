"""The flags and variables in the manifests against the roles' own settings."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

import scheduler_ext.settings
import sidecar.node.settings
import timekeeper.settings
import webhook.settings.certificates
import webhook.settings.serve
from sidecar.node.host.runtimes import hands_out_all
from sidecar.settings import VARIABLES
from tests.deploy.reading import (
    AGENTS,
    MANIFESTS,
    NAMESPACE,
    SAMPLES,
    Json,
    container,
    of_kind,
    template,
    the,
    workloads,
)
from timekeeper.core import __version__, names
from timekeeper.core.admission.mutation.sidecar import COMMAND
from webhook.controller.cluster import AGENTS_CA

Read = Callable[[Sequence[str], Mapping[str, str]], object]


def _certificates(arguments: Sequence[str], environment: Mapping[str, str]) -> object:
    """As ``python -m webhook`` divides its commands."""
    assert arguments[0] == "certificates"
    return webhook.settings.certificates.read_certificates(arguments[1:], environment)


READERS: dict[str, Read] = {
    "bursar-webhook/webhook": webhook.settings.serve.read,
    "bursar-certificates/certificates": _certificates,
    "bursar-timekeeper/timekeeper": timekeeper.settings.read,
    "bursar-scheduler/extender": scheduler_ext.settings.read,
    "bursar-node/agent": sidecar.node.settings.read,
}


def environment_of(one: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in one.get("env", [])}


def test_every_container_of_ours_has_a_reader_here() -> None:
    ours = {
        f"{workload['metadata']['name']}/{one['name']}"
        for workload in workloads()
        for one in template(workload)["spec"]["containers"]
        if one["image"].startswith("bursar/")
    }

    assert ours == READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_a_role_takes_the_arguments_that_its_container_has(name: str) -> None:
    one = container(name)

    # a flag that is unknown, or a value that is bad, ends the process with code 2
    assert READERS[name](one.get("args", []), environment_of(one))


@pytest.mark.parametrize("name", READERS)
def test_an_argument_that_no_role_knows_would_be_noticed(name: str) -> None:
    with pytest.raises(SystemExit) as end:
        READERS[name]([*container(name).get("args", []), "--no-such-flag"], {})

    assert end.value.code == 2


@pytest.mark.parametrize("name", READERS)
def test_in_a_cluster_the_credentials_are_the_pods_own(name: str) -> None:
    read = READERS[name](container(name).get("args", []), {})

    assert not getattr(read, "kubeconfig", None)


def test_a_process_that_calls_the_api_server_gets_its_token() -> None:
    automounted = {
        workload["metadata"]["name"]: template(workload)["spec"]["automountServiceAccountToken"]
        for workload in workloads()
    }

    assert automounted == {
        "bursar-certificates": True,
        "bursar-node": True,
        "bursar-scheduler": True,
        "bursar-timekeeper": True,
        "bursar-webhook": True,
    }


def test_the_webhooks_token_is_for_the_timekeeper_alone_and_lies_where_it_looks() -> None:
    read = webhook.settings.serve.read(container("bursar-webhook/webhook")["args"], {})
    (projected,) = [
        source["serviceAccountToken"]
        for volume in template(the("Deployment", "bursar-webhook"))["spec"]["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
    ]
    mounts = {each["name"]: each["mountPath"] for each in container("bursar-webhook/webhook")["volumeMounts"]}

    assert projected["audience"] == names.AUDIENCE
    assert str(read.token_file) == f"{mounts['token']}/{projected['path']}"


def test_the_webhook_finds_the_timekeeper_by_its_service() -> None:
    read = webhook.settings.serve.read(container("bursar-webhook/webhook")["args"], {})
    service = the("Service", "bursar-timekeeper")["metadata"]

    assert read.timekeeper_url == f"https://{service['name']}.{service['namespace']}.svc"
    assert service["namespace"] == names.NAMESPACE == NAMESPACE


def test_the_extender_finds_the_timekeeper_and_the_files_to_call_it_with() -> None:
    one, pod = container("bursar-scheduler/extender"), template(the("Deployment", "bursar-scheduler"))["spec"]
    asked = scheduler_ext.settings.read(one["args"], {}).timekeeper
    service = the("Service", "bursar-timekeeper")["metadata"]
    mounts = {each["name"]: each["mountPath"] for each in one["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    token, ca = (
        volumes["token"]["projected"]["sources"][0]["serviceAccountToken"],
        volumes["ca"]["secret"],
    )

    assert asked is not None
    assert asked.url == f"https://{service['name']}.{service['namespace']}.svc"
    assert (token["audience"], str(asked.token_file)) == (
        names.AUDIENCE,
        f"{mounts['token']}/{token['path']}",
    )
    assert (ca["secretName"], [each["key"] for each in ca["items"]]) == ("bursar-timekeeper-tls", ["ca.crt"])
    assert ca["optional"] is True  # before the certificates are made there are pods to place already
    assert str(asked.ca) == f"{mounts['ca']}/ca.crt"


def test_the_agent_finds_the_timekeeper_and_what_the_manifest_mounts_for_it() -> None:
    one, pod = container("bursar-node/agent"), template(the("DaemonSet", "bursar-node"))["spec"]
    read = sidecar.node.settings.read(one["args"], environment_of(one))
    mounts = {each["name"]: each["mountPath"] for each in one["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    service = the("Service", "bursar-timekeeper")["metadata"]
    token = volumes["token"]["projected"]["sources"][0]["serviceAccountToken"]

    assert read.timekeeper is not None
    assert read.timekeeper.server.authority == f"{service['name']}.{service['namespace']}.svc"
    assert (token["audience"], read.timekeeper.token_file) == (
        names.AUDIENCE,
        f"{mounts['token']}/{token['path']}",
    )
    assert volumes["ca"]["configMap"]["name"] == AGENTS_CA
    assert volumes["ca"]["configMap"]["optional"] is True  # cards are told of before there are certificates
    assert read.timekeeper.ca == f"{mounts['ca']}/{volumes['ca']['configMap']['items'][0]['path']}"
    assert read.timekeeper.spool == mounts["spool"]
    assert read.cgroups == mounts["cgroup"]
    assert read.pod_resources == f"{mounts['pod-resources']}/kubelet.sock"
    assert volumes["cgroup"]["hostPath"]["path"] == "/sys/fs/cgroup"
    assert read.node_name == "$(NODE_NAME)"  # which the kubelet fills in
    assert {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in one["env"]


def test_the_agent_is_shown_the_runtimes_configuration_and_no_node_needs_to_have_it() -> None:
    one, pod = container("bursar-node/agent"), template(the("DaemonSet", "bursar-node"))["spec"]
    read = sidecar.node.settings.read(one["args"], environment_of(one))
    mounts = {each["mountPath"]: each["name"] for each in one["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    named = {path.partition("/host")[2].split("/")[2]: path for path in read.runtime_configs}

    assert named.keys() == {"containerd", "crio", "nvidia-container-runtime"}
    for folder in named:
        assert volumes[mounts[f"/host/etc/{folder}"]]["hostPath"] == {"path": f"/etc/{folder}", "type": ""}
    assert hands_out_all(read.runtime_configs) == ("", ())  # nothing is wrong where there are none


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("containerd/config.toml", '[plugins.cri.containerd]\ndefault_runtime_name = "nvidia"\n'),
        ("containerd/conf.d/99-nvidia.toml", '[plugins.cri.containerd]\ndefault_runtime_name = "nvidia"\n'),
        ("crio/crio.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n'),
        ("crio/crio.conf.d/99-nvidia.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n'),
    ],
)
def test_a_default_runtime_that_hands_out_all_cards_is_seen_as_the_manifest_stands(
    tmp_path: Path, file: str, text: str
) -> None:
    one = container("bursar-node/agent")
    read = sidecar.node.settings.read(one["args"], environment_of(one))
    shown = [path.replace("/host/etc", str(tmp_path)) for path in read.runtime_configs]
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)

    assert "gives all cards" in hands_out_all(shown)[0]
    unheard = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
    (tmp_path / "nvidia-container-runtime").mkdir()
    (tmp_path / "nvidia-container-runtime/config.toml").write_text(unheard)
    assert hands_out_all(shown) == ("", ())


def test_the_agent_can_write_no_file_of_the_node() -> None:
    pod = template(the("DaemonSet", "bursar-node"))["spec"]
    of_the_node = [each["name"] for each in pod["volumes"] if "hostPath" in each]
    mounts = {each["name"]: each for each in container("bursar-node/agent")["volumeMounts"]}

    assert of_the_node
    assert all(mounts[name]["readOnly"] for name in of_the_node)


def test_pods_get_the_sidecar_of_this_version() -> None:
    read = webhook.settings.serve.read(container("bursar-webhook/webhook")["args"], {})

    assert read.policy.sidecar is not None
    assert read.policy.sidecar.image == f"bursar/sidecar:{__version__}"


def test_replicas_of_two_releases_take_what_the_other_has_injected() -> None:
    images = webhook.settings.serve.read(
        container("bursar-webhook/webhook")["args"], {}
    ).policy.sidecar_images

    assert images.allow("bursar/sidecar:9.9.9")
    assert not images.allow("bursar/sidecar-of-another:9.9.9")


def test_the_sidecar_is_started_in_a_pod_as_its_image_starts_it() -> None:
    assert COMMAND == ["python", "-m", "sidecar"]
    assert "BURSAR_TIMEKEEPER_URL" in dict(VARIABLES)


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("bursar-webhook/webhook", 8443),
        ("bursar-timekeeper/timekeeper", 8444),
        ("bursar-node/agent", 8446),
    ],
)
def test_a_server_listens_on_the_port_that_its_container_names(name: str, port: int) -> None:
    one = container(name)
    read = READERS[name](one["args"], {})

    _, listened = getattr(read, "listen")  # noqa: B009  (the roles have no common type)
    assert listened == port
    assert [each["containerPort"] for each in one.get("ports", [])] in ([], [port])


def test_the_extenders_verbs_stay_in_its_pod_and_its_read_only_port_serves_the_service() -> None:
    one, pod = container("bursar-scheduler/extender"), template(the("Deployment", "bursar-scheduler"))["spec"]
    read = scheduler_ext.settings.read(one["args"], {})
    mounts = {each["name"]: each["mountPath"] for each in one["volumeMounts"]}
    secret = {each["name"]: each for each in pod["volumes"]}["tls"]["secret"]

    assert read.listen == ("127.0.0.1", 8445)
    assert read.read_port.listen is not None
    assert [each["containerPort"] for each in one["ports"]] == [read.read_port.listen.port] == [8447]
    assert secret["secretName"] == f"{the('Service', 'bursar-scheduler')['metadata']['name']}-tls"
    assert secret["optional"] is True  # pods are placed before there are certificates
    assert (str(read.read_port.tls_cert), str(read.read_port.tls_key)) == (
        f"{mounts['tls']}/tls.crt",
        f"{mounts['tls']}/tls.key",
    )


@pytest.mark.parametrize("name", ["bursar-webhook/webhook", "bursar-timekeeper/timekeeper"])
def test_a_servers_files_are_the_keys_of_its_secret(name: str) -> None:
    workload, _, _ = name.partition("/")
    (secret,) = [
        volume["secret"]["secretName"]
        for each in workloads()
        if each["metadata"]["name"] == workload
        for volume in template(each)["spec"]["volumes"]
        if "secret" in volume
    ]
    files = [
        arg.partition("=")[2] for arg in container(name)["args"] if re.match("--(tls-cert|tls-key|ca)=", arg)
    ]

    # the three keys of each Secret that `webhook certificates` makes
    assert secret == f"{workload}-tls"
    assert files == ["/etc/bursar/tls/tls.crt", "/etc/bursar/tls/tls.key", "/etc/bursar/tls/ca.crt"]


def test_every_variable_of_ours_in_the_files_of_deploy_is_one_that_a_role_reads() -> None:
    known = {name for name, _ in VARIABLES}
    for settings in (
        webhook.settings.serve,
        timekeeper.settings,
        scheduler_ext.settings,
        sidecar.node.settings,
    ):
        known |= variables_in_help(settings.read)
    known |= variables_in_help(webhook.settings.certificates.read_certificates)
    texts = [file.read_text() for folder in (MANIFESTS, SAMPLES) for file in folder.glob("*.yaml")]
    named = set(re.findall(r"BURSAR_[A-Z_]*[A-Z]", "\n".join(texts)))

    assert named <= known | {"BURSAR_X"}  # in a comment


def test_the_webhook_configurations_call_our_service() -> None:
    for configuration in of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for each in configuration["webhooks"]:
            service = each["clientConfig"]["service"]
            found = the("Service", service["name"])

            assert found["metadata"]["namespace"] == service["namespace"]
            assert service["port"] in [port["port"] for port in found["spec"]["ports"]]


def test_our_own_pods_start_while_the_webhook_is_down() -> None:
    for configuration in of_kind("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for each in configuration["webhooks"]:
            if each["failurePolicy"] == "Ignore":
                continue
            left_out, _exempt = each["namespaceSelector"]["matchExpressions"]

            assert left_out["key"] == "kubernetes.io/metadata.name"
            assert left_out["operator"] == "NotIn"
            assert {NAMESPACE, AGENTS, "kube-system"} <= set(left_out["values"])


def variables_in_help(read: Read) -> set[str]:
    """The variables that a role's --help names."""
    import contextlib
    import io

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        read(["--help"], {})
    return set(re.findall(r"BURSAR_[A-Z_]*[A-Z]", told.getvalue()))
