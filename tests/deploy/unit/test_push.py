"""What can be pushed where, and what a failure of crane means."""

from pathlib import Path

import pytest

from deploy.images import push
from deploy.images.lock import ImagesError

HERE = "registry.example.com/bursar/webhook:1"


def test_a_push_without_credentials_is_tried() -> None:
    push.check("registry.example.com:5000/team/bursar", {"HOME": "/nonexistent"})


@pytest.mark.parametrize(
    "prefix", ["registry.example.com", "https://registry.example.com/x", "a/B", "a/b/", ":1/x"]
)
def test_what_is_no_registry_with_a_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ImagesError, match="is no registry with a prefix: name both, as in PUSH=registry"):
        push.check(prefix, {"HOME": "/nonexistent"})


def test_credentials_that_cannot_be_read_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    environ = {"DOCKER_CONFIG": str(tmp_path)}

    for content, said in {"{": "is no JSON (", "[]": "is no JSON object: log in again"}.items():
        file.write_text(content)
        with pytest.raises(ImagesError) as refused:
            push.check("a.example.com/b", environ)
        assert f"the credentials file {file} {said}" in str(refused.value)

    file.unlink()
    file.mkdir()
    with pytest.raises(ImagesError) as refused:
        push.check("a.example.com/b", environ)
    assert f"the credentials file {file} cannot be read (Is a directory): mend its rights" in str(
        refused.value
    )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "PUT http://x: UNAUTHORIZED: authentication required",
            "registry.example.com does not accept the credentials of ",
        ),
        (
            "POST http://x: DENIED: requested access is denied",
            " push to bursar/webhook: give it that right",
        ),
        ("unexpected status code 405 Method Not Allowed", "the registry registry.example.com is read-only"),
        ("dial tcp: lookup x: no such host", "the registry registry.example.com does not answer"),
        ("tls: x509: certificate signed by unknown", "name the CA by SSL_CERT_FILE"),
        ("parsing config file (x): illegal base64 data", "is not as a login writes it: log in again"),
        ("a new mistake", "registry.example.com/bursar/webhook:1 could not be pushed: a new mistake"),
    ],
)
def test_a_failure_is_said_with_what_to_do(said: str, meant: str) -> None:
    assert meant in push.why(HERE, said)
