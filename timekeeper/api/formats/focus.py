"""Report lines as rows of FOCUS 1.2, the FinOps Foundation's Open Cost and Usage Specification
(https://focus.finops.org/focus-specification/v1-2/). Data without a FOCUS column is in ``x_`` columns.

Every row is net: a correction changes the row of the time that it corrects, so ChargeClass is always null. A
cost is the charge x the price then in force, to 12 decimals; x_Amount is the exact charge.
"""

from timekeeper.accounts.usage import ReportLine, ReportQuery, cost, gpu_hours
from timekeeper.api.formats.report_formats import Cells, Raw, iso
from timekeeper.core.ledger.metering import period_at

COLUMNS = ("namespace", "group", "price", "currency", "uid", "pod", "owner", "node", "models", "labels")
PLACE = 5  # enough to identify a row within its time: the rest follows from the UID

_PROVIDER = "Bursar"
_UNIT = "GPU-Hours"  # for a card of weight 1

NAMES = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_Amount",
    "x_PendingAmount",
    "x_RequestedAmount",
    "x_MeasuredAmount",
    "x_UsedAmount",
    "x_UsedBy",
    "x_Group",
    "x_Owner",
    "x_Node",
    "x_GpuModels",
)


def row(asked: ReportQuery, line: ReportLine) -> Cells:
    """One report line with `COLUMNS`, by column; None is null."""
    keys = dict(zip(asked.columns, line.key, strict=True))
    billed = period_at("month", asked.zone, line.span.start_ms)
    values = {
        **_ALWAYS,
        **_money(line, keys["price"], keys["currency"], keys["models"]),
        "BillingPeriodStart": iso(billed.start_ms),
        "BillingPeriodEnd": iso(billed.end_ms),
        "ChargePeriodStart": iso(line.span.start_ms),
        "ChargePeriodEnd": iso(line.span.end_ms),
        "ChargeDescription": f"GPU time of pod {keys['pod']}",
        "ResourceId": keys["uid"],
        "ResourceName": keys["pod"],
        "SubAccountId": keys["namespace"],
        "SubAccountName": keys["namespace"],
        "Tags": Raw(keys["labels"]),
        "x_Group": keys["group"] or None,
        "x_Owner": keys["owner"] or None,
        "x_Node": keys["node"],
        "x_GpuModels": keys["models"] or None,
        **_amounts(line),
    }
    return {name: values.get(name) for name in NAMES}


_ALWAYS = {
    "BillingAccountId": "bursar",
    "BillingAccountName": _PROVIDER,
    "BillingAccountType": "Cluster",
    "ChargeCategory": "Usage",
    "ChargeFrequency": "Usage-Based",
    "InvoiceIssuerName": _PROVIDER,
    "ProviderName": _PROVIDER,
    "PublisherName": _PROVIDER,
    "ResourceType": "Pod",
    "ServiceCategory": "Compute",
    "ServiceName": "GPU time",
    "ServiceSubcategory": "Containers",
    "SubAccountType": "Namespace",
}


def _money(line: ReportLine, price: str, currency: str, models: str) -> Cells:
    """Without a price every cost is 0, and unit prices are null."""
    sku = f"gpu/{models or 'unknown'}"
    hours, costs = Raw(gpu_hours(line.sums.amount)), Raw(cost(line.sums.amount, price or "0"))
    spent = {
        "BilledCost": costs,
        "EffectiveCost": costs,
        "ListCost": costs,
        "ContractedCost": costs,
        "BillingCurrency": currency,
        "ConsumedQuantity": hours,
        "ConsumedUnit": _UNIT,
        "PricingQuantity": hours,
        "PricingUnit": _UNIT,
        "SkuId": sku,
        "SkuPriceId": sku,
        "SkuMeter": "GPU time",
    }
    if not price:
        return spent
    priced = {
        "ListUnitPrice": Raw(price),
        "ContractedUnitPrice": Raw(price),
        "PricingCategory": "Standard",
        "PricingCurrency": currency,
    }
    return spent | priced


def _amounts(line: ReportLine) -> Cells:
    sums = line.sums
    return {
        "x_Amount": sums.amount,
        "x_PendingAmount": sums.pending,
        "x_RequestedAmount": sums.requested,
        "x_MeasuredAmount": sums.measured,
        "x_UsedAmount": sums.used,
        "x_UsedBy": sums.used_by,
    }
