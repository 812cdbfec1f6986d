"""The end of a certificate, against certificates that the library writes."""

from datetime import UTC, datetime, timedelta

import pytest

from timekeeper.core.certificate_end import ends
from webhook.controller.issue import new_ca, new_leaf
from webhook.controller.plan import Leaf


@pytest.mark.parametrize("year", [2049, 2050])  # from 2050 on certificates write the year in full
def test_the_end_of_each_certificate_is_read_from_it(year: int) -> None:
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    begin = datetime(year, 1, 1, tzinfo=UTC)
    ca = new_ca(b"", begin, timedelta(days=5_000))
    pair = new_leaf(ca, Leaf("webhook", ("localhost",)), begin, end - begin)

    text = (pair.certificate + ca.certificate).decode()

    assert ends(text) == [end, begin + timedelta(days=5_000)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nhalf a line\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n",
    ],
    ids=["nothing", "no certificate", "no base64", "a number"],
)
def test_what_is_no_certificate_has_no_end(text: str) -> None:
    with pytest.raises(ValueError, match=r"certificate|base64|padding"):
        ends(text)
