"""Does what is installed serve all of it: `python scripts/first_answers.py [--without image …]`.

Starts the `gateway` of this Python, without a configuration and from an empty folder, and asks every pipeline one
thing: after `pip install`, on another version of Python, on another platform. Exit status 1: something had no answer.
"""

import argparse
import asyncio
import base64
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
SPEECH, PICTURE = ROOT / "tests/data/speech/austen-0870.wav", ROOT / "docs/images/cat.png"
PATIENCE_S = 300  # for the models: the first start exports one of them
ANSWER_S = 120


def chat(url: str) -> str:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    said = _post(f"{url}/v1/chat/completions", {**body, "logprobs": True, "top_logprobs": 2, "temperature": 0})
    choice = said["choices"][0]
    assert choice["logprobs"]["content"], "no log-probabilities"
    return str(choice["message"]["content"])


def vision(url: str) -> str:
    picture = base64.b64encode(PICTURE.read_bytes()).decode()
    parts = [
        {"type": "text", "text": "What is in this picture?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
    ]
    body = {"model": "emoji-vision", "messages": [{"role": "user", "content": parts}], "temperature": 0}
    said = str(_post(f"{url}/v1/chat/completions", body)["choices"][0]["message"]["content"])
    assert "cat" in said, said
    return said


def transcription(url: str) -> str:
    edge = "first-answers-edge"
    fields = (
        f'--{edge}\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
        f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="speech.wav"\r\n\r\n'
    )
    body = fields.encode() + SPEECH.read_bytes() + f"\r\n--{edge}--\r\n".encode()
    said = _post(f"{url}/v1/audio/transcriptions", body, f"multipart/form-data; boundary={edge}")["text"]
    assert "John Dashwood" in said, said
    return str(said)


def live(url: str) -> str:
    return asyncio.run(_listen(url))


async def _listen(url: str) -> str:
    from websockets.asyncio.client import connect

    with wave.open(str(SPEECH)) as file:
        audio = file.readframes(file.getnframes())
    finals = []
    async with connect(f"{url.replace('http', 'ws', 1)}/v1/audio/stream?model=whisper-1") as socket:
        await socket.send(audio)
        await socket.send(json.dumps({"type": "end"}))
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "final":
                finals.append(event["text"])
    assert "Dashwood" in " ".join(finals), finals
    return " ".join(finals)


def embedding(url: str) -> str:
    vectors = _post(f"{url}/v1/embeddings", {"model": "all-minilm-l6-v2", "input": ["a cat", "a dog"]})["data"]
    near = sum(a * b for a, b in zip(vectors[0]["embedding"], vectors[1]["embedding"], strict=True))
    assert 0.5 < near < 1, near
    return f"cosine of a cat and a dog: {near:.3f}"


def rerank(url: str) -> str:
    body = {"model": "all-minilm-l6-v2", "query": "pets", "documents": ["a bridge", "a cat"]}
    first = _post(f"{url}/v1/rerank", body)["results"][0]
    assert first["index"] == 1, first
    return f"first: a cat, {first['relevance_score']:.3f}"


def image(url: str) -> str:
    body = {"model": "tiny-emoji-diffusion", "prompt": "a red apple", "response_format": "b64_json"}
    picture = _post(f"{url}/v1/images/generations", body)["data"][0]["b64_json"]
    assert picture.startswith("iVBOR"), picture[:20]
    return f"a PNG of {len(picture) * 3 // 4} bytes"


QUESTIONS: Mapping[str, Callable[[str], str]] = {
    "chat": chat,
    "vision": vision,
    "transcription": transcription,
    "live": live,
    "embedding": embedding,
    "rerank": rerank,
    "image": image,
}


def _post(url: str, body: object, kind: str = "application/json") -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode(errors='replace')[:500]}") from error


@contextmanager
def served(log: Path, *, command: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of a gateway that was started in an empty folder, once all its models are settled.

    `command` comes before it: a tracer. It is stopped by SIGTERM, and must then end with 0.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as output:
        serve = [*command, sys.executable, "-m", "gateway", "serve", "--port", str(port)]
        process = subprocess.Popen(
            serve, cwd=folder, env=None if environ is None else dict(environ), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _await_models(url, process, log)
            yield url
        finally:
            # A tracer keeps signals to itself: its only child is the gateway.
            traced = psutil.Process(process.pid).children() if command and process.poll() is None else []
            if process.poll() is None:
                os.kill(traced[0].pid if traced else process.pid, signal.SIGTERM)
            try:
                status = process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert status == 0, f"ended with {status}: {log.read_text(errors='replace')[-2000:]}"


def _await_models(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until each is ready or will never be."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(log.read_text(errors="replace")[-4000:])
        states = _states(url)
        if states and not states & {"loading", "stopped"}:
            return
        time.sleep(0.2)
    raise AssertionError(f"not loaded within {PATIENCE_S} s: {log.read_text(errors='replace')[-4000:]}")


def _states(url: str) -> set[str]:
    """Empty while nobody listens."""
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=5) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read()
    except OSError:
        return set()
    return {replica["state"] for model in json.loads(text)["models"] for replica in model["replicas"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", nargs="*", default=[], choices=[*QUESTIONS], help="not to be asked")
    without = parser.parse_args().without
    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}", flush=True)
    failed = False
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "log", environ=os.environ) as url:
        for name, ask in QUESTIONS.items():
            if name in without:
                continue
            try:
                print(f"{name}: {ask(url)}")
            except (AssertionError, OSError, KeyError, ImportError) as error:
                failed = True
                print(f"{name}: FAILED: {error}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
