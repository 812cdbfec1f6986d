"""Annotations of a pod from which the container runtime, or a plugin of it, reads devices, mounts of host
paths or limits of cards. Only runtimes, device plugins and Bursar may write them.

The rule, the match conditions, the policies in the API server and the pages follow from this table.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceAnnotations:
    """Annotations of one reader. ``words``: a domain stands for itself and for all names in it, a word that
    ends in a dot for all names that begin with it. ``sources``: repository and path of what reads them."""

    words: tuple[str, ...]
    reader: str
    sources: tuple[tuple[str, str], ...]


DEVICE_ANNOTATIONS = (
    DeviceAnnotations(
        ("cdi.k8s.io",),
        "the container runtime's own CDI, and NVIDIA's container runtime (`annotation-prefixes`)",
        (
            ("cncf-tags/container-device-interface", "pkg/cdi/annotations.go"),
            ("NVIDIA/nvidia-container-toolkit", "internal/config/image/cuda_image.go"),
            ("NVIDIA/k8s-device-plugin", "internal/plugin/server.go"),
        ),
    ),
    DeviceAnnotations(
        ("nvidia.cdi.k8s.io",),
        "the NRI plugin of NVIDIA's Container Toolkit",
        (
            ("NVIDIA/nvidia-container-toolkit", "cmd/nvidia-ctk-installer/container/runtime/nri/plugin.go"),
            ("NVIDIA/gpu-operator", "controllers/object_controls.go"),
        ),
    ),
    DeviceAnnotations(
        ("nvidia.com/container.",),
        "`fractiond`, the NRI plugin of KAI's GPU fractioning: `NAME.gpus.devices`, "
        "`NAME.gpu-memory.request`, `NAME.gpu-memory.limit`, `NAME.gpu-compute.mode`, "
        "`NAME.gpu-compute.portion`",
        (
            (
                "kai-scheduler/gpu-fractioning",
                "fractioning-manager/fractiond/internal/annotations/annotations.go",
            ),
            ("kai-scheduler/KAI-Scheduler", "pkg/common/constants/constants.go"),
        ),
    ),
    DeviceAnnotations(
        ("kai.scheduler/container.", "gpu-fraction.limit", "gpu-memory.limit"),
        "KAI, which writes that plugin's limit from them: `NAME.gpu-memory.portion.limit`",
        (
            ("kai-scheduler/KAI-Scheduler", "pkg/admission/webhook/v1alpha2/nvfractions/mutation.go"),
            ("kai-scheduler/KAI-Scheduler", "pkg/binder/plugins/nvfractions/nv_fractions.go"),
        ),
    ),
    DeviceAnnotations(
        (
            "cdi-devices.noderesource.dev",
            "cdi-devices.nri.io",
            "devices.noderesource.dev",
            "devices.nri.io",
            "mounts.noderesource.dev",
            "mounts.nri.io",
        ),
        "containerd's device-injector, also by its former names",
        (("containerd/nri", "plugins/device-injector/device-injector.go"),),
    ),
    DeviceAnnotations(
        ("required-plugins.noderesource.dev",),
        "NRI's validator: plugins without which the runtime makes no container",
        (("containerd/nri", "plugins/default-validator/default-validator.go"),),
    ),
    DeviceAnnotations(
        ("devices.gke.io",),
        "GKE's injector",
        (
            (
                "GoogleCloudPlatform/container-engine-accelerators",
                "nri_device_injector/nri_device_injector.go",
            ),
        ),
    ),
)

DEVICE_WORDS = tuple(word for each in DEVICE_ANNOTATIONS for word in each.words)
DEVICE_DOMAINS = tuple(word for word in DEVICE_WORDS if word[-1] != ".")
DEVICE_STEMS = tuple(word for word in DEVICE_WORDS if word[-1] == ".")


def requests_devices(annotation: str) -> bool:
    """Whether a container runtime or one of its plugins reads devices or limits from this annotation."""
    return annotation.partition("/")[0] in DEVICE_DOMAINS or annotation.startswith(DEVICE_STEMS)


def shown_as(word: str) -> str:
    """A word of the table as pages show it."""
    return f"{word}NAME" if word[-1] == "." else word
