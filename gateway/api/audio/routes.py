"""Speech in a file to text."""

from litestar import Controller
from litestar.di import NamedDependency

from gateway.api.answer import new_head
from gateway.api.audio.answer import (
    Answer,
    Transcription,
    TranscriptionAnswer,
    TranscriptionStream,
    VerboseTranscription,
)
from gateway.api.audio.request import Task, TranscriptionForm, parse_form, to_request
from gateway.api.request import HttpRequest, kind, terms, timeline
from gateway.endpoint import EVENTS, JSON, TEXT, Bodies, Endpoint, FormBody
from gateway.errors import bad_request
from gateway.http.endpoints import serves
from gateway.requests.dispatch import Dispatcher, Reply
from gateway.requests.exchange import Job
from gateway.uploads.multipart import Form, read_form
from gateway.uploads.spool import Spool

FORM = FormBody(TranscriptionForm, files=("file",))
ANSWERS: Bodies = {JSON: [Transcription, VerboseTranscription], TEXT: [str], EVENTS: [str]}


class AudioController(Controller):
    tags = ("audio",)

    @serves(
        Endpoint(
            method="POST",
            path="/v1/audio/transcriptions",
            kind="audio",
            line="speech to text",
            summary="Speech to text, in the language spoken",
            body=FORM,
            answers=ANSWERS,
        )
    )
    async def transcribe(
        self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher], spool: NamedDependency[Spool]
    ) -> Reply:
        return await _reply(request, dispatcher, spool, "transcribe")

    @serves(
        Endpoint(
            method="POST",
            path="/v1/audio/translations",
            kind="audio",
            line="speech to English text",
            summary="Speech to text, in English",
            body=FORM,
            answers=ANSWERS,
        )
    )
    async def translate(
        self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher], spool: NamedDependency[Spool]
    ) -> Reply:
        return await _reply(request, dispatcher, spool, "translate")


async def _reply(request: HttpRequest, dispatcher: Dispatcher, spool: Spool, task: Task) -> Reply:
    form = await read_form(request.headers.get("content-type", ""), request.stream(), spool, FORM.all_files)
    try:
        return _job(request, dispatcher, form, task)
    except BaseException:
        form.discard()
        raise


def _job(request: HttpRequest, dispatcher: Dispatcher, form: Form, task: Task) -> Reply:
    wanted = parse_form(form.fields)
    file = form.files.get("file")
    if file is None:
        raise bad_request("file", "'file' is required: the audio, as a file of the form.")
    if not file.size:
        raise bad_request("file", "'file' is empty.")
    route = dispatcher.route(wanted.model, kind(request))
    asked = terms(request, route.settings)
    answer: Answer
    if wanted.stream:
        answer = TranscriptionStream(segments=wanted.response_format == "verbose_json")
    else:
        answer = TranscriptionAnswer(wanted.response_format, task, wanted.timestamp_granularities)
    id = new_head("trans", route.name, route.fingerprint).id
    work = to_request(wanted, str(file.path.absolute()), task)
    job = Job(id, route, work, 1, asked, files=(file,))
    return dispatcher.reply(job, answer, timeline(request), answer.content_type)
