"""Which variables, paths and sources reach past the isolation of cards, and which are left alone."""

import posixpath
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhook.worlds import (
    POLICY,
    admitted,
    env,
    governed,
    half,
    mutated,
    patched,
    plain,
    review,
    sidecar_of,
    violations_of,
)
from tests.worlds import Json, container, limits_of
from timekeeper.core.admission.rules.denylist import (
    HOST_PATHS,
    HOST_STEMS,
    VARIABLES,
    may_steer,
    names_steering,
    reaches_cards,
    steers_isolation,
)
from webhook.admission.validation import validate


def broken(raw: Json) -> list[tuple[str, str]]:
    """The rules that the pod breaks, with the paths."""
    return [(each.rule, each.path) for each in violations_of(raw, POLICY)]


REACHING = [
    "/",
    "/dev",
    "/dev/",
    "//dev//",
    "/dev/.",
    "/dev/nvidia0",
    "/dev/nvidiactl",
    "/dev/nvidia-caps/nvidia-cap1",
    "/dev/dri/card0",
    "/proc",
    "/proc/driver/nvidia",
    "/run",
    "/var/run",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/var/lib/kubelet/plugins/gpu.nvidia.com/dra.sock",  # a DRA driver's
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/dra_manager_state",  # names the CDI devices of each claim
    "/var/lib/kubelet/pki/kubelet-client-current.pem",
    "/var/lib/kubelet/config.yaml",  # names the folder of static pods
    "/var/lib/kubelet",
    "/var/lib",
    "/run/k0s/containerd.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/host-containerd/containerd.sock",  # Bottlerocket's
    "/system/run/containerd/containerd.sock",  # of Talos
    "/run/isulad.sock",
    "/var/run/koord-runtimeproxy/runtimeproxy.sock",
    "/opt/nri/plugins",
    "/run/containers/oci/hooks.d",  # CRI-O's
    "/var/lib/rancher/k3s/server/manifests",
    "/usr/local/vgpu/containers",  # HAMi's limits
    "/etc/gpu-manager/vm",
    "/dev/elastic-gpu-0a1b-0",
    "/dev/nvgpu/igpu0",
    "/var",
    "/var/run/nvidia/driver",
]
HARMLESS = [
    "/dev/shm",
    "/dev/infiniband",
    "/dev/hugepages",
    "/dev/fuse",
    "/data",
    "/devices",
    "/home",
    "/mnt/nvidia",
    "/process",
    "/var/lib/docker-data",
    "/var/lib/kubelet/seccomp",
    "/var/lib/kubelet/plugins-of-ours",
    "/opt/cni/bin",
    "/var/runner",
]


@pytest.mark.parametrize("path", REACHING)
def test_a_path_of_the_host_that_leads_to_cards_is_refused(path: str) -> None:
    raw = admitted(
        half(), volumes=[{"name": "data", "emptyDir": {}}, {"name": "h", "hostPath": {"path": path}}]
    )

    assert broken(raw) == [("host-path", "spec.volumes[1].hostPath.path")]


@pytest.mark.parametrize("path", HARMLESS)
def test_other_paths_of_the_host_pass(path: str) -> None:
    assert broken(admitted(half(), volumes=[{"name": "h", "hostPath": {"path": path}}])) == []


@given(st.sampled_from((*HOST_PATHS, *(f"{stem}0" for stem in HOST_STEMS))), st.data())
def test_however_a_path_is_spelt_it_is_the_same_path(path: str, data: Any) -> None:
    steps = path.split("/")[1:]
    blanks = st.sampled_from(["/", "//", "/./", "///.//"])
    spelt = "".join(data.draw(blanks) + step for step in steps) + data.draw(st.sampled_from(["", "/", "/."]))
    cut = data.draw(st.integers(1, len(steps)))

    assert reaches_cards(spelt)
    assert reaches_cards(spelt + "/below")
    assert reaches_cards("/" + "/".join(steps[:cut]))


@given(st.text(max_size=40))
def test_any_text_is_a_path_that_reaches_or_does_not(path: str) -> None:
    assert reaches_cards(path) == reaches_cards(posixpath.join("/", path, "."))


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_DISABLE_CONTROL",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "NVIDIA_MIG_CONFIG_DEVICES",
    ],
)
def test_a_variable_that_steers_isolation_is_refused_wherever_its_value_comes_from(name: str) -> None:
    from_map = {"configMapKeyRef": {"name": "m", "key": "k"}}
    for variable in ({"name": name, "value": "false"}, {"name": name, "valueFrom": from_map}):
        raw = admitted(half(env=[{"name": "HOME", "value": "/"}, variable]))

        assert broken(raw) == [("isolation-variable", "spec.containers[0].env[1]")]


@given(st.lists(st.sampled_from(["HOME", "A", "", "\n"]), max_size=3), st.data())
def test_one_look_at_all_names_misses_no_variable_that_steers(others: list[str], data: Any) -> None:
    word = data.draw(st.sampled_from(VARIABLES))
    name = word.rstrip("*") + (data.draw(st.text(max_size=5)) if word[-1] == "*" else "")
    at = data.draw(st.integers(0, len(others)))

    assert steers_isolation(name)
    assert names_steering("\n".join([*others[:at], name, *others[at:]]))


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "CUDA_DISABLE_CONTROLS", "CUDA_CACHE_PATH", "NVIDIA_DRIVER_CAPABILITIES"]
)
def test_variables_that_take_nothing_from_others_pass(name: str) -> None:
    assert broken(admitted(half(env=[{"name": name, "value": "0"}]))) == []


