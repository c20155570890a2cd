"""From drawn tokens to events: what a choice says, what ends it, what its request has used."""

from collections.abc import Sequence as Rows

from pipelines.messages.frames import Done, Event, Timing, Usage
from pipelines.messages.text import ChoiceDone, Delta, FinishReason
from pipelines.text.prompt.vocabulary import Vocabulary
from pipelines.text.sample.sampler import Choice, RowLogprobs
from pipelines.text.sequence import Group, Sequence


class Postprocessor:
    """What a token means.

    A choice ends with `stop` at the model's EOS, at one of its own stop ids or at a stop string, none of which is
    part of the text; else with `length`. Each generated token is a completion token, the one that ended the choice
    too. The first `min_tokens` take no part in stop strings, as EOS and stop ids can't be drawn for them, and neither
    does what follows a text that may not end yet.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def score(self, sequence: Sequence, start: int, rows: Rows[RowLogprobs]) -> None:
        """Log-probabilities of the prompt's tokens from `start` on; after a preemption the first of them come again."""
        entries = sequence.prompt_logprobs
        assert entries is not None
        for position, row in enumerate(rows, start):
            if position == len(entries):
                entries.append(self._vocabulary.logprob(sequence.tokens[position], row))

    def advance(self, sequence: Sequence, choice: Choice | FinishReason, now: float) -> tuple[list[Event], bool]:
        """Append what was drawn for the sequence, or end it without a token. Its events, and whether it has ended."""
        group = sequence.group
        id, index, at = group.ticket.id, sequence.index, now - group.ticket.received
        events: list[Event] = []
        if group.echo and sequence.num_output == 0:
            events.append(Delta(id, index, sequence.prompt_text, 0, at, sequence.prompt_logprobs or []))
        if isinstance(choice, str):
            rest = sequence.output.finish()
            events += [Delta(id, index, rest.text, 0, at, rest.logprobs)] if any(rest) else []
            events.append(ChoiceDone(id, index, choice))
        else:
            if group.first_token is None:
                group.first_token = now
            group.last_token = now
            group.completion_tokens += 1
            may_end = sequence.rules.may_end
            sequence.append(choice.token)
            events.extend(self._say(sequence, choice, at, may_end))
        ended = isinstance(events[-1], ChoiceDone)
        if ended:
            group.unfinished -= 1
            if group.unfinished == 0:
                events.append(_done(group, now))
        return events, ended

    def _say(
        self, sequence: Sequence, choice: Choice, at: float, may_end: bool
    ) -> tuple[Delta] | tuple[Delta, ChoiceDone]:
        """`may_end`: whether the text before the token may be all."""
        params, output, token = sequence.params, sequence.output, choice.token
        id, index = sequence.ticket.id, sequence.index
        entry = self._vocabulary.logprob(token, choice.logprobs) if choice.logprobs is not None else None
        reason: FinishReason | None = None
        stop: str | int | None = None
        if may_end and token in params.stop_ids:
            # Like a stop string, it takes its entry with it.
            reason, stop = "stop", token
            text, logprobs = output.finish()
        elif token in params.eos_ids:
            reason = "stop"
            text, logprobs = output.finish(entry)
        else:
            data = self._vocabulary.bytes_of(token)
            text, logprobs = output.push(data, entry, match=may_end and sequence.num_output > params.min_tokens)
            if output.stop is not None:
                reason, stop = "stop", output.stop
            elif sequence.num_output >= params.max_tokens:
                reason = "length"
                rest, entries = output.finish()
                text, logprobs = text + rest, logprobs + entries
        delta = Delta(id, index, text, 1, at, logprobs)
        return (delta,) if reason is None else (delta, ChoiceDone(id, index, reason, stop))


def _done(group: Group, now: float) -> Done:
    received, prepared = group.ticket.received, group.prepared
    encoded = prepared if group.encoded is None else group.encoded
    first_step = now if group.first_step is None else group.first_step
    first_token = now if group.first_token is None else group.first_token
    last_token = first_token if group.last_token is None else group.last_token
    return Done(
        group.ticket.id,
        Usage(
            group.prompt_tokens,
            group.completion_tokens,
            group.cached_tokens,
            group.drafted,
            group.accepted,
            group.proposer if group.drafted else None,
        ),
        Timing(
            prepare=prepared - received,
            queue=first_step - encoded,
            compute=now - first_step,
            total=now - received,
            prefill=first_token - first_step,
            decode=last_token - first_token,
            encode=encoded - prepared,
        ),
    )
