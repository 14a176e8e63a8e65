"""`tandem check`: what a configuration comes to, without running it."""

from __future__ import annotations

import textwrap

from common.config.describe import describe_sync
from common.config.load import to_yaml
from common.config.root import TandemConfig
from common.config.stages import stage_configs

_WIDTH = 110


def checked(config: TandemConfig) -> str:
    """The regime of every stage as comments, then the effective configuration: valid YAML as a whole.

    Raises ConfigError where a stage would wait for ever.
    """
    comments: list[str] = []
    for stage in stage_configs(config):
        text = f"{stage.stage_name}: {describe_sync(stage)}" if config.stages else describe_sync(stage)
        comments.extend(textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   "))
    return "\n".join(comments) + "\n\n" + to_yaml(config)
