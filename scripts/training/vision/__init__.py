"""How `emoji-vision` was made: the half of a small vision-language model that sees, trained from scratch on emoji.

    prepare → align → tune → export → evaluate

Each is a command (`python -m scripts.training.vision.prepare --help`) that reads what the one before left in one
working folder. The language half is the embedded SmolLM2-135M, as its GGUF file has it, and stays as it is. Nothing of
this is imported when the model is served.
"""

NAME = "emoji-vision"
LANGUAGE = "embedded:smollm2-135m-instruct"
EDGE = 64  # pixels
STYLES = ("google", "twitter")  # of drawing, as emoji-datasource calls them
