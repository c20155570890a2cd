"""Whisper in CTranslate2's form: files -> encode, generate, detect the language, align.

Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", https://arxiv.org/abs/2212.04356.
The tokenizer's rules (special tokens, suppressed symbols, words) are faster-whisper's.

Transcripts are decoded with time tokens: the model learned to go on after a pause by them, and without them ends there.
They come in pairs where a segment ends and the next begins, and never go back; the library sees to it.
"""

import json
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import ctranslate2
import numpy as np
import numpy.typing as npt
import tokenizers
from faster_whisper.tokenizer import Tokenizer

from models.errors import ModelLoadError
from models.whisper.languages import LANGUAGES

Task = Literal["transcribe", "translate"]
Floats = npt.NDArray[np.float32]

MAX_TOKENS = 448  # positions of the text decoder (n_text_ctx)
MAX_NEW_TOKENS = MAX_TOKENS // 2  # time tokens and a forced prefix included
MAX_CONTEXT_TOKENS = MAX_TOKENS // 2 - 1  # of previous text
ENCODER_STRIDE = 2  # mel frames in one position of the encoder's output
SECONDS_PER_POSITION = 0.02  # and between two time tokens
MAX_INITIAL_TIME = 50  # positions: a window's first segment begins in its first second
SMALL_BYTES = 256 * 2**20  # of weights: tiny and base, for which a second thread on a window brings nothing
MEDIAN_FILTER = 7  # positions, over the cross-attention weights that words are aligned by


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """What the decoder says of one window."""

    tokens: tuple[int, ...]  # of text alone, those of a forced prefix included
    text: str
    avg_logprob: float
    no_speech_prob: float
    temperature: float
    timed: tuple[int, ...] = ()  # all tokens, those of time too
    seek: "Seek | None" = None  # where to go on, if something is left; None: there is but one segment, without an end

    @property
    def compression_ratio(self) -> float:
        """UTF-8 bytes over zlib's: text that repeats itself compresses well."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data)) if data else 0.0


@dataclass(frozen=True, slots=True)
class Seek:
    """The end of the last whole segment. Where another was to follow, that was not said, or not to its end."""

    tokens: int  # of text before it
    seconds: float  # of the window
    last: bool = False  # none was to follow: the model takes this for all there is


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word as written, with its leading space and punctuation. Times are seconds from the start of the window."""

    text: str
    tokens: tuple[int, ...]
    start: float
    end: float
    probability: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """A window and its transcript. `seconds`: how much of the window is audio."""

    encoded: Floats  # [frames / 2, d_model]
    tokens: tuple[int, ...]
    language: str
    task: Task
    seconds: float


