"""What is refused, and what of a conversation becomes an image."""

import dataclasses

import pytest
from msgspec.structs import replace

from models.errors import ModelLoadError
from pipelines.base import InvalidRequest, Ticket
from pipelines.messages.text import ChatPrompt, ImagePart, Message, TextPart
from tests.pipelines.text.fakes import create_pipeline, request
from tests.pipelines.text.vision.seeing import Model, SeeingTokenizer, chat, picture

TICKET = Ticket("r", "interactive", 0.0)


def image(field: str, data: bytes = b"") -> ImagePart:
    return ImagePart(data or picture(1), field=field)


def refused(asked, pipeline=None, **options) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        (pipeline or Model().pipeline(**options)).prepare(TICKET, asked)
    return refusal.value


def test_a_model_that_sees_nothing_names_the_image():
    refusal = refused(chat("a", picture(1)), create_pipeline())
    assert refusal.param == "messages[0].content[1].image_url.url"
    assert "no images" in refusal.message


def test_what_is_no_picture_names_itself():
    refusal = refused(chat("a", picture(1), b"GIF89a and no more"))
    assert refusal.param == "messages[0].content[2].image_url.url"


def test_what_the_processor_can_not_take_names_itself():
    refusal = refused(chat("a", picture(1, 3, 3)))
    assert refusal.param == "messages[0].content[1].image_url.url"
    assert "too small" in refusal.message


def test_too_many_images():
    refusal = refused(chat(*[picture(1)] * 4), max_images=3)
    assert refusal.param == "messages[0].content[3].image_url.url"
    assert "3 images" in refusal.message
    Model().pipeline(max_images=3).prepare(TICKET, chat(*[picture(1)] * 3))


def test_too_many_pixels():
    refusal = refused(chat(picture(1, 12, 8)), max_image_pixels=95)
    assert "more than the 95" in refusal.message
    Model().pipeline(max_image_pixels=96).prepare(TICKET, chat(picture(1, 12, 8)))


def test_more_tokens_than_the_context_holds():
    refusal = refused(chat("a", picture(1, 64, 60), "b"))  # 15 lines of 16 rows and a separator
    assert (refusal.code, refusal.param) == ("context_length_exceeded", "messages")
    assert "its images take 255" in refusal.message
    refusal = refused(chat("a", *[picture(1, 24, 24)] * 8, "b"))
    assert "the first 6 of its images take 252" in refusal.message
    refusal = refused(chat("a", picture(1, 24, 24), "b", max_tokens=250))
    assert (refusal.code, refusal.param) == ("context_length_exceeded", "max_tokens")
    assert "42 of them of images" in refusal.message


def test_a_turn_without_a_place_for_images_is_named():
    prompt = ChatPrompt(
        [
            Message("user", [TextPart("see "), image("messages[0].content[1].image_url.url")]),
            Message("tool", [image("messages[1].content[0].image_url.url")], tool_call_id="x"),
        ]
    )
    refusal = refused(request(prompt))
    assert refusal.param == "messages[1].content[0].image_url.url"
    assert "'tool'" in refusal.message


def test_a_template_that_breaks_over_images_names_the_turn():
    template = (
        "{% for message in messages %}<user>{% if message.content is string %}{{ message.content }}"
        "{% elif message.role == 'system' %}{{ raise_exception('no') }}"
        "{% else %}{% for part in message.content %}{{ part.text or '<image>' }}{% endfor %}{% endif %}{% endfor %}"
    )
    prompt = ChatPrompt(
        [
            Message("system", [TextPart("a"), image("messages[0].content[1].image_url.url")]),
            Message("user", [image("messages[1].content[0].image_url.url")]),
        ]
    )
    refusal = refused(request(prompt), Model().pipeline(SeeingTokenizer(template)))
    assert refusal.param == "messages[0].content[1].image_url.url"


def test_a_processor_that_can_not_be_loaded():
    model = Model()

    def fail():
        raise ModelLoadError("there is no preprocessor_config.json")

    model.vision = dataclasses.replace(model.vision, load_processor=fail)
    refusal = refused(chat(picture(1)), model.pipeline())
    assert refusal.code == "model_unavailable"


def test_equal_pictures_of_a_request_are_prepared_once():
    model = Model()
    pipeline = model.pipeline()
    calls = []
    prepare = model.processor.prepare
    model.processor.prepare = lambda rgb, detail: calls.append(detail) or prepare(rgb, detail)
    low = replace(image("x"), detail="low")
    prompt = ChatPrompt([Message("user", [image("x"), image("y"), low])])
    (sequence,) = pipeline.prepare(TICKET, request(prompt))
    assert calls == ["auto", "low"]
    assert len(sequence.images.keys) == 2


def test_preparing_an_image_is_no_brief_thing():
    pipeline = Model().pipeline()
    assert not pipeline.brief(chat(picture(1)))
    assert pipeline.brief(chat("a"))
    assert pipeline.effort(chat(picture(1), picture(2))) > 2 * pipeline.effort(chat("a"))


def test_a_pipeline_says_that_it_takes_images():
    assert Model().pipeline().ready().images
    assert not create_pipeline().ready().images


def test_a_template_of_the_vision_half_goes_before_the_tokenizer_s():
    model = Model()
    model.vision = dataclasses.replace(model.vision, chat_template="{{ messages[0].content[0].type }}<image>!")
    (sequence,) = model.pipeline(SeeingTokenizer(None)).prepare(TICKET, chat(picture(1)))
    assert bytes(id for id in sequence.tokens if id < 256).replace(b"|", b"") == b"image!"


def test_what_stands_around_placeholders_is_tokenised_with_what_is_beside_it():
    model = Model()
    model.vision = dataclasses.replace(model.vision, around=("{", "}"))
    (sequence,) = model.pipeline().prepare(TICKET, chat("a<image>", picture(1)))
    assert bytes(id for id in sequence.tokens if id < 256).replace(b"|", b"") == b"user:a<image>{}.assistant:"
