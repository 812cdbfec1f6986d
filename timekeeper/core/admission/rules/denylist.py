"""What breaks the isolation of cards from inside a container: variables, host paths, mounts, runtime classes.
The rules and the policies in the API server use these lists; `device_annotations` has the annotations.

Sources: the variables that HAMi-core and vgpu-manager read, NVIDIA's documentation of MPS and MIG, the device
nodes of the NVIDIA, Intel and AMD drivers, and where kubelets and container runtimes keep their sockets.
"""

# A name that ends in * matches all names that begin with it. CUDA_VISIBLE_DEVICES is not listed: it only
# restricts which of its container's cards a process uses.
VARIABLES = (
    "CUDA_DISABLE_CONTROL",
    "CUDA_DEVICE_MEMORY_LIMIT*",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_DEVICE_SM_LIMIT*",
    "CUDA_OVERSUBSCRIBE",
    "CUDA_TASK_PRIORITY",
    "GPU_CORE_UTILIZATION_POLICY",
    "ACTIVE_OOM_KILLER",
    "CUDA_CORE_LIMIT*",
    "CUDA_MEM_LIMIT*",
    "CUDA_MEM_OVERSOLD*",
    "MANAGER_VISIBLE_DEVICE*",
    "CUDA_MPS_*",
    "NVIDIA_MIG_*",
)

# Paths of the host by which a container reaches GPUs: device nodes, files of the driver and the runtime,
# sockets that assign devices. A host path must not be one of these, be below one, or be above one.
HOST_PATHS = (
    "/dev/accel",
    "/dev/char",
    "/dev/dri",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/nvgpu",
    "/dev/nvmap",
    "/etc/cdi",
    "/etc/containerd",
    "/etc/containers/oci",
    "/etc/crio",
    "/etc/docker",
    "/etc/gpu-manager",
    "/etc/kubernetes",
    "/etc/nri",
    "/etc/nvidia-container-runtime",
    "/etc/rancher",
    "/etc/vgpu-manager",
    "/opt/nri",
    "/proc",
    "/run/cdi",
    "/run/containerd",
    "/run/containers/oci",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/docker",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/host-containerd",
    "/run/isulad.sock",
    "/run/k0s",
    "/run/k3s",
    "/run/koord-runtimeproxy",
    "/run/nri",
    "/run/podman",
    "/system/run",
    "/usr/local/nvidia",
    "/usr/local/vgpu",
    "/usr/share/containers/oci",
    "/var/lib/k0s",
    "/var/lib/kubelet/config.yaml",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/dra_manager_state",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/kubelet/pki",
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/rancher/k3s/agent",
    "/var/lib/rancher/k3s/server",
    "/var/lib/rancher/rke2/agent",
    "/var/lib/rancher/rke2/server",
    "/var/snap/microk8s",
)
# The same for all paths that begin so.
HOST_STEMS = ("/dev/elastic-gpu", "/dev/nvhost", "/dev/nvidia", "/run/nvidia")
# A host path must not be one of these or below one. Above is allowed, because many harmless pods mount /tmp.
# MPS keeps its pipes here by default.
HOST_PLACES = ("/tmp/nvidia-mps",)  # noqa: S108 (nothing is written there)
# The same as for HOST_PLACES, but only a warning by default, because node software mounts them too: raw
# devices, the volumes and tokens of every pod of the node, and the devices' memory and control groups.
NODE_PATHS = ("/dev/vfio", "/sys", "/var/lib/kubelet/pods")

# Mounts that request devices from the container runtime directly.
DEVICE_MOUNTS = "/run/nvidia-container-devices"

# NVIDIA's runtime gives every card to a container with this variable and without NVIDIA_VISIBLE_DEVICES: it
# takes its image for one from before that variable.
CUDA_VERSION = "CUDA_VERSION"

# The runtime classes of NVIDIA's GPU Operator, which honour the NVIDIA_VISIBLE_DEVICES of an image.
RUNTIME_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy")


# Prepared, because each variable of each GPU pod is looked up.
_STEERING = frozenset(each for each in VARIABLES if each[-1] != "*")
_STEERING_STEMS = tuple(each[:-1] for each in VARIABLES if each[-1] == "*")


_STEERING_WORDS = tuple(each.rstrip("*") for each in VARIABLES)


def names_steering(text: str) -> bool:
    """False where no variable named in this text can be one that `steers_isolation`: one fast check for all
    variables of a container."""
    return any(map(text.__contains__, _STEERING_WORDS))


def steers_isolation(variable: str) -> bool:
    """Whether only Bursar and node plugins may set this variable in a container with a card."""
    return variable in _STEERING or variable.startswith(_STEERING_STEMS)


def may_steer(prefix: str) -> bool:
    """Whether ``envFrom`` with this prefix could set such a variable."""
    return any(_overlaps(prefix, each) for each in VARIABLES)


def reaches_cards(host_path: str) -> bool:
    """Whether a container with this host path reaches cards that are not assigned to it."""
    path = _plain(host_path)
    if path.startswith(HOST_STEMS):
        return True
    if any(path == each or path.startswith(each + "/") for each in (*HOST_PATHS, *HOST_PLACES)):
        return True
    return any(each.startswith(path.rstrip("/") + "/") for each in (*HOST_PATHS, *HOST_STEMS))


def reaches_node(host_path: str) -> bool:
    """Whether this host path shows devices or other pods of the node, without being one of cards."""
    path = _plain(host_path)
    return not reaches_cards(path) and any(path == each or path.startswith(each + "/") for each in NODE_PATHS)


_LAST_STEP = DEVICE_MOUNTS.rpartition("/")[2]


def names_devices(mount_path: str) -> bool:
    """Whether the name of this mount requests cards from NVIDIA's container runtime, which resolves ``..``.
    A path with ``..`` counts if it has the last step anywhere, because the policy, in CEL, cannot resolve
    it."""
    if _LAST_STEP not in mount_path:
        return False  # a fast way out for nearly all mounts
    steps = mount_path.split("/")
    if ".." in steps:
        return _LAST_STEP in steps
    path = _plain(mount_path)
    return path == DEVICE_MOUNTS or path.startswith(DEVICE_MOUNTS + "/")


def _plain(path: str) -> str:
    """The path without ``.``, ``..`` and empty steps; ``/var/run``, a link, becomes ``/run``."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            steps = steps[:-1]
        elif step not in ("", "."):
            steps.append(step)
    plain = "/" + "/".join(steps)
    return plain.removeprefix("/var") if plain == "/var/run" or plain.startswith("/var/run/") else plain


def _overlaps(prefix: str, pattern: str) -> bool:
    if pattern[-1] == "*":
        return pattern[:-1].startswith(prefix) or prefix.startswith(pattern[:-1])
    return pattern.startswith(prefix)
