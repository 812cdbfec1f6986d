"""The Dockerfile against the repository: what it copies is there and enough, and what it starts exists."""

import re

import pytest

from tests.deploy.dockerfile import DOCKERFILE, Stage, console_scripts, last, lineage, stages
from tests.deploy.reading import ROOT, containers

TARGETS = ("webhook", "timekeeper", "extender", "sidecar")
ROLES = {"webhook": "webhook", "timekeeper": "timekeeper", "extender": "scheduler_ext", "sidecar": "sidecar"}


def made_by(target: str) -> list[Stage]:
    """The stages that an image copies from."""
    copies = [each for stage in lineage(target) for each in stage.of("COPY")]
    return [stages()[each.flags["from"]] for each in copies if "from" in each.flags]


each_target = pytest.mark.parametrize("target", TARGETS)


def copied_from_the_checkout(stage: Stage) -> list[str]:
    """What a stage takes from the build's context."""
    taken = [each for each in stage.of("COPY") if "from" not in each.flags]
    return [source for each in taken for source in each.words()[:-1]]


@pytest.mark.parametrize("stage", stages().values(), ids=stages().keys())
def test_every_base_is_a_stage_or_pinned_by_an_exact_version(stage: Stage) -> None:
    pinned = re.fullmatch(r"[a-z0-9/-]+:[0-9]+\.[0-9]+\.[0-9]+-[a-z0-9-]+", stage.base)

    assert stage.base in stages() or pinned


def test_a_build_argument_pins_every_base_to_a_digest_too() -> None:
    digest = f"sha256:{'0' * 64}"
    plain = {each.base for each in stages().values()} - stages().keys()
    given = stages(given={"PYTHON_DIGEST": digest})

    assert {each.base for each in given.values()} - given.keys() == {f"{base}@{digest}" for base in plain}


@pytest.mark.parametrize("stage", stages().values(), ids=stages().keys())
def test_what_is_copied_exists_and_nothing_is_fetched(stage: Stage) -> None:
    assert not stage.of("ADD")
    assert not re.search(r"https?://|\bcurl\b|\bwget\b", " ".join(each.text for each in stage.instructions))
    for source in copied_from_the_checkout(stage):
        assert (ROOT / source).exists(), source


@each_target
def test_an_image_runs_as_a_number_that_is_not_root(target: str) -> None:
    # a number, for the kubelet cannot tell of a name whether it is root
    assert last(target, "USER").text == "65532:65532"


@each_target
def test_an_image_starts_its_own_role(target: str) -> None:
    words = last(target, "ENTRYPOINT").words()
    role = ROLES[target]

    if words[:2] == ["python", "-m"]:
        assert words[2:] == [role]
    else:
        (script,) = words
        assert console_scripts()[script] == f"{role}.__main__:main"
    assert (ROOT / role / "__main__.py").is_file()


def test_every_image_that_the_manifests_name_is_a_target() -> None:
    upstream = {"registry.k8s.io/kube-scheduler"}
    named = {one["image"].partition(":")[0] for _, one in containers()} - upstream

    assert named <= {f"bursar/{target}" for target in TARGETS}


def test_the_port_that_an_image_exposes_is_the_one_its_container_has() -> None:
    for _, one in containers():
        target = one["image"].removeprefix("bursar/").partition(":")[0]
        listen = [arg.rpartition(":")[2] for arg in one.get("args", []) if re.match("--(read-)?listen=", arg)]
        if listen:
            assert listen == last(target, "EXPOSE").text.split()
            assert {port["containerPort"] for port in one.get("ports", [])} <= set(map(int, listen))


@each_target
def test_packages_come_at_the_versions_that_are_tested(target: str) -> None:
    for run in [run for stage in made_by(target) for run in stage.of("RUN")]:
        if "pip install" in run.text:
            assert re.search(r"pip install --no-cache-dir -c \S*constraints\.txt \S+", run.text)


@each_target
def test_what_builds_an_image_stays_out_of_it(target: str) -> None:
    """Nothing is installed in an image: it takes what another stage has made."""
    assert not [each.text for stage in lineage(target) for each in stage.of("RUN")]
    assert [each.flags for stage in lineage(target) for each in stage.of("COPY")] == [
        {"from": made_by(target)[-1].name}
    ]


def test_the_builder_gets_what_is_copied_and_nothing_else() -> None:
    lines = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {source for stage in stages().values() for source in copied_from_the_checkout(stage)}

    assert "*" in lines
    assert let_in == copied
