"""kube-scheduler's configuration as a value."""

import yaml

from deploy.local.scheduler import GPU_PROFILE, PLAIN_PROFILE, ExtenderTLS, extender, scheduler_configuration
from tests.deploy.reading import ROOT
from tests.docs.shell import console

FOLDER = "/etc/kubernetes/bursar"


def test_the_extender_entry_guards_what_nodes_advertise_and_ignores_the_count() -> None:
    entry = extender("http://127.0.0.1:1234")

    ignored = {each["name"]: each["ignoredByScheduler"] for each in entry["managedResources"]}
    assert ignored["bursar.dev/gpu-count"]
    assert ignored["bursar.dev/gpu-placement"]
    advertised = (
        "bursar.dev/gpu-percent",
        "bursar.dev/gpu-memory",
        "tencent.com/vcuda-core",
        "nvidia.com/gpu",
    )
    assert not any(ignored[name] for name in advertised)
    assert (entry["urlPrefix"], entry["httpTimeout"]) == ("http://127.0.0.1:1234", "2s")
    assert (entry["filterVerb"], entry["prioritizeVerb"]) == ("filter", "prioritize")
    assert (entry["preemptVerb"], entry["bindVerb"]) == ("preempt", "bind")
    assert (entry["nodeCacheCapable"], entry["ignorable"], entry["enableHTTPS"]) == (True, False, False)


def test_an_extender_over_tls_is_verified_and_shown_a_certificate() -> None:
    entry = extender("https://extender.bursar-system.svc", tls=ExtenderTLS("ca", "crt", "key", "name"))

    assert entry["enableHTTPS"] is True
    assert entry["tlsConfig"] == {"caFile": "ca", "certFile": "crt", "keyFile": "key", "serverName": "name"}


def test_only_the_profile_of_gpu_pods_looks_at_every_node_and_waits_little_for_volumes() -> None:
    configuration = scheduler_configuration("file", ("default-scheduler", "bursar-scheduler"))

    assert configuration["profiles"] == [
        {"schedulerName": "default-scheduler"},
        {
            "schedulerName": "bursar-scheduler",
            "percentageOfNodesToScore": 100,
            "pluginConfig": [{"name": "VolumeBinding", "args": {"bindTimeoutSeconds": 10}}],
        },
    ]
    assert "extenders" not in configuration


def test_the_page_has_the_configuration_whole() -> None:
    _, block, *_ = console((ROOT / "docs" / "kube-scheduler.md").read_text())
    read = yaml.safe_load("".join(block.splitlines(keepends=True)[1:-1]))
    (entry,) = read["extenders"]
    ca, certificate, key = (f"{FOLDER}/{name}" for name in ("ca.crt", "client.crt", "client.key"))
    tls = ExtenderTLS(ca, certificate, key, "bursar-extender.bursar-system.svc")

    written = scheduler_configuration(
        "/etc/kubernetes/scheduler.conf",
        (PLAIN_PROFILE, GPU_PROFILE),
        [extender(entry["urlPrefix"], tls=tls)],
    )

    for resource in entry["managedResources"]:
        resource.setdefault("ignoredByScheduler", False)
    assert entry["urlPrefix"].startswith("https://$(kubectl get service bursar-extender ")
    del written["leaderElection"]  # kubeadm's flag stays
    entry["ignorable"] = False  # the default
    assert read == written
