"""The columns of FOCUS 1.2, and those of ours beside them (``x_``), over a row that `report_formats` makes.
A column is what it is of a charge or of a correction."""

from collections.abc import Iterator

from timekeeper.api.sheets.sheet import (
    DECIMAL,
    INTEGER,
    TEXT,
    TIME,
    CellKind,
    Column,
    Json,
    Raw,
    Sheet,
    Value,
)

_NOTHING = Raw("0")
_AS_CSV = "as in `csv`"


def _columns(kind: CellKind, about: str, value: Value, *names: str) -> Iterator[Column]:
    """Columns with one value."""
    return (kind(name, name, about, value) for name in names)


def _always(text: str, *names: str) -> Iterator[Column]:
    return _columns(TEXT, f"`{text}`", lambda _: text, *names)


def _or_null(name: str) -> Value:
    return lambda raw: raw[name] or None


def _figure(name: str) -> Value:
    """None of a correction."""
    return lambda raw: raw.get(name)


def _sku(raw: Json) -> str:
    return f"{raw['drivers'] or 'gpu'}/{raw['models'] or 'unknown'}"


def _word(charge: str, correction: str | None) -> Value:
    return lambda raw: correction if raw["correction"] else charge or None


_STANDARD = (
    *_columns(
        DECIMAL,
        "the charge x the price that was in force, to 12 decimals, and 0 without a price",
        lambda raw: raw["cost"] or _NOTHING,
        *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"),
    ),
    *_columns(
        DECIMAL,
        "that price, or 0",
        lambda raw: Raw(raw["price"]) if raw["price"] else _NOTHING,
        *("ListUnitPrice", "ContractedUnitPrice"),
    ),
    *_columns(TEXT, "of the price", "currency", "BillingCurrency", "PricingCurrency"),
    *_columns(DECIMAL, "the charge", "gpuHours", "ConsumedQuantity", "PricingQuantity"),
    *_always("GPU-Hours", "ConsumedUnit", "PricingUnit"),
    *_columns(TIME, "the calendar's month", "billedFrom", "BillingPeriodStart"),
    *_columns(TIME, "the calendar's month", "billedTo", "BillingPeriodEnd"),
    *_columns(TIME, "the row's time", "from", "ChargePeriodStart"),
    *_columns(TIME, "the row's time", "to", "ChargePeriodEnd"),
    *_columns(TEXT, "`Correction` of a correction", _word("", "Correction"), "ChargeClass"),
    *_columns(TEXT, "`One-Time` of a correction", _word("Usage-Based", "One-Time"), "ChargeFrequency"),
    *_columns(TEXT, "a sentence", "description", "ChargeDescription"),
    *_columns(TEXT, "the UID of the pod, or of the claim's allocation", "uid", "ResourceId"),
    *_columns(TEXT, "the pod or the claim", "pod", "ResourceName"),
    *_columns(TEXT, "`Pod`, `ResourceClaim`, or of a correction `Namespace`", "type", "ResourceType"),
    *_columns(TEXT, "the namespace", "namespace", "SubAccountId", "SubAccountName"),
    *_columns(TEXT, "the pod's labels", lambda raw: Raw(raw["labels"]), "Tags"),
    *_columns(TEXT, "`gpu/MODEL`, of a claim `DRIVER/MODEL`", _sku, "SkuId", "SkuPriceId"),
    *_columns(TEXT, "always empty", lambda _: None, "InvoiceId", "RegionId", "RegionName"),
    *_always("bursar", "BillingAccountId"),
    *_always("Bursar", "BillingAccountName", "InvoiceIssuerName", "ProviderName", "PublisherName"),
    *_always("Cluster", "BillingAccountType"),
    *_always("Usage", "ChargeCategory"),
    *_always("Standard", "PricingCategory"),
    *_always("Compute", "ServiceCategory"),
    *_always("GPU time", "ServiceName", "SkuMeter"),
    *_always("Containers", "ServiceSubcategory"),
    *_always("Namespace", "SubAccountType"),
)
_FIGURES = {
    **{"x_Amount": "amount", "x_PendingAmount": "pending", "x_RequestedAmount": "requested"},
    **{"x_MeasuredAmount": "measured", "x_UsedAmount": "used", "x_UsedBy": "usedBy"},
}
_WORDS = {
    **{"x_Group": "group", "x_Owner": "owner", "x_Node": "node", "x_GpuModels": "models"},
    **{"x_DeviceClasses": "classes", "x_Drivers": "drivers", "x_Devices": "devices"},
    **{"x_ClusterName": "clusterName", "x_Workload": "workload", "x_Step": "step"},
}
_OURS = (
    *(INTEGER(key, key, _AS_CSV, _figure(name)) for key, name in _FIGURES.items()),
    *(TEXT(key, key, _AS_CSV, _or_null(name)) for key, name in _WORDS.items()),
)
FOCUS = Sheet(
    columns=(*sorted(_STANDARD, key=lambda column: column.key), *_OURS), rows=lambda answer: answer["rows"]
)
