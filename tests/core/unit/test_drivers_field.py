"""The setting `drivers`: what it is read as, and what is said of a mistake."""

import pytest

from timekeeper.core.budgets.mistakes import EntryError
from timekeeper.core.budgets.policy import BudgetSettings
from timekeeper.core.budgets.reader import read_entry
from timekeeper.core.claims.drivers import DeviceComparison, DriverRule

READ = {
    "{a.example.com: {}}": DriverRule("a.example.com"),
    "{a.example.com: {gpus: all}}": DriverRule("a.example.com"),
    "{a.example.com: {gpus: none}}": DriverRule("a.example.com", has_gpus=False),
    "{a.example.com: {gpus: [kind = train|infer, capacity.memory >= 16Gi]}}": DriverRule(
        "a.example.com",
        where=(
            DeviceComparison("kind", "=", ("train", "infer")),
            DeviceComparison("capacity.memory", ">=", ("16Gi",)),
        ),
    ),
    "{a.example.com: {units: capacity.tpus}}": DriverRule("a.example.com", units="capacity.tpus"),
    "{a.example.com: {units: capacity.x.com/n}}": DriverRule("a.example.com", units="capacity.x.com/n"),
    "{a.example.com: {units: chips}}": DriverRule("a.example.com", units="chips"),
    "{a.example.com: {model: m, counters: [cores], capacity: [memory, x/y], minShare: 0.05}}": DriverRule(
        "a.example.com",
        model="m",
        counters=("cores",),
        capacity=("memory", "x/y"),
        min_share_milli=50,
    ),
}


@pytest.mark.parametrize("text", READ)
def test_it_is_read(text: str) -> None:
    assert read_entry("_settings", f"drivers: {text}") == BudgetSettings(drivers=(READ[text],))


NAME = "the name of an attribute, a capacity or a counter of a device"
EXAMPLE = "type = gpu|mig or capacity.memory >= 8Gi"
WRONG = {
    "3": "drivers: not a mapping; allowed: fields as name: value",
    "{A: {}}": "drivers.A: this is not a driver's name; allowed: a name such as gpu.example.com",
    "{a: 3}": "drivers.a: not a mapping; allowed: fields as name: value",
    "{a: {gpu: all}}": "drivers.a.gpu: no such field",
    "{a: {gpus: some}}": (
        'drivers.a.gpus: "some" is not a valid value; allowed: all, none, or a list of comparisons such as '
        f"{EXAMPLE}"
    ),
    "{a: {gpus: []}}": "drivers.a.gpus: the list is empty; allowed: 1 to 16 values",
    "{a: {gpus: [type]}}": (
        f'drivers.a.gpus[0]: "type" is not a valid value; allowed: a comparison such as {EXAMPLE}'
    ),
    "{a: {model: a b}}": f'drivers.a.model: "a b" is not a valid value; allowed: {NAME}',
    "{a: {counters: memory}}": "drivers.a.counters: not a list; allowed: a list of values",
    "{a: {units: capacity.}}": (
        'drivers.a.units: "capacity." is not a valid value; allowed: an attribute of a device, or a capacity'
        " such as capacity.tpus"
    ),
    "{a: {units: 4 chips}}": 'drivers.a.units: "4 chips" is not a valid value; allowed: an attribute of a',
    "{a: {minShare: 2}}": (
        'drivers.a.minShare: "2" is not a valid value; allowed: a number from 0 to 1 with at most 3 decimals'
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_named_with_what_is_allowed(text: str) -> None:
    found = read_entry("_settings", f"drivers: {text}")

    assert isinstance(found, EntryError)
    assert WRONG[text] in found.sentence()


def test_too_many_drivers_are_refused() -> None:
    many = ", ".join(f"d{number}: {{}}" for number in range(65))

    found = read_entry("_settings", f"drivers: {{{many}}}")

    assert isinstance(found, EntryError)
    assert "drivers: too many drivers; allowed: at most 64 drivers" in found.sentence()
