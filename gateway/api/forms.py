"""What the endpoints that take forms have in common."""

from collections.abc import Sequence

from gateway.errors import bad_request


def single(name: str, given: Sequence[str]) -> str | None:
    """The value of a field that is sent once; None where it is empty, which is how forms spell absent.

    Raises ApiError (400).
    """
    if len(given) > 1:
        raise bad_request(name, f"{name!r} was sent more than once.")
    return given[0] or None
