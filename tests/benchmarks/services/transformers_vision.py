"""transformers' own `generate` in bf16, greedy, on a question about each of some pictures. Arguments: GGUF file of the
language model, folder of what it sees with, threads.

Requests: {"images": PNG in base64 …, "question": text, "tokens": of each answer}. Answers: ids of each.
"""

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoConfig, Idefics3Config, Idefics3ForConditionalGeneration, Idefics3ImageProcessorPil

from models.files.gguf import GGUFFile
from models.tokenizer.tokenizer import from_gguf
from pipelines.messages.text import ImagePart, Message, TextPart
from pipelines.text.prompt.chat_template import ChatTemplate
from tests.benchmarks.services.loop import serve
from tests.benchmarks.services.transformers_generate import load


class TransformersVisionService:
    def __init__(self, language: Path, sees: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        config = json.loads((sees / "config.json").read_bytes())
        text = AutoConfig.from_pretrained(language.parent, gguf_file=language.name)
        described = Idefics3Config(
            text_config=text,
            vision_config=config["vision_config"],
            scale_factor=config["scale_factor"],
            image_token_id=config["image_token_id"],
        )
        model = Idefics3ForConditionalGeneration._from_config(described, dtype=torch.bfloat16)
        weights = load_file(sees / "model.safetensors")
        model.load_state_dict({name: weight.to(torch.bfloat16) for name, weight in weights.items()}, strict=False)
        whole = load(language)
        model.model.text_model.load_state_dict(whole.model.state_dict())
        model.lm_head.load_state_dict(whole.lm_head.state_dict())
        self._model = model.eval()
        self._model.generation_config.eos_token_id = None  # every answer has its full length
        settings = json.loads((sees / "preprocessor_config.json").read_bytes())
        self._processor = Idefics3ImageProcessorPil(
            **{key: value for key, value in settings.items() if key not in ("image_processor_type", "pad_to_square")}
        )
        self._config = config
        self._tokenizer = from_gguf(GGUFFile(language))
        template = (sees / "chat_template.jinja").read_text()
        self._template = ChatTemplate(template, self._tokenizer.special_tokens, self._tokenizer.controls, sees=True)

    def __call__(self, request: dict[str, Any]) -> list[list[int]]:
        pictures = [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in request["images"]]
        pixels = self._processor([[each] for each in pictures], return_tensors="pt")["pixel_values"]
        prompt = self._prompt(request["question"])
        ids = torch.tensor([prompt] * len(pictures))
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pixel_values=pixels.to(torch.bfloat16),
                max_new_tokens=request["tokens"],
                do_sample=False,
                pad_token_id=0,
            )
        answers: list[list[int]] = found[:, len(prompt) :].tolist()
        return answers

    def _prompt(self, question: str) -> list[int]:
        message = Message("user", [ImagePart(b""), TextPart(question)])
        rendered = self._template.render([message])
        config, rows = self._config, []
        for id in self._tokenizer.encode(rendered.text, add_special=False):
            if id != config["image_token_id"]:
                rows.append(id)
                continue
            edge = config["vision_config"]["image_size"] // config["vision_config"]["patch_size"]
            number = (edge // config["scale_factor"]) ** 2
            fake, whole = config["fake_image_token_id"], config["global_image_token_id"]
            rows += [fake, whole, *[id] * number, fake]
        return rows


if __name__ == "__main__":
    serve(TransformersVisionService(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
