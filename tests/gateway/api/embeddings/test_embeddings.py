"""`/v1/embeddings` on the wire, over a worker whose answers the test speaks."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import pytest

from gateway.api.embeddings.answer import decimals
from gateway.api.texts import MAX_UNITS
from pipelines.messages.embedding import EmbeddingRequest, ImageBytes
from pipelines.messages.text import StringPrompt, TokenPrompt
from tests.gateway.api.embeddings.scripted_embedding import answered, opened, vector
from tests.gateway.scripted import ScriptedBackend, ScriptedCall
from tests.gateway.scripted_app import AppHost, ScriptedApp

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMBEDDINGS, RERANK = "/v1/embeddings", "/v1/rerank"


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n....").decode()


async def embed(it: ScriptedApp, input: Any, **fields: Any) -> Any:
    return await it.client.post(EMBEDDINGS, json={"model": "scripted", "input": input, **fields})


async def test_an_answer_in_the_order_of_the_inputs(it: ScriptedApp) -> None:
    answer = await embed(it, ["a", "b", "c"])
    body = answer.json()
    assert (body["object"], body["model"]) == ("list", "scripted")
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    assert {item["object"] for item in body["data"]} == {"embedding"}
    for index, item in enumerate(body["data"]):
        np.testing.assert_array_equal(np.float32(item["embedding"]), vector(index))
    assert "x-gateway-timing" in answer.headers
    assert it.registry.outcomes == ["stop"]
    assert it.registry.closed[0].finished


async def test_base64_is_little_endian_float32(it: ScriptedApp) -> None:
    body = (await embed(it, ["a", "b"], encoding_format="base64")).json()
    for index, item in enumerate(body["data"]):
        raw = base64.b64decode(item["embedding"], validate=True)
        assert len(raw) == 4 * len(vector(index)), "all dimensions, not a quarter of them"
        np.testing.assert_array_equal(np.frombuffer(raw, "<f4"), vector(index))


async def test_numbers_in_json_are_those_of_base64() -> None:
    """Of every size that float32 has, to the last bit."""
    bits = np.random.default_rng(4).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    numbers = np.append(bits[np.isfinite(bits)], [0.0, 1e-45, 1.1754944e-38, 0.1, -0.3, 1.0]).astype(np.float32)
    told = json.loads(json.dumps(decimals(numbers).tolist()))
    np.testing.assert_array_equal(np.float32(told), numbers)
    assert max(len(f"{each:g}") for each in decimals(np.float32([0.1, -0.0123456789])).tolist()) <= 12


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"input_type": "query"}, {"kind": "query"}),
        ({"task": "retrieval.passage"}, {"kind": "retrieval.passage", "names": {"input_type": "task"}}),
        ({"input_type": "query", "task": "query"}, {"kind": "query"}),
        ({"truncate": "END"}, {"truncate": "end"}),
        ({"truncation": True}, {"truncate": "end", "names": {"truncate": "truncation"}}),
        ({"truncation": True, "truncate": "start"}, {"truncate": "start"}),
        ({"truncation": False}, {"names": {"truncate": "truncation"}}),
        ({"truncate_prompt_tokens": 7}, {"truncate": "end", "max_tokens": 7}),
        ({"truncate_prompt_tokens": 7, "truncate": "start"}, {"truncate": "start", "max_tokens": 7}),
        ({"truncate_prompt_tokens": -1}, {"truncate": "end"}),
        (
            {"output_dimension": 2, "output_dtype": "float"},
            {"dimensions": 2, "names": {"dimensions": "output_dimension"}},
        ),
        # voyageai 0.3.7 by itself
        (
            {"input_type": None, "truncation": True, "output_dtype": None, "output_dimension": None},
            {"truncate": "end", "names": {"truncate": "truncation"}},
        ),
    ],
)
async def test_what_other_apis_call_it(it: ScriptedApp, fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert (await embed(it, "a", **fields)).status_code == 200
    assert opened(it) == EmbeddingRequest(inputs=[StringPrompt("a")], **wanted)


@pytest.mark.parametrize(
    ("input", "inputs"),
    [
        ("text", [StringPrompt("text")]),
        (["one", "two"], [StringPrompt("one"), StringPrompt("two")]),
        ([100, 201], [TokenPrompt([100, 201])]),
        ([[1, 2], [3]], [TokenPrompt([1, 2]), TokenPrompt([3])]),
        (["one", [1, 2], {"text": "three"}], [StringPrompt("one"), TokenPrompt([1, 2]), StringPrompt("three")]),
        ([" ", "\n\n"], [StringPrompt(" "), StringPrompt("\n\n")]),  # one rule for whitespace, alone or not
        (" ", [StringPrompt(" ")]),
        ([{"image": f"data:image/png;base64,{PNG}"}], [ImageBytes(base64.b64decode(PNG))]),
        ([{"image": f"data:image/png;base64,{PNG.rstrip('=')}"}], [ImageBytes(base64.b64decode(PNG))]),
        ([{"image": f"DATA:image/png;name=a;base64,{PNG}"}], [ImageBytes(base64.b64decode(PNG))]),
    ],
)
async def test_forms_of_input(it: ScriptedApp, input: Any, inputs: list[Any]) -> None:
    answer = await embed(it, input, truncate="start", dimensions=2)
    assert answer.status_code == 200, answer.text
    assert opened(it) == EmbeddingRequest(inputs=inputs, truncate="start", dimensions=2)


async def test_an_image_for_a_model_that_embeds_text_alone(server: AppHost) -> None:
    it = server.app(ScriptedBackend(answer=answered), kind="embedding")
    error = (await embed(it, ["a", {"image": f"data:image/png;base64,{PNG}"}])).json()["error"]
    assert (error["param"], error["code"]) == ("input[1]", "unsupported_content")
    assert it.backend.calls == []


async def test_null_is_absence_and_user_has_no_effect(it: ScriptedApp) -> None:
    await embed(it, "a", encoding_format=None, dimensions=None, truncate=None, user={"any": "thing"})
    assert opened(it) == EmbeddingRequest(inputs=[StringPrompt("a")])


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([], "input"),
        ("", "input"),
        ([""], "input[0]"),
        (["a", ""], "input[1]"),
        ([[]], "input[0]"),
        ([[1], []], "input[1]"),
        (["a", "b\0c"], "input[1]"),
        (["a", 3], "input[1]"),
        ([3, "a"], "input[1]"),
        ([3, [4]], "input[1]"),
        ([True], "input[0]"),
        ([-1], "input[0]"),
        ([[1, 2.5]], "input[0][1]"),
        ([None], "input[0]"),
        (None, "input"),
        (7, "input"),
        ([{}], "input[0]"),
        ([{"text": "a", "image": "data:image/png;base64,AA"}], "input[0]"),
        (["a", {"text": ""}], "input[1].text"),
        ([{"txt": "a"}], "input[0].txt"),
        ([{"image": "https://example.org/a.png"}], "input[0].image"),
        ([{"image": "data:text/plain;base64,AAAA"}], "input[0].image"),
        ([{"image": "data:image/png,AAAA"}], "input[0].image"),
        ([{"image": "data:image/png;base64,A*=="}], "input[0].image"),
        ([{"image": "data:image/png;base64,A"}], "input[0].image"),
        ([{"image": "data:image/png;base64,"}], "input[0].image"),
        (["x"] * 2049, "input"),
    ],
)
async def test_a_bad_input_is_named(it: ScriptedApp, input: Any, param: str) -> None:
    answer = await embed(it, input)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert it.backend.calls == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"truncate": "middle"}, "truncate"),
        ({"truncate": True}, "truncate"),
        ({"normalize": False}, "normalize"),
        ({"truncate": "end", "truncation": False}, "truncation"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input_type": "query", "task": "document"}, "task"),
        ({"input_type": ""}, "input_type"),
        ({"dimensions": 3, "output_dimension": 4}, "output_dimension"),
        ({"output_dtype": "int8"}, "output_dtype"),
    ],
)
async def test_a_bad_field_is_named(it: ScriptedApp, fields: dict[str, Any], param: str) -> None:
    answer = await embed(it, "a", **fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("text", ["\\ud800", "a\\udfffb"])
async def test_half_of_a_surrogate_pair_is_named(it: ScriptedApp, text: str) -> None:
    body = f'{{"model": "scripted", "input": ["fine", "{text}"]}}'
    answer = await it.client.post(EMBEDDINGS, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[1]")
    body = f'{{"model": "scripted", "query": "q", "documents": ["a", {{"text": "{text}"}}]}}'
    answer = await it.client.post(RERANK, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "documents[1].text")


async def test_a_whole_surrogate_pair_is_a_character(it: ScriptedApp) -> None:
    answer = await it.client.post(EMBEDDINGS, content='{"model": "scripted", "input": "\\ud83e\\udd8a"}')
    assert answer.status_code == 200
    assert opened(it).inputs == [StringPrompt("🦊")]


async def test_json_that_is_broken_otherwise_says_so(it: ScriptedApp) -> None:
    answer = await it.client.post(EMBEDDINGS, content='{"model": "scripted", "input": ["a"')
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_large_request_leaves_room_for_others(it: ScriptedApp) -> None:
    """2,048 inputs hold as many slots as the pipeline has in and right behind a batch, not all there are."""
    it.backend.answer = None
    answers = [embed(it, ["x"] * 2048), embed(it, "small")]
    pending = [asyncio.ensure_future(answer) for answer in answers]
    large = await it.backend.opened(1)
    small = await it.backend.opened(2)
    assert it.admission.state() == (1024, MAX_UNITS + 1, 0)
    for call in (large, small):
        answered(call)
    assert [len((await each).json()["data"]) for each in pending] == [2048, 1]


async def test_numbers_are_never_null(it: ScriptedApp) -> None:
    def broken(call: ScriptedCall) -> None:
        call.fail("invalid_output", "The model's result for input 0 is not a finite number; nothing is returned.")

    it.backend.answer = broken
    answer = await embed(it, "a")
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_output", "server_error")
    assert "not a finite number" in error["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_over_long_texts_are_the_callers_fault(it: ScriptedApp) -> None:
    def refuse(call: ScriptedCall) -> None:
        call.fail("context_length_exceeded", "'input[1]' has 300 tokens", "input[1]")

    it.backend.answer = refuse
    answer = await embed(it, ["a", "b"])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "input[1]"


async def test_a_model_of_another_kind_is_no_embedding_model(server: AppHost) -> None:
    it = server.app(ScriptedBackend(answer=answered))
    for path, body in ((EMBEDDINGS, {"input": "a"}), (RERANK, {"query": "a", "documents": ["b"]})):
        answer = await it.client.post(path, json={"model": "scripted", **body})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


async def test_a_body_over_the_limit_says_so_in_json(it: ScriptedApp) -> None:
    """32 texts of 80 kB are fine; more than the documented limit is a 413 that states it."""
    assert (await embed(it, ["x" * 80_000] * 32)).status_code == 200
    limit = it.gateway.settings.server.max_body_bytes
    reader, writer = await asyncio.open_connection(*it.gateway.address)
    head = f"POST {EMBEDDINGS} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {limit + 1}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], str(limit) in error["message"]) == ("payload_too_large", True)


async def test_both_are_described(it: ScriptedApp) -> None:
    schema = json.loads((await it.client.get("/schema/openapi.json")).text)
    wanted: dict[str, list[str]] = {EMBEDDINGS: ["EmbeddingsRequest"]}
    wanted |= {path: ["RerankBody", "TextsBody"] for path in ("/v1/rerank", "/v2/rerank", "/rerank")}
    for path, structs in wanted.items():
        body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body.get("anyOf", [body]) == [{"$ref": f"#/components/schemas/{struct}"} for struct in structs]
        assert all("model" in schema["components"]["schemas"][struct]["properties"] for struct in structs)
    assert "return_text" in (await it.client.get("/schema")).text
