"""`/v1/images` over the real image worker, on a tiny random checkpoint."""

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.config.settings import load_settings
from tests.integration.conftest import route, sample, wait_until
from tests.integration.image_gateway import opened, png
from tests.servers import Gateway, gateway_thread

URL, EDITS = "/v1/images/generations", "/v1/images/edits"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that diffusers looks for when it is first imported
        from tests.pipelines.image.checkpoints import stable_diffusion
    folder = tmp_path_factory.mktemp("images")
    file = folder / "gateway.toml"
    checkpoint = stable_diffusion(folder / "checkpoint")
    file.write_text(
        f'[server]\nport = 0\nspool_dir = "{folder}/spool"\n'
        f'[[models]]\nname = "tiny"\nsource = "{checkpoint}"\nthreads = 1\naliases = ["dall-e-3"]\n'
        "[models.image]\ndefault_steps = 3\nmax_batch = 4\nmax_pixels = 16384\n"
    )
    with gateway_thread(load_settings(file, {})) as running:
        yield running


@pytest.fixture(scope="module")
def http(studio: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=studio.url, timeout=60) as found:
        yield found


def drawn(http: httpx.Client, **fields: Any) -> list[Any]:
    answer = http.post(URL, json={"prompt": "a cat"} | fields)
    assert answer.status_code == 200, answer.text
    return [np.asarray(opened(image["b64_json"]), np.int16) for image in answer.json()["data"]]


def test_the_kind_and_the_pipeline_come_from_the_files(studio: Gateway) -> None:
    served = route(studio, "tiny")
    assert (served.kind, served.settings.pipeline) == ("image", "pipelines.image.pipeline:ImagePipeline")
    assert served.admission.total == 32


def test_a_seed_is_the_same_image_alone_and_among_others(http: httpx.Client) -> None:
    wanted: list[dict[str, Any]] = [
        {"seed": 5},
        {"seed": 6, "num_inference_steps": 7, "scheduler": "euler"},
        {"seed": 7, "guidance_scale": 1},
        {"seed": 8, "scheduler": "dpmpp_2m", "num_inference_steps": 5},
    ]
    alone = [drawn(http, **fields)[0] for fields in wanted]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda fields: drawn(http, **fields)[0], wanted))
    for one, other in zip(alone, together, strict=True):
        assert np.abs(one - other).max() <= 1
    first, second = drawn(http, seed=5, n=2)
    assert np.abs(first - alone[0]).max() <= 1
    assert np.abs(second - drawn(http, seed=6)[0]).max() <= 1
    assert np.abs(first - second).max() > 1


def test_by_a_name_of_openais_it_draws_the_nearest_size_and_says_which(http: httpx.Client) -> None:
    wanted = {"prompt": "a cat", "size": "1792x1024"}
    answer = http.post(URL, json={"model": "dall-e-3", **wanted}).json()
    assert answer["size"] == "168x96"
    assert opened(answer["data"][0]["b64_json"]).size == (168, 96)
    refused = http.post(URL, json={"model": "tiny", **wanted})
    assert refused.status_code == 400
    assert "the nearest is 168x96" in refused.json()["error"]["message"]


def test_a_stream_of_it(http: httpx.Client) -> None:
    body = {"prompt": "a cat", "stream": True, "partial_images": 2, "progress": True, "num_inference_steps": 6}
    text = http.post(URL, json=body).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data")]
    kinds = [event["type"].split(".")[1] for event in events]
    assert (kinds.count("progress"), kinds.count("partial_image"), kinds[-1]) == (6, 2, "completed")
    assert [event["step"] for event in events if "step" in event] == [1, 2, 3, 4, 5, 6]
    assert len({opened(event["b64_json"]).size for event in events if "b64_json" in event}) == 1
    assert events[-1]["usage"]["input_tokens"] > 0


def test_an_edit_of_it(http: httpx.Client) -> None:
    def edited(**fields: Any) -> Any:
        files = {"image": png((64, 64)), "mask": png((64, 64), (0, 0, 0, 0), "RGBA")}
        answer = http.post(EDITS, data={"prompt": "a cat", "seed": "3", "size": "64x64"} | fields, files=files)
        assert answer.status_code == 200, answer.text
        return np.asarray(opened(answer.json()["data"][0]["b64_json"]), np.int16)

    assert np.abs(edited() - edited()).max() == 0
    assert np.abs(edited(strength="0.9") - edited(strength="0.4")).max() > 1
    answer = http.post(EDITS, data={"prompt": "a cat"}, files={"image": b"no picture"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "image")


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"size": "65x64"}, "size", "nearest"),
        ({"size": "99999x99999"}, "size", "nearest"),
        ({"scheduler": "flow_match_euler"}, "scheduler", "scheduler"),
        ({"negative_prompt": "dogs", "guidance_scale": 1}, "negative_prompt", "no effect"),
        ({"num_inference_steps": 151}, "num_inference_steps", "150"),
    ],
)
def test_what_does_not_fit_the_model_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    answer = http.post(URL, json={"prompt": "a cat"} | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


def test_its_steps_are_measured_by_kind(http: httpx.Client) -> None:
    drawn(http, n=2)
    labels = {"model": "tiny", "pipeline": "image"}
    page = http.get("/metrics").text
    for kind in ("encode", "denoise", "decode"):
        assert sample(page, "gateway_step_seconds_count", kind=kind, **labels) >= 1
    assert sample(page, "gateway_image_steps_total", **labels) >= 6
    assert sample(page, "gateway_images_total", **labels) >= 2
    wait_until(lambda: sample(http.get("/metrics").text, "gateway_image_batch_rows", **labels) >= 1)
