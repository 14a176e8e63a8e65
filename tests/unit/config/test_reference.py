from __future__ import annotations

from pathlib import Path

from common.config.keys import walk
from common.config.reference import reference
from common.config.root import TandemConfig
from trainer_service.algorithm.presets import BUILT_IN

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_the_generated_one() -> None:
    assert PAGE.read_text() == reference(), "run: python -m common.config.reference > docs/configuration.md"


def test_every_key_is_described() -> None:
    page = reference()
    for dotted, field in walk(TandemConfig):
        assert f"`{dotted.rpartition('.')[2]}`" in page or f"`{dotted}`" in page
        assert field.description or "." in dotted or field.annotation is not str, dotted


def test_the_page_names_the_parts_of_every_preset() -> None:
    text = reference().partition("## Presets")[2].partition("## Keys")[0]
    entries = {entry.split("`")[0]: entry for entry in text.split("\n- `")[1:]}
    assert set(entries) == set(BUILT_IN)
    for name, preset in BUILT_IN.items():
        for part in (preset.advantage, preset.policy_loss, preset.aggregation):
            assert f"`{part}`" in entries[name], (name, part)
