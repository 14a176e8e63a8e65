"""Settings of every test process; must run before torch is imported."""

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects the tests marked `cuda` where there is no device: they are not missing there, they do not apply."""
    marked = [item for item in items if item.get_closest_marker("cuda") is not None]
    if not marked:
        return
    import torch  # noqa: PLC0415 - after the settings above, and only where it matters

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=marked)
        items[:] = [item for item in items if item not in marked]
