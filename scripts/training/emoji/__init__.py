"""How `tiny-emoji-diffusion` was made: a small Stable Diffusion, trained from scratch on a few hundred emoji pictures.

    prepare → train_vae → train_unet → export → evaluate

Each is a command (`python -m scripts.training.emoji.prepare --help`) that reads what the one before left in one working
folder. Nothing of it is imported when the model is served.
"""

from pathlib import Path

import models.embedded

EMBEDDED = Path(models.embedded.__file__).parent  # where what was trained is served from
