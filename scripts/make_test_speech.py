"""Make tests/data/speech/made.ogg and made.tsv: English sentences said by espeak-ng, and when each word was said.

Needs Debian's libespeak-ng1 (1.51) and espeak-ng-data; the tests do not, its output is committed.
`made.tsv`: start and end of a sentence in seconds of made.ogg, its text, the start of each of its words; "-" for a word
that espeak-ng says as one with the word before.
"""

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import speech

LIBRARY = "libespeak-ng.so.1"
SYNCHRONOUS, UTF8, RATE_PARAMETER, BY_CHARACTER = 2, 1, 1, 1
END_OF_LIST, WORD = 0, 1
GAP = 0.5  # seconds between two sentences of the file
MARGIN = 0.02  # seconds kept around what can be heard
QUIET = 200  # of 32768: less can't be heard
BIT_RATE = 24_000

VOICES = (("en-us", 150), ("en-gb", 150), ("en-us+f2", 145), ("en-gb+m3", 155), ("en-us+m1", 160), ("en-gb+f4", 140))
SENTENCES = """\
The train to the city leaves at seven in the morning.
She opened the window and looked at the garden.
My brother wants to learn the piano this winter.
We have to finish the work before dinner.
The children were playing in the park all day.
He put the letter on the table and went away.
Please close the door when you leave the house.
The doctor told him to drink more water.
They walked along the river until it was dark.
I have never seen such a beautiful picture.
The market is open every day of the week.
Our teacher speaks three languages very well.
It was raining when we came home last night.
The old man told us a story about the sea.
You can find the answer at the end of the book.
The kitchen smells of fresh bread and coffee.
We are going to visit our friends on Sunday.
The bridge over the river was built long ago.
She wrote a long letter to her mother.
He bought a new car with the money he had saved.
The meeting will begin in a few minutes.
There is nothing better than a good night of sleep.
The dog was waiting for him at the gate.
I would like to know what happened yesterday.
The school is next to the library.
They have been living in this town for many years.
The film was much longer than I had expected.
Nobody knew where the key had been hidden.
The farmer has two horses and a white cow.
We could see the mountains from our room.
She is the best singer in the whole country.
He was late because the road was closed.
The sun was shining and the birds were singing.
My sister works in a hospital near the station.
All the shops are closed on holidays.
The weather will be better next week.
I lost my glasses somewhere in the office.
The water in the lake is very cold.
He asked me the same question again.
We were happy to hear the good news.
"""


class Event(ctypes.Structure):
    """`espeak_EVENT` of speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # ms
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


SynthCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(Event))


@dataclass(frozen=True)
class Said:
    audio: speech.Samples
    words: dict[int, float]  # position in the text -> seconds


class Espeak:
    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._rate: int = self._library.espeak_Initialize(SYNCHRONOUS, 0, None, 0)
        self._pieces: list[speech.Samples] = []
        self._words: dict[int, float] = {}
        self._callback = SynthCallback(self._on_samples)
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, voice: str, words_per_minute: int) -> Said:
        self._pieces, self._words = [], {}
        self._library.espeak_SetVoiceByName(voice.encode())
        self._library.espeak_SetParameter(RATE_PARAMETER, words_per_minute, 0)
        data = text.encode()
        self._library.espeak_Synth(data, len(data) + 1, 0, BY_CHARACTER, 0, UTF8, None, None)
        audio = speech.resampled(np.concatenate(self._pieces), speech.RATE, self._rate)
        heard = np.flatnonzero(np.abs(audio) > QUIET)
        margin = int(MARGIN * speech.RATE)
        first, last = max(0, heard[0] - margin), heard[-1] + margin
        return Said(
            audio[first:last], {at: max(0.0, seconds - first / speech.RATE) for at, seconds in self._words.items()}
        )

    def _on_samples(
        self, wave: "ctypes._Pointer[ctypes.c_short]", samples: int, events: "ctypes._Pointer[Event]"
    ) -> int:
        if wave and samples:
            self._pieces.append(np.ctypeslib.as_array(wave, (samples,)).copy())
        index = 0
        while events[index].type != END_OF_LIST:
            if events[index].type == WORD:
                self._words[events[index].text_position - 1] = events[index].audio_position / 1000
            index += 1
        return 0


def main() -> None:
    espeak = Espeak()
    pieces, lines, position = [speech.silence(GAP)], [], GAP
    for number, text in enumerate(SENTENCES.splitlines()):
        said = espeak.say(text, *VOICES[number % len(VOICES)])
        end = position + len(said.audio) / speech.RATE
        starts = " ".join(
            f"{position + said.words[word.start()]:.2f}" if word.start() in said.words else "-"
            for word in re.finditer(r"\S+", text)
        )
        lines.append(f"{position:.2f}\t{end:.2f}\t{text}\t{starts}\n")
        pieces += [said.audio, speech.silence(GAP)]
        position = end + GAP
    speech.encode(np.concatenate(pieces), speech.FOLDER / "made.ogg", "libopus", bit_rate=BIT_RATE)
    Path(speech.FOLDER / "made.tsv").write_text("".join(lines))


if __name__ == "__main__":
    main()
