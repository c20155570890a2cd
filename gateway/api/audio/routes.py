"""`/v1/audio/transcriptions` and `/v1/audio/translations`"""

from litestar import Controller, post
from litestar.di import NamedDependency

from gateway.api.answer import new_head
from gateway.api.audio.answer import Answer, TranscriptionAnswer, TranscriptionStream
from gateway.api.audio.request import Task, parse_form, to_request
from gateway.api.request import HttpRequest, terms, timeline
from gateway.errors import bad_request
from gateway.requests.dispatch import Dispatcher, Reply
from gateway.requests.exchange import Job
from gateway.uploads.multipart import Form, read_form
from gateway.uploads.spool import Spool


class AudioController(Controller):
    tags = ("audio",)

    @post("/v1/audio/transcriptions", status_code=200, summary="Speech to text, in the language spoken")
    async def transcribe(
        self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher], spool: NamedDependency[Spool]
    ) -> Reply:
        return await _reply(request, dispatcher, spool, "transcribe")

    @post("/v1/audio/translations", status_code=200, summary="Speech to text, in English")
    async def translate(
        self, request: HttpRequest, dispatcher: NamedDependency[Dispatcher], spool: NamedDependency[Spool]
    ) -> Reply:
        return await _reply(request, dispatcher, spool, "translate")


async def _reply(request: HttpRequest, dispatcher: Dispatcher, spool: Spool, task: Task) -> Reply:
    form = await read_form(request.headers.get("content-type", ""), request.stream(), spool, ("file",))
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
    route = dispatcher.route(wanted.model, "audio")
    asked = terms(request, route.settings)
    answer: Answer
    if wanted.stream:
        answer = TranscriptionStream(segments=wanted.response_format == "verbose_json")
    else:
        answer = TranscriptionAnswer(wanted.response_format, task, wanted.timestamp_granularities)
    id = new_head("trans", route.name, route.fingerprint).id
    work = to_request(wanted, str(file.path.absolute()), task)
    job = Job(id, route, work, 1, asked.timeout, priority=asked.priority, files=(file,), tenant=asked.tenant)
    return dispatcher.reply(job, answer, timeline(request), answer.content_type)
