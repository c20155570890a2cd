"""Where one call's events wait for their reader, merged while they do."""

import asyncio

from pipelines.messages.frames import Event
from pipelines.messages.text import Delta, TokenLogprob

PIECES = 64  # unread texts that are kept apart before they are joined: the join's cost is spread over as many deltas


class _Merged:
    """Deltas of one choice that nobody has read: their text concatenated, tokens added, log-probabilities joined."""

    __slots__ = ("_last", "_logprobs", "_texts", "_tokens")

    def __init__(self, delta: Delta) -> None:
        self._last = delta
        self._tokens = delta.tokens
        self._texts = [delta.text]
        self._logprobs: list[TokenLogprob] = list(delta.logprobs)

    def add(self, delta: Delta) -> None:
        if len(self._texts) >= PIECES:
            self._texts = ["".join(self._texts)]
        self._texts.append(delta.text)
        self._logprobs.extend(delta.logprobs)
        self._tokens += delta.tokens
        self._last = delta

    def delta(self) -> Delta:
        last = self._last
        return Delta(last.id, last.index, "".join(self._texts), self._tokens, last.at, self._logprobs)


class Mailbox:
    """One writer, one reader, both on the event loop.

    A reader that lags finds at most one delta for each choice, however many steps it missed; so what waits for a slow
    client is bounded by the answer itself, and the writer never waits.
    """

    __slots__ = ("_entries", "_unread", "_waiter")

    def __init__(self) -> None:
        self._entries: list[Event | _Merged] = []
        self._unread: dict[int, int] = {}  # choice -> where its delta is in _entries
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        entries = self._entries
        if isinstance(event, Delta):
            at = self._unread.get(event.index)
            if at is not None:
                unread = entries[at]
                if isinstance(unread, Delta):
                    unread = entries[at] = _Merged(unread)
                assert isinstance(unread, _Merged)
                unread.add(event)
                return
            self._unread[event.index] = len(entries)
        entries.append(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> list[Event]:
        """All that is there, in order; often nothing."""
        entries, self._entries = self._entries, []
        self._unread.clear()
        return [entry.delta() if isinstance(entry, _Merged) else entry for entry in entries]

    async def read(self) -> list[Event]:
        """The same, once there is something."""
        if not self._entries:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()