class Whisper:
    """One model. Every method takes a batch; nothing is kept between calls.

    `workers`: parts that a batch is run in side by side, each on threads of its own.
    """

    def __init__(
        self, model: "ctranslate2.models.Whisper", tokenizer: tokenizers.Tokenizer, n_mels: int, workers: int
    ) -> None:
        self._model = model
        self._workers = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="whisper")
        self._tokenizer = tokenizer
        self._plain = _without_control_tokens(tokenizer)
        self.n_mels = n_mels
        self.multilingual: bool = model.is_multilingual
        self.languages: tuple[str, ...] = _languages(tokenizer) if self.multilingual else ("en",)
        self._on_cpu = model.device == "cpu"
        base = self.vocabulary("en", "transcribe")
        self.start_of_previous: int = base.sot_prev
        self._end_of_text: int = base.eot  # text has lower ids, all control tokens higher ones
        self._time_zero: int = base.timestamp_begin
        self._suppressed = sorted(
            {
                *base.non_speech_tokens,
                base.transcribe,
                base.translate,
                base.sot,
                base.sot_prev,
                base.sot_lm,
                base.no_speech,
            }
        )

    @property
    def details(self) -> dict[str, str]:
        """For people."""
        return {
            "device": str(self._model.device),
            "compute_type": str(self._model.compute_type),
            "languages": str(len(self.languages)),
            "workers": str(self._workers),
        }

    # --- text ---------------------------------------------------------------------------------------------------------

    def vocabulary(self, language: str, task: Task) -> Tokenizer:
        """The tokenizer of one language and task."""
        return Tokenizer(self._tokenizer, self.multilingual, task=task, language=language)

    def start(self, language: str, task: Task) -> list[int]:
        """The tokens that a transcript starts after."""
        return list(self.vocabulary(language, task).sot_sequence)

    def encode_text(self, text: str) -> list[int]:
        """Tokens of text alone: what is written like a control token is text, too."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Control tokens say nothing."""
        text: str = self._tokenizer.decode([token for token in tokens if token < self._end_of_text])
        return text

    def beginning(self, hypothesis: Hypothesis, count: int) -> tuple[int, ...]:
        """Its first `count` tokens of text, with the time tokens before and between them."""
        seen = 0
        for index, token in enumerate(hypothesis.timed):
            if seen == count:
                return hypothesis.timed[:index] if count else ()
            seen += token < self._end_of_text
        return hypothesis.timed

    def words(self, tokens: Sequence[int], language: str) -> list[tuple[str, tuple[int, ...]]]:
        """(word, its tokens), words as written with their leading space; punctuation stands alone."""
        vocabulary = self.vocabulary(language, "transcribe")
        texts, groups = vocabulary.split_to_word_tokens(list(tokens))
        return [(text, tuple(group)) for text, group in zip(texts, groups, strict=True)]

    # --- the model ----------------------------------------------------------------------------------------------------

    def encode(self, mels: Sequence[Floats]) -> list[Floats]:
        """[n_mels, frames] each, all of one even number of frames <= 3000 -> [frames / 2, d_model] each.

        One by one on a CPU: a batch costs more there than its windows alone, its activations leave the caches.
        """
        if self._on_cpu:
            return list(self._pool.map(self._encode, mels))
        return list(np.array(self._model.encode(_storage(np.stack(mels)), to_cpu=True)))

    def _encode(self, mel: Floats) -> Floats:
        encoded: Floats = np.array(self._model.encode(_storage(mel[None]), to_cpu=True))[0]
        return encoded

    def detect_language(self, encoded: Sequence[Floats]) -> list[dict[str, float]]:
        """Probabilities by language code, for each window. Only for multilingual models."""
        results = self._model.detect_language(_storage(np.stack(encoded)))
        return [{token[2:-2]: float(probability) for token, probability in result} for result in results]

    def generate(
        self,
        encoded: Sequence[Floats],
        prompts: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        *,
        beam_size: int,
        temperature: float,
        best_of: int,
    ) -> list[Hypothesis]:
        """The best transcript of each window.

        `encoded` are of one shape. `prompts` end with the start of the transcript and are all of one length (the
        library asks for it); `prefixes` are tokens that each transcript is made to begin with, of `beginning`. At a
        temperature above 0 the best of `best_of` samples is taken, else a beam search's.
        """
        sampling = (
            {"beam_size": 1, "num_hypotheses": best_of, "sampling_topk": 0, "sampling_temperature": temperature}
            if temperature > 0
            else {"beam_size": beam_size}
        )
        starts = [[*prompt, *prefix] for prompt, prefix in zip(prompts, prefixes, strict=True)]

        def part(rows: slice) -> list[Hypothesis]:
            results = self._model.generate(
                _storage(np.stack(encoded[rows])),
                starts[rows],
                max_length=MAX_TOKENS,  # of which the library takes half for what is new
                max_initial_timestamp_index=MAX_INITIAL_TIME,
                suppress_tokens=self._suppressed,
                return_scores=True,
                return_no_speech_prob=True,
                **sampling,
            )
            return [self._hypothesis(result, temperature) for result in results]

        size = -(-len(starts) // self._workers)
        parts = [slice(first, first + size) for first in range(0, len(starts), size)]
        return list(chain.from_iterable(self._pool.map(part, parts)))

    def align(self, spoken: Sequence[Spoken]) -> list[list[AlignedWord]]:
        """When each word of each transcript was said, by the decoder's attention to the audio.

        Words come in order and do not overlap; none ends after its audio.
        """
        return list(self._pool.map(self._align, spoken))

    def _align(self, spoken: Spoken) -> list[AlignedWord]:
        if not spoken.tokens:
            return []
        encoded, seconds = spoken.encoded, spoken.seconds
        frames = max(2, min(round(seconds * 100), encoded.shape[0] * ENCODER_STRIDE))  # the library fails below two
        result = self._model.align(
            _storage(encoded[None]),
            self.start(spoken.language, spoken.task),
            [list(spoken.tokens)],
            frames,
            median_filter_width=MEDIAN_FILTER,
        )[0]
        text_steps, positions = np.array(result.alignments, dtype=np.int64).reshape(-1, 2).T
        first = np.concatenate(([True], np.diff(text_steps) > 0))
        times = positions[first] * SECONDS_PER_POSITION  # of each token, and of the end of text after them
        words: list[AlignedWord] = []
        begin, earliest = 0, 0.0
        for text, group in self.words(spoken.tokens, spoken.language):
            end = begin + len(group)
            start_time = min(max(float(times[min(begin, len(times) - 1)]), earliest), seconds)
            end_time = min(max(float(times[min(end, len(times) - 1)]), start_time), seconds)
            probability = float(np.mean(result.text_token_probs[begin:end] or [0.0]))
            words.append(AlignedWord(text, group, start_time, end_time, probability))
            begin, earliest = end, end_time
        return words

    def _hypothesis(self, result: "ctranslate2.models.WhisperGenerationResult", temperature: float) -> Hypothesis:
        tokens, end = result.sequences_ids[0], self._end_of_text
        # The score is the mean over the tokens; the end of the text counts too (as in the paper's own code).
        average = result.scores[0] * len(tokens) / (len(tokens) + 1)
        text = tuple(token for token in tokens if token < end)
        seek = seek_of(tokens, end, self._time_zero)
        return Hypothesis(
            text, self.decode_text(text), average, result.no_speech_prob, temperature, tuple(tokens), seek
        )


def load_whisper(path: Path, *, device: str = "cpu", compute_type: str | None = None, threads: int = 1) -> Whisper:
    """Load a CTranslate2 folder (model.bin, config.json, tokenizer.json). Raises ModelLoadError.

    `threads` of a CPU each run windows of their own where the model is small: threads that share one have to wait for
    each other hundreds of times a window, and for whatever else runs on their cores. The weights are shared.
    """
    if not (path / "model.bin").is_file():
        raise ModelLoadError(
            f"{path} is no CTranslate2 model: it has no model.bin (ct2-transformers-converter makes one)"
        )
    if not (path / "tokenizer.json").is_file():
        raise ModelLoadError(f"{path} has no tokenizer.json; convert the model with --copy_files tokenizer.json")
    name, _, index = device.partition(":")
    workers = threads if name == "cpu" and (path / "model.bin").stat().st_size <= SMALL_BYTES else 1
    try:
        model = ctranslate2.models.Whisper(
            str(path),
            device=name,
            device_index=int(index or 0),
            compute_type=compute_type or "default",
            intra_threads=threads // workers,
            inter_threads=workers,
        )
    except (RuntimeError, ValueError) as error:
        raise ModelLoadError(f"{path} can't be loaded as a Whisper model: {error}") from error
    return Whisper(model, tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")), _mel_bands(path), workers)


def _mel_bands(path: Path) -> int:
    """80, but for large-v3 and its kin, which say so."""
    config = path / "preprocessor_config.json"
    if not config.is_file():
        return 80
    try:
        return int(json.loads(config.read_bytes())["feature_size"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{config} has no feature_size") from error


def _languages(tokenizer: tokenizers.Tokenizer) -> tuple[str, ...]:
    return tuple(code for code in LANGUAGES if tokenizer.token_to_id(f"<|{code}|>") is not None)


def seek_of(tokens: Sequence[int], end_of_text: int, time_zero: int) -> Seek | None:
    """From text and time tokens. A segment ends with a time, and where the next begins there are two in a row."""
    timed = [token >= time_zero for token in tokens]
    borders = [index for index in range(1, len(tokens)) if timed[index - 1] and timed[index]]
    last = timed[-2:] == [False, True]
    if not borders and not last:
        return None
    end = len(tokens) - 1 if last else borders[-1]
    text = sum(token < end_of_text for token in tokens[:end])
    return Seek(text, (tokens[end] - time_zero) * SECONDS_PER_POSITION, last)


def _without_control_tokens(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Byte pairs alone: a text that spells a control token is no control token."""
    description = json.loads(tokenizer.to_str())
    return tokenizers.Tokenizer.from_str(json.dumps({**description, "added_tokens": []}))


def _storage(array: Floats) -> "ctranslate2.StorageView":
    return ctranslate2.StorageView.from_array(np.ascontiguousarray(array, dtype=np.float32))
