"""As much of the Dockerfile format as ours uses: stages, and each stage's instructions."""

import configparser
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.reading import ROOT

DOCKERFILE = ROOT / "deploy" / "images" / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its lines joined; flags such as ``--from=build`` by name."""

    word: str
    flags: dict[str, str]
    text: str

    def words(self) -> list[str]:
        """The arguments, of the JSON form or of the plain one."""
        return list(json.loads(self.text)) if self.text.startswith("[") else self.text.split()


@dataclass(frozen=True, slots=True)
class Stage:
    """``FROM base AS name`` and what follows it."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def of(self, word: str) -> list[Instruction]:
        """The instructions of one kind, in order."""
        return [each for each in self.instructions if each.word == word]


def stages(file: Path = DOCKERFILE, given: Mapping[str, str] | None = None) -> dict[str, Stage]:
    """The stages by name, with the values of ``--build-arg`` that are given. Raises ValueError for anything
    but ARG before the first."""
    found: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    name = ""
    for instruction in _instructions(file.read_text()):
        if instruction.word == "FROM":
            base, _, name = instruction.text.partition(" AS ")
            found[name] = Stage(name, _expanded(base, arguments), ())
        elif not name and instruction.word == "ARG":
            argument, _, default = instruction.text.partition("=")
            arguments[argument] = (given or {}).get(argument, default.strip('"'))
        elif not name:
            raise ValueError(f"{instruction.word} stands before the first FROM")
        else:
            stage = found[name]
            found[name] = Stage(name, stage.base, (*stage.instructions, instruction))
    return found


def lineage(name: str) -> list[Stage]:
    """A stage after those that it is FROM, the eldest first."""
    every = stages()
    stage = every[name]
    return [*(lineage(stage.base) if stage.base in every else []), stage]


def last(name: str, word: str) -> Instruction:
    """The instruction of a kind that holds in the image of a stage: the last one of it and its ancestors."""
    return [each for stage in lineage(name) for each in stage.of(word)][-1]


def console_scripts() -> dict[str, str]:
    """The console scripts that setup.cfg declares: name -> module:function."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    return dict((part.strip() for part in line.split("=", 1)) for line in lines)  # type: ignore[misc]


def _expanded(text: str, arguments: Mapping[str, str]) -> str:
    """``${NAME:+word}`` is the word where the argument is not empty, ``${NAME}`` is its value. Raises
    KeyError for an argument that was not declared."""
    text = re.sub(
        r"\$\{(\w+):\+((?:[^{}]|\{\w+\})*)\}", lambda found: found[2] if arguments[found[1]] else "", text
    )
    return re.sub(r"\$\{(\w+)\}", lambda found: arguments[found[1]], text)


def _instructions(text: str) -> list[Instruction]:
    without_comments = re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ")
    return [_instruction(line) for line in without_comments.splitlines() if line.strip()]


def _instruction(line: str) -> Instruction:
    word, _, rest = line.strip().partition(" ")
    flags = {}
    while flag := re.match(r"\s*--([a-z]+)=(\S+)", rest):
        flags[flag[1]] = flag[2]
        rest = rest[flag.end() :]
    return Instruction(word.upper(), flags, rest.strip())
