"""Starting up."""

import subprocess
import sys

PROGRAM = """
import gc
from common.models.imports import import_model_libraries
import_model_libraries()
import sys
assert "torch" in sys.modules and "transformers" in sys.modules
assert gc.isenabled() and gc.get_freeze_count() > 100_000
"""


def test_the_collector_works_again_after_the_imports() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=100)
