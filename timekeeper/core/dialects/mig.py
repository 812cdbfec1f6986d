"""Which part of its card a MIG instance is: its slices of compute over those of its card.

A profile's name does not say which card it is of: four instances ``1g.24gb`` fill an RTX PRO 6000, seven a
GB200. The product says it, else the other profiles beside it, the card's memory, and how many instances there
are. Sources: NVIDIA's MIG user guide, supported profiles; mig-parted's `config-default.yaml`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_NAME = r"(?:([1-7])c\.)?([1-7])g\.([1-9][0-9]{0,2})gb((?:[.+-][a-z]{1,16}){0,3})"
_PROFILE = re.compile(_NAME, re.ASCII)
_OF_MODEL = re.compile(rf"[ -]MIG[ -]{_NAME}$", re.ASCII)  # in what NVML and labels call an instance
_SHARED = re.compile("-SHARED$")
MOST_SLICES = 7
# slices of compute, GB of memory, and profiles of the cards that can be divided
_CARDS = tuple(
    (slices, gb, frozenset(profiles.split()))
    for slices, gb, profiles in (
        (2, 32, "1g.16 2g.32"),
        (2, 48, "1g.24 2g.48"),
        (4, 24, "1g.6 2g.12 4g.24"),
        (4, 96, "1g.24 2g.48 4g.96"),
        (7, 40, "1g.5 1g.10 2g.10 3g.20 4g.20 7g.40"),
        (7, 80, "1g.10 1g.20 2g.20 3g.40 4g.40 7g.80"),
        (7, 94, "1g.12 1g.24 2g.24 3g.47 4g.47 7g.94"),
        (7, 96, "1g.12 1g.24 2g.24 3g.48 4g.48 7g.96"),
        (7, 141, "1g.18 1g.35 2g.35 3g.71 4g.71 7g.141"),
        (7, 144, "1g.18 1g.36 2g.36 3g.72 4g.72 7g.144"),
        (7, 180, "1g.23 1g.45 2g.45 3g.90 4g.90 7g.180"),
        (7, 189, "1g.24 1g.47 2g.47 3g.93 3g.95 4g.93 4g.95 7g.186 7g.189"),
        (7, 269, "1g.34 1g.67 2g.67 3g.135 4g.135 7g.269"),
        (7, 278, "1g.35 1g.70 2g.70 3g.139 4g.139 7g.278"),
    )
)
_PRODUCTS = {
    4: r"A30X?|RTX PRO 6000",
    2: r"RTX PRO (5000|4500)",
    MOST_SLICES: r"A100X?|A800|H20|H100|H200|H800|GH200|B100|B200|B300|GB200|GB300",
}


@dataclass(frozen=True, slots=True)
class Profile:
    """``slices``: of compute, of the instance, or of the part of it that a compute instance is."""

    slices: int
    of_instance: int
    gb: int
    suffix: str = ""  # such as .me, with media engines, of which a card has one set

    @property
    def name(self) -> str:
        """Slices and memory of the instance."""
        return f"{self.of_instance}g.{self.gb}"

    @property
    def most(self) -> int:
        """How many of it one card has at most."""
        of_one = [_most(self, slices, gb) for slices, gb, names in _CARDS if self.name in names]
        instances = max(of_one, default=MOST_SLICES // self.of_instance)
        return 1 if self.suffix.startswith((".me", "+me")) else instances * (self.of_instance // self.slices)


@dataclass(frozen=True, slots=True)
class CardSlices:
    """Of how many slices a card is. ``doubt``: what of that is an assumption; "": nothing."""

    slices: int
    doubt: str = ""


def profile_of(name: str) -> Profile | None:
    """The profile by its name, as NVML, resources and labels write it; None if it is no profile's."""
    found = _PROFILE.fullmatch(name)
    return _read(found) if found and int(found[1] or 1) <= int(found[2]) else None


def card_model(model: str) -> str:
    """The model of the card of which this is an instance, or a replica."""
    return _OF_MODEL.sub("", _SHARED.sub("", model))


@lru_cache(maxsize=1024)
def instance_of(model: str) -> tuple[Profile, CardSlices] | None:
    """The instance that a card of this model is, and its card; None: it is a whole card."""
    found = _OF_MODEL.search(_SHARED.sub("", model))
    if found is None:
        return None
    profile = _read(found)
    return profile, slices_of(card_model(model), profile)


def slices_of(
    product: str, profile: Profile, beside: Iterable[Profile] = (), card_mib: int = 0, count: int = 0
) -> CardSlices:
    """Of how many slices the card is that has instances of this profile. ``beside``: all profiles there;
    ``card_mib``: of the whole card; ``count``: instances of the profile on one card; 0: not known. Where
    several are possible it is the most, so that no card costs more than one."""
    text = " ".join(re.findall(r"[A-Z0-9]+", product.upper()))
    for slices, pattern in _PRODUCTS.items():
        if re.search(rf"(^| )({pattern})( |$)", text):
            return CardSlices(slices)
    cards = [card for card in _CARDS if profile.name in card[2] and count <= _most(profile, *card[:2])]
    with_beside = [card for card in cards if {other.name for other in beside} <= card[2]]
    cards = with_beside or cards
    of_size = [card for card in cards if abs(1024 * card[1] - card_mib) * 10 < card_mib]
    found = {slices for slices, *_ in of_size or cards} or _by_memory(profile, card_mib)
    whole = max(found, default=MOST_SLICES)
    if len(found) == 1:
        return CardSlices(whole)
    known = product if product not in ("", "GPU") else "of no known product"
    return CardSlices(
        whole,
        f"an instance {profile.name}gb of a card {known} counts as {profile.slices}/{whole} of it:"
        " nothing says how many slices the card has; unitCosts or weights set another part",
    )


def _by_memory(profile: Profile, card_mib: int) -> set[int]:
    """Of a profile that no known card has. One slice may have twice the memory of the others."""
    if not card_mib or profile.of_instance in (3, 5, 6, 7):
        return {MOST_SLICES} if profile.of_instance in (3, 7) else set()
    parts = round(card_mib * profile.of_instance / (1024 * profile.gb))
    if profile.of_instance == 1 and parts < 6:
        return set()
    return {2 if parts < 3 else 4 if parts < 6 else MOST_SLICES}


def _most(profile: Profile, slices: int, gb: int) -> int:
    return max(1, min(slices // profile.of_instance, round(gb / profile.gb)))


def _read(found: re.Match[str]) -> Profile:
    of_instance = int(found[2])
    return Profile(int(found[1] or of_instance), of_instance, int(found[3]), found[4])
