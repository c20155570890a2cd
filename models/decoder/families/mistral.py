"""Mistral. Its GGUF files say that they are Llama's."""

from models.decoder.families import windows
from models.decoder.families.family import Family, HFForm

MISTRAL = Family("mistral", hf=(HFForm("MistralForCausalLM", "mistral"),), slides=windows.all_with_one)
