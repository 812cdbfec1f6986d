"""The names under which plugins register with a container runtime's NRI."""

OURS = "bursar"  # of the node agent
KAIS = "gpu-fractioning"  # kai-scheduler/gpu-fractioning, fractiond/internal/plugin.go
NVIDIAS = frozenset(
    {"nvidia-ctk-installer", "nvidia-toolkit"}
)  # the programs of NVIDIA/nvidia-container-toolkit
