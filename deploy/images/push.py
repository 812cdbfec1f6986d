"""Images pushed to a registry by crane, which speaks the OCI distribution protocol and takes Docker's file of
credentials. It repeats a request for some seconds; then the push is repeated whole, for half a minute, and
what the registry has is not sent again."""

import json
import os
import re
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy.images.debian import Say
from deploy.images.lock import ImagesError
from deploy.images.make import Made
from deploy.local.build import binaries
from deploy.local.golang import last_lines
from deploy.local.tools import CRANE_TOOL

_PREFIX = re.compile(r"[a-z0-9.-]+(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_WAITS_S = (1, 2, 4, 8, 16)
_LONGEST_S = 900  # of one try; crane itself waits for ever
_PASSES = re.compile(
    r"status code (?:408|429|499|50[0234])|TOOMANYREQUESTS|EOF|broken pipe|connection reset"
    r"|timeout|closed connection"
)
# What crane says -> what it means, with the registry, the repository and the file of credentials.
_MEANINGS = (
    (
        r"status code 401|UNAUTHORIZED",
        "{host} does not accept the credentials of {file}: log in to it, which writes them there",
    ),
    (
        r"status code 403|DENIED",
        "{host} does not let the account of {file} push to {repository}: give it that right",
    ),
    (
        r"status code 405|UNSUPPORTED",
        "the registry {host} is read-only: push to another one, or make it writable",
    ),
    (
        r"connection refused|no such host|no route|unreachable",
        "the registry {host} does not answer: is its name right, and is it reachable from here?",
    ),
    (r"parsing config file", "the credentials file {file} is not as a login writes it: log in again"),
    (
        r"no end within",
        "the registry {host} stalls, or the way to it is slow: call again, for what it has is not sent again",
    ),
    (
        r"x509|certificate",
        "{host} shows a certificate that this machine does not trust: name the CA by SSL_CERT_FILE",
    ),
)


def credentials(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Docker's file of credentials is, if there is one."""
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def check(prefix: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises ImagesError, before anything is made, where nothing can be pushed."""
    if not _PREFIX.fullmatch(prefix) or "/" not in prefix:
        raise ImagesError(
            f"PUSH={prefix} is no registry with a prefix: name both, as in PUSH=registry.example.com/bursar"
        )
    file = credentials(environ)
    try:
        told = json.loads(file.read_text())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ImagesError(
            f"the credentials file {file} cannot be read ({error.strerror}): mend its rights, or name another"
            " folder by DOCKER_CONFIG"
        ) from error
    except ValueError as error:
        raise ImagesError(f"the credentials file {file} is no JSON ({error}): log in again") from error
    if not isinstance(told, dict):
        raise ImagesError(f"the credentials file {file} is no JSON object: log in again")


def push(
    prefix: str,
    tag: str,
    images: Mapping[str, Made],
    say: Say,
    sleep: Callable[[float], None] = time.sleep,
    longest_s: float = _LONGEST_S,
) -> None:
    """Push each image by its tag. Raises ImagesError."""
    crane = binaries(say, (CRANE_TOOL,))[CRANE_TOOL.name]
    for role, image in images.items():
        reference = f"{prefix}/{role}:{tag}"
        say(f"pushing {reference}")
        with tempfile.TemporaryDirectory() as layout:
            with tarfile.open(image.archive) as tar:
                tar.extractall(layout, filter="data")
            try:
                _repeated([str(crane), "push", layout, reference], reference, say, sleep, longest_s)
            except subprocess.TimeoutExpired as error:
                raise ImagesError(why(reference, f"no end within {longest_s:.0f} s")) from error


def _repeated(
    command: list[str], reference: str, say: Say, sleep: Callable[[float], None], longest_s: float
) -> None:
    for wait_s in (*_WAITS_S, None):
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=longest_s
        )
        if done.returncode == 0:
            return
        said = re.sub(r"\?[^\s\"]+", "", done.stderr.rpartition("Error: ")[2].strip())
        if wait_s is None or not _PASSES.search(said):
            raise ImagesError(why(reference, said))
        say(f"{reference}: {last_lines(said, 1)}; once more in {wait_s} s")
        sleep(wait_s)


def why(reference: str, said: str) -> str:
    """Why a push failed, of what crane said."""
    host, _, rest = reference.partition("/")
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, said):
            return meaning.format(host=host, repository=rest.rpartition(":")[0], file=credentials())
    return f"{reference} could not be pushed: {last_lines(said, 3)}"
