"""What a caller calls the fields of a request: one thing has several names in the protocols that the gateway speaks."""

from msgspec import field

from pipelines.messages.base import Request


class Named(Request, frozen=True, kw_only=True):
    """A request that knows what its fields are called where it came from, for errors that only its worker can find."""

    names: dict[str, str] = field(default_factory=dict)  # usual name -> the caller's, where that is another one

    def called(self, field: str) -> str:
        """The caller's name for a field with this usual name."""
        return self.names.get(field, field)