def test_containers_without_a_card_may_set_what_they_like() -> None:
    steering = [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp"}]
    aside = plain(env=steering, envFrom=[{"configMapRef": {"name": "m"}}])

    assert broken(admitted(half(), aside)) == []


def test_what_passes_for_the_sidecar_may_not_steer_isolation_either() -> None:
    """Its image may be the user's own, and it sees every card of the pod."""
    raw = governed(admitted(half()))
    assert broken(raw) == []

    sidecar_of(raw)["env"].append({"name": "CUDA_DISABLE_CONTROL", "value": "true"})
    sidecar_of(raw)["envFrom"] = [{"configMapRef": {"name": "m"}}]

    assert [rule for rule, _ in broken(raw)] == ["isolation-variable", "env-from"]


NATIVE, WHOLE = container(gpu_percent="50"), limits_of("main", nvidia_com__gpu="1")


@pytest.mark.parametrize(
    ("asking", "source", "found"),
    [
        (NATIVE, {"configMapRef": {"name": "m"}}, ["env-from"]),
        (NATIVE, {"secretRef": {"name": "s"}, "prefix": ""}, ["env-from"]),
        (NATIVE, {"secretRef": {"name": "s"}, "prefix": "CUDA_"}, ["env-from"]),
        (NATIVE, {"configMapRef": {"name": "m"}, "prefix": "APP_"}, []),
        (NATIVE, {"configMapRef": {"name": "m"}, "prefix": "NVIDIA_V"}, []),  # ours stands in env
        (WHOLE, {"configMapRef": {"name": "m"}}, ["env-from-plugin", "env-from"]),
        (WHOLE, {"secretRef": {"name": "s"}, "prefix": "NVIDIA_V"}, ["env-from-plugin"]),  # nothing before it
        (WHOLE, {"configMapRef": {"name": "m"}, "prefix": "NVIDIA_MIG"}, ["env-from"]),
        (WHOLE, {"configMapRef": {"name": "m"}, "prefix": "NVIDIA_VISIBLE_DEVICES_"}, []),
        (WHOLE, {"configMapRef": {"name": "m"}, "prefix": "DB_"}, []),
    ],
)
def test_env_from_is_reported_where_it_could_set_such_a_variable(
    asking: Json, source: Json, found: list[str]
) -> None:
    expected = [(rule, "spec.containers[0].envFrom[0]") for rule in found]

    assert broken(admitted(asking | {"envFrom": [source]})) == expected


def test_env_from_of_whole_cards_that_bursar_gives_is_beaten_by_our_variable() -> None:
    raw = admitted(WHOLE | {"envFrom": [{"secretRef": {"name": "s"}}]})
    taking = replace(POLICY, takes_whole_cards=True)

    after = patched(raw, list(mutated(raw, policy=taking).operations))

    visible = env(after["spec"]["containers"][0])["NVIDIA_VISIBLE_DEVICES"]
    assert visible == "metadata.annotations['visible-devices.bursar.dev/main']"
    assert validate(review(after), taking).refusal == ""
    # a template is judged as its pods will be, also while observing
    assert [each.rule for each in violations_of(raw, taking)] == ["env-from"]
    assert [each.rule for each in violations_of(raw, replace(taking, mode="observe"))] == ["env-from"]


def test_env_from_beside_a_plugin_names_the_rule_and_the_toolkits_settings() -> None:
    found = violations_of(admitted(WHOLE | {"envFrom": [{"secretRef": {"name": "s"}}]}), POLICY)

    sentence = next(each.sentence() for each in found if each.rule == "env-from-plugin")
    assert "rules: {env-from-plugin: warn}" in sentence
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = false" in sentence


@given(st.text("ABCDEGILMNOPRSTUVY_", max_size=30), st.text("ABCDEGILMNOPRSTUVY_", max_size=10))
def test_a_prefix_that_is_called_safe_sets_nothing_that_steers(prefix: str, rest: str) -> None:
    assert may_steer(prefix) or not steers_isolation(prefix + rest)


@pytest.mark.parametrize("pattern", VARIABLES)
def test_every_beginning_of_such_a_variable_is_an_unsafe_prefix(pattern: str) -> None:
    name = pattern.rstrip("*")

    assert steers_isolation(name)
    assert all(may_steer(name[:length]) for length in range(len(name) + 1))


def test_the_privileged_container_that_jupyterhub_adds_is_refused_with_the_hubs_own_setting() -> None:
    guard = plain("block-cloud-metadata", securityContext={"privileged": True})
    (found,) = violations_of(admitted(half(), initContainers=[guard]), POLICY)

    assert found.sentence() == (
        "spec.initContainers[0].securityContext.privileged: a privileged container can open every card of "
        "its node, got true; allowed: false, with single capabilities where needed; in JupyterHub's values "
        "singleuser.cloudMetadata.blockWithIptables: false, or in the namespace's budget entry "
        "rules: {privileged: warn}; for example capabilities: {add: [IPC_LOCK]}"
    )


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_no_container_of_a_gpu_pod_may_be_privileged(field: str) -> None:
    raw = admitted(half())
    rooted = plain("rooted", securityContext={"privileged": True})
    raw["spec"].setdefault(field, []).append(rooted)
    index = len(raw["spec"][field]) - 1

    assert broken(raw) == [("privileged", f"spec.{field}[{index}].securityContext.privileged")]


def test_what_is_not_privileged_passes() -> None:
    for context in (None, {}, {"privileged": False}, {"capabilities": {"add": ["IPC_LOCK"]}}):
        assert broken(admitted(half(securityContext=context), hostPID=False)) == []


def test_a_pod_without_a_request_is_for_the_policies_in_the_api_server() -> None:
    raw = admitted(plain(securityContext={"privileged": True}), hostPID=True)

    assert broken(raw) == []
