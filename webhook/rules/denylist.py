"""What reaches past the isolation of cards from inside a container: variables that steer it, and paths of the
host. Words only, for every rule and policy that needs them.

Sources: the variables that HAMi-core and vgpu-manager read, NVIDIA's documentation of MPS and MIG, the device
nodes of the NVIDIA, Intel and AMD drivers, and where kubelets and container runtimes keep their sockets.
"""

# A name that ends in * stands for all that begin with it. CUDA_VISIBLE_DEVICES is not among them: it narrows
# what the process itself uses of the cards that its container was given.
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

# Parts of the host by which a container reaches GPUs: device nodes, what the driver and the runtime keep,
# sockets by which devices are given out. No host path may be one of these, lie under it, or lie above it.
HOST_PATHS = (
    "/dev/accel",
    "/dev/char",
    "/dev/dri",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/nvmap",
    "/etc/cdi",
    "/etc/kubernetes",
    "/etc/nvidia-container-runtime",
    "/proc",
    "/run/cdi",
    "/run/containerd",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/docker.sock",
    "/run/dockershim.sock",
    "/run/k3s",
    "/run/podman",
    "/usr/local/nvidia",
    "/var/lib/k0s",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/lib/kubelet/pod-resources",
    "/var/lib/rancher/k3s/agent",
    "/var/lib/rancher/rke2/agent",
    "/var/snap/microk8s",
)
# The same for all that begin so.
HOST_STEMS = ("/dev/nvhost", "/dev/nvidia", "/run/nvidia")
# No host path may be one of these or lie under it; one above may be, for too many harmless pods have /tmp.
# It is where MPS keeps its pipes unless it is told otherwise.
HOST_PLACES = ("/tmp/nvidia-mps",)  # noqa: S108 (nothing is written there)

# Annotations and mounts by which a container runtime itself is asked for devices.
DEVICE_ANNOTATIONS = "cdi.k8s.io/"
DEVICE_MOUNTS = "/run/nvidia-container-devices"

# The runtime classes of NVIDIA's GPU Operator: an image's own NVIDIA_VISIBLE_DEVICES counts under them.
RUNTIME_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy")


# Each variable of each GPU pod is looked up, so not by going through them all.
_STEERING = frozenset(each for each in VARIABLES if each[-1] != "*")
_STEERING_STEMS = tuple(each[:-1] for each in VARIABLES if each[-1] == "*")


_STEERING_WORDS = tuple(each.rstrip("*") for each in VARIABLES)


def names_steering(text: str) -> bool:
    """False where none of the variables that are named in this text can be one that `steers_isolation`: one
    look at all of a container's, nearly none of which are."""
    return any(map(text.__contains__, _STEERING_WORDS))


def steers_isolation(variable: str) -> bool:
    """True for a variable that only Bursar and the nodes' plugins may set in a container with a card."""
    return variable in _STEERING or variable.startswith(_STEERING_STEMS)


def may_steer(prefix: str) -> bool:
    """True where variables of this prefix, as ``envFrom`` gives them, could be such a one."""
    return any(_overlaps(prefix, each) for each in VARIABLES)


def reaches_cards(host_path: str) -> bool:
    """True for a path of the host by which a container reaches cards that it was not given."""
    path = _plain(host_path)
    if path.startswith(HOST_STEMS):
        return True
    if any(path == each or path.startswith(each + "/") for each in (*HOST_PATHS, *HOST_PLACES)):
        return True
    return any(each.startswith(path.rstrip("/") + "/") for each in (*HOST_PATHS, *HOST_STEMS))


_LAST_STEP = DEVICE_MOUNTS.rpartition("/")[2]


def names_devices(mount_path: str) -> bool:
    """True for a mount that asks NVIDIA's container runtime for cards by its name."""
    if _LAST_STEP not in mount_path:
        return False  # nearly all, and each mount of each GPU pod is looked at
    path = _plain(mount_path)
    return path == DEVICE_MOUNTS or path.startswith(DEVICE_MOUNTS + "/")


def _plain(path: str) -> str:
    """The path as one would write it: ``/var/run`` is a link to ``/run``, and empty steps are none."""
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
