"""The images against the repository: what they start exists, and what they are made of is what is tested."""

import configparser
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.dependencies import declared, installed
from tests.deploy.containerfile import CONTAINERFILE, REQUIREMENTS, images
from tests.deploy.reading import ROOT, console_scripts, containers

FOLDERS = {
    "webhook": "webhook",
    "timekeeper": "timekeeper",
    "extender": "scheduler_ext",
    "sidecar": "sidecar",
}
EXTRAS = {
    "webhook": ("webhook",),
    "timekeeper": ("timekeeper",),
    "extender": ("scheduler",),
    "sidecar": ("node", "sidecar"),
}
LOCKED = re.compile(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M)
each_role = pytest.mark.parametrize("role", FOLDERS)


def locked(name: str) -> dict[str, str]:
    """The versions of a locked file, each of which has hashes and nothing beside them."""
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    assert LOCKED.sub("", text).split() == []
    return {canonicalize_name(found[1]): found[2] for found in LOCKED.finditer(text)}


def test_each_role_has_an_image_and_a_locked_file() -> None:
    assert set(images()) == set(FOLDERS)
    assert {file.stem for file in REQUIREMENTS.iterdir()} == {*FOLDERS, "build"}


@each_role
def test_an_image_runs_as_a_number_that_is_not_root(role: str) -> None:
    """The kubelet cannot tell of a name whether it is root."""
    assert images()[role].user == "65532:65532"


@each_role
def test_an_image_starts_its_own_role(role: str) -> None:
    words = images()[role].entrypoint

    if words[:2] == ("python", "-m"):
        assert words[2:] == (FOLDERS[role],)
    else:
        (script,) = words
        assert console_scripts()[script] == f"{FOLDERS[role]}.__main__:main"
    assert (ROOT / FOLDERS[role] / "__main__.py").is_file()


def test_every_image_that_the_manifests_name_is_built() -> None:
    upstream = {"registry.k8s.io/kube-scheduler"}
    named = {one["image"].partition(":")[0] for _, one in containers()} - upstream

    assert named <= {f"bursar/{role}" for role in images()}


def test_the_port_that_an_image_exposes_is_the_one_its_container_has() -> None:
    for _, one in containers():
        role = one["image"].removeprefix("bursar/").partition(":")[0]
        listen = [
            arg.rpartition(":")[2]
            for arg in one.get("args", [])
            if arg.startswith(("--listen=", "--read-listen="))
        ]
        if listen:
            assert listen == [str(port) for port in images()[role].ports]
            assert {port["containerPort"] for port in one.get("ports", [])} <= set(images()[role].ports)


@each_role
def test_what_an_image_installs_is_what_its_extra_needs_at_the_versions_that_are_tested(role: str) -> None:
    known = declared()
    wanted = [need for extra in ("", *EXTRAS[role]) for need in known[extra]]

    assert locked(role) == {name: package.version for name, (package, _) in installed(wanted).items()}, (
        "write it anew: make images-lock"
    )


def test_the_wheel_in_the_images_is_built_by_what_builds_it_elsewhere() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    (need,) = locked("build").items()

    assert "==".join(need) == str(Requirement(backend))


def test_an_image_is_built_of_every_package_of_the_wheel() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {name.rstrip("*") for name in setup["options.packages.find"]["include"].split()}
    copied = re.findall(r"^COPY (\w+)/ /source/\1/$", CONTAINERFILE.read_text(), re.M)

    assert set(copied) == {*packages, "migrations"}
