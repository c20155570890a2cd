"""The service's side of the lines. Imports nothing but the standard library: other environments run it too."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def serve(answer: Callable[[dict[str, Any]], object]) -> None:
    """Answer until stdin ends. Whatever a library prints goes to stderr."""
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            replies.write(json.dumps(answer(json.loads(line))) + "\n")
            replies.flush()
