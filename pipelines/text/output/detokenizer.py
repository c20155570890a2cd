"""From token bytes to text that can no longer change."""

import codecs
from collections.abc import Sequence

_new_decoder = codecs.getincrementaldecoder("utf-8")


def incomplete_tail(data: bytes) -> bytes:
    """The bytes at the end of `data` that begin a character and do not end it."""
    decoder = _new_decoder("replace")
    decoder.decode(data)
    tail: bytes = decoder.getstate()[0]
    return tail


class Utf8Stream:
    """Bytes in, text out; the text of all calls together is that of all bytes, however they were split.

    A character whose bytes are incomplete is held back. U+FFFD stands only for bytes that no continuation could make
    valid; an incomplete character at the very end is dropped.

    `lead`: incomplete bytes before the first ones. If what comes completes the character, it belongs to the text; if
    not, they are not this text's fault and leave no trace in it.
    """

    def __init__(self, lead: bytes = b"") -> None:
        self._decoder = _new_decoder("replace")
        self._lead = lead
        self._waiting = b""  # fed, and not enough to tell whether the lead's character is one

    @property
    def pending(self) -> bool:
        """Whether the last character is incomplete."""
        return bool(self._waiting or self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        if self._lead:
            data = self._join(data)
        text: str = self._decoder.decode(data)
        return text

    def _join(self, data: bytes) -> bytes:
        """The bytes to decode now that `data` follows the lead."""
        data, self._waiting = self._waiting + data, b""
        joined = self._lead + data
        if len(incomplete_tail(joined)) == len(joined):
            self._waiting = data
            return b""
        self._lead = b""
        try:
            _new_decoder("strict").decode(joined)
        except UnicodeDecodeError as error:
            if error.start == 0:
                return data
        return joined


class _Matcher:
    """Knuth-Morris-Pratt: how much of `needle` the text read so far ends with."""

    def __init__(self, needle: str) -> None:
        self.needle = needle
        self.matched = 0
        self._fallback = [0] * (len(needle) + 1)  # by number of matched characters
        length = 0
        for index in range(1, len(needle)):
            while length and needle[index] != needle[length]:
                length = self._fallback[length]
            if needle[index] == needle[length]:
                length += 1
            self._fallback[index + 1] = length

    def advance(self, character: str) -> bool:
        """Whether the needle is complete with this character; nothing may follow then."""
        needle, matched = self.needle, self.matched
        while matched and character != needle[matched]:
            matched = self._fallback[matched]
        if character == needle[matched]:
            matched += 1
        self.matched = matched
        return matched == len(needle)


class Detokenizer:
    """One output's text, as it becomes final.

    `feed` returns text that no later token can change: never part of a character, never what may yet turn out to be
    the beginning of a stop string. Generation stops at the stop string that is complete first, character by character
    (the longest where several end together): where tokens or deltas begin makes no difference. The stop string is not
    part of the text. When generation ends otherwise, `finish` gives back what was held.
    """

    def __init__(self, stops: Sequence[str] = (), lead: bytes = b"") -> None:
        self._bytes = Utf8Stream(lead)
        self._matchers = [_Matcher(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._held = ""
        self.stop: str | None = None  # the stop string that was met
        self.decoded = 0  # characters of complete text so far, held ones too
        self.released = 0  # those of them given out

    @property
    def holding(self) -> bool:
        """Whether something that was fed is not out: not yet, or as part of the stop string never."""
        return bool(self._held) or self._bytes.pending

    def feed(self, data: bytes, *, match: bool = True) -> str:
        """Text that is final now. With `match` off, its characters begin or complete no stop string."""
        text = self._bytes.feed(data)
        self.decoded += len(text)
        if not self._matchers:
            self.released = self.decoded
            return text
        if not match:
            for matcher in self._matchers:
                matcher.matched = 0
            return self._release(len(self._held) + len(text), text)
        for position, character in enumerate(text, 1):
            # Every matcher reads every character: each must know what the text ends with.
            complete = [matcher for matcher in self._matchers if matcher.advance(character)]
            if complete:
                self.stop = complete[0].needle
                text = text[:position]
                return self._release(len(self._held) + position - len(self.stop), text)
        return self._release(len(self._held) + len(text) - max(m.matched for m in self._matchers), text)

    def finish(self) -> str:
        """What was held back in case of a stop string. Nothing may be fed afterwards."""
        return "" if self.stop is not None else self._release(len(self._held), "")

    def _release(self, count: int, text: str) -> str:
        """The first `count` characters of what is held and `text`; the rest is held."""
        text = self._held + text
        self._held = text[count:]
        self.released += count
        return text[:count]
