"""What an installed wheel needs, direct and indirect, and under which licences. ``python -m
deploy.dependencies`` writes the page that lists it.

It is read from the packages that are installed here, which must be those of constraints.txt.
"""

import configparser
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from license_expression import ExpressionError, LicenseExpression, LicenseSymbol, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "dependencies.md"

# SPDX identifiers. Packages are used unchanged, and each is installed as a package of its own.
ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LGPL-3.0-only", "MIT"}
    | {"MIT-0", "MPL-2.0", "PSF-2.0", "Zlib"}
)

# Packages that write no SPDX expression into their metadata: what they write there -> what it means. Where
# BSD has no number, their licence text was read: it has three clauses.
_MEANT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
}

_INSTALL = "pip install -c constraints.txt -e '.[dev,docs]'"
_NO_ROLE = frozenset({"all", "dev", "docs"})
_CLI = "`kubectl bursar`, all roles"

_TABLE = re.compile(r"(?<=<!-- dependencies -->\n).*?(?=<!-- end of dependencies -->)", re.S)
_SPDX = get_spdx_licensing()


class DependencyError(Exception):
    """What is not as it is tested, in a sentence."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A package at the version that is tested."""

    name: str  # as its metadata writes it
    version: str
    licence: str  # an SPDX expression, or what its metadata says where that is none


def declared() -> dict[str, list[Requirement]]:
    """What setup.cfg declares for an installation of each role, by the name of its extra; "": of all."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = {"": setup["options"]["install_requires"]} | {
        extra: text for extra, text in setup["options.extras_require"].items() if extra not in _NO_ROLE
    }
    return {extra: [Requirement(line) for line in text.split()] for extra, text in texts.items()}


def direct() -> list[Requirement]:
    """All that setup.cfg declares for an installation of all roles."""
    return list({each.name: each for listed in declared().values() for each in listed}.values())


def dependencies() -> dict[str, Dependency]:
    """All of an installation's, by their normalised names, sorted. Raises DependencyError as `installed`."""
    return {name: _dependency(package) for name, (package, _) in installed(direct()).items()}


def installed(wanted: list[Requirement]) -> dict[str, tuple[Distribution, frozenset[str]]]:
    """What is wanted and needed by it, as it is installed here, with the extras that are needed, by the
    normalised names, sorted. Raises DependencyError where one is missing here, or has another version than
    constraints.txt says.
    """
    pinned = _pinned()
    found: dict[str, tuple[Distribution, frozenset[str]]] = {}
    left = list(wanted)
    while left:
        each = left.pop()
        name, extras = canonicalize_name(each.name), frozenset(each.extras)
        known = found.get(name)
        if known is None or not extras <= known[1]:
            extras |= known[1] if known else frozenset()
            found[name] = _installed(name, pinned), extras
            left += needed(found[name][0].requires or (), extras)
    return dict(sorted(found.items()))


def needed(lines: Iterable[str], extras: frozenset[str]) -> list[Requirement]:
    """Those of a package's requirements that hold on this machine with these of its extras."""
    requirements = [Requirement(line) for line in lines]
    return [
        each
        for each in requirements
        if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in extras | {""})
    ]


def licence(metadata: Mapping[str, str], classifiers: Iterable[str]) -> str:
    """A package's licence as an SPDX expression; where its metadata has none, what it has."""
    told = [metadata.get("License-Expression"), metadata.get("License"), *classifiers]
    texts = [_MEANT.get(text, text) for text in told if text]
    return next((text for text in texts if _parsed(text) is not None), "; ".join(texts) or "none")


def is_allowed(expression: str) -> bool:
    """Whether a licence that we may choose by an SPDX expression is on the list. What is no expression is
    not allowed."""
    parsed = _parsed(expression)
    return parsed is not None and _holds(parsed)


def page() -> str:
    """docs/dependencies.md with its table as the installed packages give it."""
    needed_by: dict[str, list[str]] = {}
    for extra, listed in declared().items():
        for each in listed:
            needed_by.setdefault(canonicalize_name(each.name), []).append(f"`{extra}`" if extra else _CLI)
    known = dependencies()
    rows = "".join(
        f"| `{each.name}` | {each.version} | {each.licence} | {', '.join(needed_by[key])} |\n"
        for key, each in known.items()
        if key in needed_by
    )
    others = ",\n".join(
        f"`{each.name}` {each.version} ({each.licence})"
        for key, each in known.items()
        if key not in needed_by
    )
    table = f"| package | version | licence | needed by |\n|---|---|---|---|\n{rows}"
    return _TABLE.sub(f"\n{table}\nIndirect:\n\n{others}.\n\n", PAGE.read_text())


def _parsed(text: str) -> LicenseExpression | None:
    try:
        return _SPDX.parse(text, validate=True)
    except ExpressionError:
        return None


def _holds(parsed: LicenseExpression) -> bool:
    if isinstance(parsed, LicenseSymbol):
        return parsed.key in ALLOWED
    if isinstance(parsed, (_SPDX.AND, _SPDX.OR)):
        combine = all if isinstance(parsed, _SPDX.AND) else any
        return combine(_holds(each) for each in parsed.args)
    return False  # an exception to a licence, which the list has none of


def _pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def _installed(name: str, pinned: Mapping[str, str]) -> Distribution:
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise DependencyError(f"{name} is not installed here: {_INSTALL}") from error
    if found.version != pinned.get(name):
        raise DependencyError(
            f"{name} {found.version} is installed; constraints.txt says {pinned.get(name)}: {_INSTALL}"
        )
    return found


def _dependency(found: Distribution) -> Dependency:
    told = found.metadata
    classifiers = [each for each in told.get_all("Classifier") or [] if each.startswith("License ::")]
    single = {name: told[name] for name in ("License-Expression", "License") if name in told}
    return Dependency(told["Name"], found.version, licence(single, classifiers))


if __name__ == "__main__":
    PAGE.write_text(page())
