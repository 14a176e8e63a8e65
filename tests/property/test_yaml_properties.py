from __future__ import annotations

import contextlib
import math

from hypothesis import given
from hypothesis import strategies as st

from common.config.yaml_source import dump, parse
from common.errors import ConfigError

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
    | st.sampled_from(["no", "1e5", "1_000", "0x1F", "0o7", "010", "1:30", "~", "", "<<", "=", "true", ".inf", "2026-01-01"])
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text("abc_1<~", max_size=5), below, max_size=4)
)  # fmt: skip


@given(TREES)
def test_what_is_written_reads_back_as_itself(tree: object) -> None:
    back = parse(dump(tree), "text")
    assert back == tree
    assert type(back) is type(tree)


@given(st.floats(allow_infinity=True, allow_nan=True))
def test_floats_keep_every_bit(value: float) -> None:
    back = parse(dump({"x": value}), "text")["x"]
    assert isinstance(back, float)
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"#%@`\n \t<~1e.?"), max_size=60))
def test_any_text_is_parsed_or_refused_and_never_fails_otherwise(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse(text, "text")
