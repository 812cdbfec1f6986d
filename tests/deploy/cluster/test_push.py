"""Images pushed to a real registry: with a token, through refusals and broken connections, and where nothing
can be pushed."""

import base64
import json
import threading
from pathlib import Path

import pytest

from deploy.images import oci, push
from deploy.images.lock import ImagesError
from deploy.images.make import Made
from deploy.images.roles import ARCHITECTURES, ROLES
from deploy.images.tree import Entry
from tests.deploy.registries import ACCOUNT, Faults, Tokens, digest, registry, serving

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """An image of two architectures whose layer is larger than what a socket holds."""
    file = tmp_path_factory.mktemp("image") / "sidecar.tar"
    blobs, labels = oci.Blobs(), {oci.CREATED: oci.time_of(0)}
    noise = b"".join(number.to_bytes(4, "big") for number in range(2_000_000))
    layers = [oci.layer({"large": Entry(noise)}), oci.layer({"small": Entry(b"s")})]
    manifests = [oci.manifest(blobs, ROLES["sidecar"], each, layers, labels) for each in ARCHITECTURES]
    described = oci.index(blobs, manifests, labels)
    oci.archive(file, blobs, described, "1")
    return {"sidecar": Made(file, str(described["digest"]), {}, {})}


@pytest.fixture(autouse=True)
def _no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def log_in(folder: Path, host: str, account: str = ACCOUNT) -> None:
    """Write the file of credentials."""
    known = {"auths": {host: {"auth": base64.b64encode(account.encode()).decode()}}}
    (folder / "config.json").write_text(json.dumps(known))


def no_wait(_: float) -> None:
    """Instead of a pause between two tries."""


def test_a_registry_has_what_the_archive_says_after_429_and_connections_that_break_in_mid_blob(
    image: dict[str, Made], tmp_path: Path
) -> None:
    faults = Faults(too_many=12, breaks=12)  # crane gives up after ten
    waits: list[float] = []
    with registry(tmp_path) as faults.port, serving(faults) as address:
        push.push(f"{address}/team/bursar", "1", image, print, waits.append)

        assert all(faults.seen_bytes), faults.seen_bytes
        assert sorted(faults.seen) == ["429"] * 12 + ["break"] * 12
        assert len(waits) >= 2
        assert digest(address, "team/bursar/sidecar", "1") == image["sidecar"].digest


def test_a_registry_that_asks_for_a_token_gets_one_by_the_credentials_of_the_file(
    image: dict[str, Made], tmp_path: Path
) -> None:
    tokens = Tokens()
    with serving(tokens) as realm:
        # by its name, for crane goes to no private address that a registry tells
        tokens.url = f"http://{realm.replace('127.0.0.1', 'localhost')}/token"
        with registry(tmp_path, tokens=tokens) as port:
            address = f"127.0.0.1:{port}"
            log_in(tmp_path, address)
            push.push(f"{address}/bursar", "1", image, print, no_wait)
            assert "repository:bursar/sidecar:push,pull" in tokens.asked

            log_in(tmp_path, address, "pusher:wrong")
            with pytest.raises(ImagesError, match=f"{address} does not accept the credentials of .*.json"):
                push.push(f"{address}/bursar", "2", image, print, no_wait)


def test_a_registry_that_is_read_only_or_away_is_named(image: dict[str, Made], tmp_path: Path) -> None:
    with registry(tmp_path, readonly=True) as port, pytest.raises(ImagesError) as refused:
        push.push(f"127.0.0.1:{port}/bursar", "1", image, print, no_wait)
    assert f"the registry 127.0.0.1:{port} is read-only: push to another" in str(refused.value)

    with pytest.raises(ImagesError, match=f"the registry 127.0.0.1:{port} does not answer"):
        push.push(f"127.0.0.1:{port}/bursar", "1", image, print, no_wait)


def test_a_registry_that_stalls_is_named(image: dict[str, Made], tmp_path: Path) -> None:
    ended = threading.Event()
    with registry(tmp_path) as port, serving(Faults(port, stalls=ended)) as address:
        with pytest.raises(ImagesError, match=f"the registry {address} stalls, or the way to it is slow"):
            push.push(f"{address}/bursar", "1", image, print, no_wait, longest_s=3)
        ended.set()


def test_a_registry_that_refuses_for_long_is_named_with_its_words(
    image: dict[str, Made], tmp_path: Path
) -> None:
    with (
        registry(tmp_path) as port,
        serving(Faults(port, too_many=10_000)) as address,
        pytest.raises(ImagesError, match=r"could not be pushed: .*429"),
    ):
        push.push(f"{address}/bursar", "1", image, print, no_wait)
