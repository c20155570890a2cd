"""Where one call's events wait for their reader, merged while they do."""

import asyncio
from collections import deque

from pipelines.messages import Delta, Done, Event, Failed, TokenLogprob

PIECES = 64  # unread texts that are kept apart before they are joined: the join's cost is spread over as many deltas


class _Unread:
    """Deltas of one choice that nobody has read: their text concatenated, tokens added, log-probabilities joined."""

    __slots__ = ("_first", "_last", "_logprobs", "_texts", "_tokens")

    def __init__(self, delta: Delta) -> None:
        self._first = self._last = delta
        self._tokens = delta.tokens
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, delta: Delta) -> None:
        if not self._texts:
            self._texts.append(self._first.text)
            self._logprobs.extend(self._first.logprobs)
        elif len(self._texts) >= PIECES:
            self._texts = ["".join(self._texts)]
        self._texts.append(delta.text)
        self._logprobs.extend(delta.logprobs)
        self._tokens += delta.tokens
        self._last = delta

    def delta(self) -> Delta:
        last = self._last
        if last is self._first:
            return last
        return Delta(last.id, last.index, "".join(self._texts), self._tokens, last.at, self._logprobs)


class Mailbox:
    """One writer, one reader, both on the event loop.

    A reader that lags finds at most one delta for each choice, however many steps it missed; so what waits for a slow
    client is bounded by the answer itself, and the writer never waits.
    """

    __slots__ = ("_entries", "_unread", "_waiter", "exhausted")

    def __init__(self) -> None:
        self._entries: deque[Event | _Unread] = deque()
        self._unread: dict[int, _Unread] = {}  # by choice; also in _entries
        self._waiter: asyncio.Future[None] | None = None
        self.exhausted = False  # the terminal event has been read: there will be no other

    def put(self, event: Event) -> None:
        if isinstance(event, Delta):
            unread = self._unread.get(event.index)
            if unread is not None:
                unread.add(event)
                return
            unread = self._unread[event.index] = _Unread(event)
            self._entries.append(unread)
        else:
            self._entries.append(event)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def pop(self) -> Event | None:
        """The oldest entry; None where there is none now."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        if isinstance(entry, _Unread):
            delta = entry.delta()
            del self._unread[delta.index]
            return delta
        if isinstance(entry, Done | Failed):
            self.exhausted = True
        return entry

    async def wait(self) -> None:
        """Until there is an entry."""
        if self._entries:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
