"""Tests of hosts run with the host's own package, each in a virtual environment of its own: `make test-hosts`, ONLY=trl for one. Elsewhere
they are skipped."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
