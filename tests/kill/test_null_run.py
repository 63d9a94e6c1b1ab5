"""Without this no kill proves anything: each loop equals itself, and is the loop it was before Stepfast."""

from __future__ import annotations

import pytest

from tests.kill.campaign import Campaign
from tests.kill.outcome import differences
from tests.kill.variants import VARIANTS, Variant

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_twice_undisturbed_is_the_same(campaign: Campaign, variant: Variant) -> None:
    expected = campaign.expected(variant)
    assert differences(expected, campaign.run_undisturbed(variant, "again")) == []


@pytest.mark.parametrize("variant", [v for v in VARIANTS.values() if v.is_source_kept], ids=lambda v: v.name)
def test_under_stepfast_it_is_the_script_it_was(campaign: Campaign, variant: Variant) -> None:
    before = campaign.before(variant)
    assert campaign.expected(variant).result == before
    assert campaign.bare(variant) == before
