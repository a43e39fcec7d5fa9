"""Two packages know prices and may not import each other: what they say of the same machine is the same."""

from __future__ import annotations

import pytest
import yaml

from analysis.summaries.costs import SHIPPED, rate
from trainer.cost.flops import RATES

ROWS = {row["name"]: row for row in yaml.safe_load(SHIPPED.read_text())["rates"]}


@pytest.mark.parametrize("word", RATES)
def test_the_trainers_price_is_a_row_of_the_table_with_its_month(word: str) -> None:
    price = RATES[word]
    row = ROWS[price.listed]
    assert (row["on_demand"], row.get("spot"), row["dated"]) == (price.on_demand, price.spot, price.dated)
    # The same unit: both are dollars per hour of one whole machine, for the analysis as for the trainer.
    assert rate(price.listed).usd_per_hour == price.on_demand
    assert word in price.listed.split()


def test_neither_table_knows_a_device_that_the_other_does_not() -> None:
    words = {name.split()[-1] for name in ROWS}
    assert words == set(RATES)
