"""Prints docs/metrics.md: `python -m scripts.metrics_page`"""

from metrics.page import page
from pipelines.kinds import metrics_by_kind

if __name__ == "__main__":
    print(page(metrics_by_kind()), end="")
