"""Makes `tests/support.py` importable: with importlib import mode no test folder is on the path by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
