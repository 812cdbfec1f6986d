"""deploy/Containerfile as values: what each of its images starts, where it listens, and as whom it runs."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.deploy.reading import ROOT

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
REQUIREMENTS = ROOT / "deploy" / "requirements"

_STAGE = re.compile(r"^FROM (?P<base>\S+) AS (?P<name>\S+)\n(?P<body>.*?)(?=^FROM |\Z)", re.M | re.S)
_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])$", re.M)
_EXPOSE = re.compile(r"^EXPOSE (.*)$", re.M)
_USER = re.compile(r"^USER (\S+)$", re.M)
_ENV = re.compile(r"^ENV (.*)$", re.M)


@dataclass(frozen=True, slots=True)
class Image:
    """The configuration of an image."""

    entrypoint: tuple[str, ...]
    ports: tuple[int, ...]
    user: str
    environment: Mapping[str, str]


def images() -> dict[str, Image]:
    """The stages with an entrypoint, by their names, which are the roles."""
    stages = {stage["name"]: stage for stage in _STAGE.finditer(CONTAINERFILE.read_text())}
    starting = {name: _ENTRYPOINT.search(stage["body"]) for name, stage in stages.items()}
    return {
        role: _image(stages[stages[role]["base"]]["body"], stages[role]["body"], json.loads(entrypoint[1]))
        for role, entrypoint in starting.items()
        if entrypoint is not None
    }


def _image(base: str, body: str, entrypoint: list[str]) -> Image:
    exposed, user = _EXPOSE.search(body), _USER.search(base)
    assert user is not None
    environment: dict[str, str] = {}
    for line in _ENV.findall(f"{base}\n{body}"):
        for name, value in (variable.split("=", 1) for variable in line.split()):
            environment[name] = value.replace("$PATH", environment.get("PATH", ""))
    assert environment
    return Image(
        tuple(entrypoint),
        tuple(int(port) for port in exposed[1].split()) if exposed else (),
        user[1],
        environment,
    )
