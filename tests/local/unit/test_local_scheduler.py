"""kube-scheduler's configuration as a value."""

from deploy.local.scheduler import ExtenderTLS, extender, scheduler_configuration


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
