"""Prints docs/metrics.md: `python -m scripts.metrics_page`"""

import os

from metrics.page import page
from models.privacy import silence
from pipelines.kinds import metrics_by_kind

if __name__ == "__main__":
    silence(os.environ)
    print(page(metrics_by_kind()), end="")
