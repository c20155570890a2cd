"""The command `gateway`, also as `python -m gateway`: what has to be right before anything else is imported."""

import os
import sys

from gateway.own_packages import foreign_package


def main() -> None:
    if (problem := foreign_package()) is not None:
        sys.exit(f"gateway: {problem}")
    from models.privacy import silence

    silence(os.environ)
    from gateway.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
