"""What each image has and starts."""

from dataclasses import dataclass

from packaging.requirements import Requirement

from deploy.release.dependencies import declared

ARCHITECTURES = ("amd64", "arm64")
USER = "65532:65532"  # a number, for the kubelet cannot tell of a name whether it is root

# Debian's packages; what these need is found by apt.
DEBIAN = (
    *("base-files", "ca-certificates", "libpython3-stdlib", "netbase", "python3-minimal", "tzdata"),
    "libstdc++6",  # which wheels leave to the system
)


@dataclass(frozen=True, slots=True)
class Role:
    """An image. ``extras`` of setup.cfg name its Python packages; ``code`` is what it has of our wheel, where
    nothing is all."""

    entrypoint: tuple[str, ...]
    ports: tuple[int, ...]
    extras: tuple[str, ...]
    code: tuple[str, ...]
    title: str

    def requirements(self) -> list[Requirement]:
        """Python's packages that it is declared to need. A pod's sidecar and a node's agent need one of what
        all installations have."""
        known = declared()
        few = [each for each in known[""] if each.name == "PyYAML"]
        of_all = known[""] if not self.code else few
        return [*of_all, *(each for extra in self.extras for each in known[extra])]


ROLES = {
    "webhook": Role(("bursar-webhook",), (8443,), ("webhook",), (), "Bursar's admission webhook"),
    "timekeeper": Role(("bursar-timekeeper",), (8444,), ("timekeeper",), (), "Bursar's timekeeper"),
    "extender": Role(
        ("bursar-extender",), (8445, 8447), ("scheduler",), (), "the extender of Bursar's scheduler"
    ),
    "sidecar": Role(
        ("python", "-m", "sidecar"),
        (),
        ("node", "sidecar"),
        ("sidecar/", "timekeeper/__init__.py", "timekeeper/edge/"),
        "Bursar's sidecar and node agent",
    ),
}
