"""`python -m explorer_service.tasksets.digit_skills OUT.jsonl --count N --seed S`: writes supervised examples."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from explorer_service.tasksets.digit_skills.supervised import supervised_examples


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the file; its folder must exist."""
    parser = argparse.ArgumentParser(
        prog="python -m explorer_service.tasksets.digit_skills",
        description="Writes supervised examples of the digit skills: random skills, whatever the letter asks for.",
    )
    parser.add_argument("out", type=Path, help="file of JSON lines with `prompt` and `response`")
    parser.add_argument("--count", type=int, default=20_000, help="examples (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (default: %(default)s)")
    parser.add_argument("--digits", type=int, default=4, help="digits a prompt (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error("--count must be at least 1")
    with options.out.open("w", encoding="utf-8") as file:
        for example in supervised_examples(options.count, options.seed, options.digits):
            file.write(json.dumps(example) + "\n")


if __name__ == "__main__":
    main()
