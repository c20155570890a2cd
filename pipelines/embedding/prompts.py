"""What is put before a text by its kind: a search's query, a document that it may find, what is to be classified."""

from models.embedder.embedder_config import EmbedderConfig

# Words of checkpoints and of clients for the two ends of a search. The first ones are sentence-transformers'.
QUERY = ("query", "search_query", "retrieval.query", "retrieval_query")
DOCUMENT = ("document", "passage", "corpus", "search_document", "retrieval.passage", "retrieval_document")


class UnknownKind(ValueError):
    """The model has no prompt for texts of the kind; the message says which it has."""


def prompt_of(config: EmbedderConfig, kind: str | None) -> str:
    """What comes before a text of a kind; None: where none is told. Raises UnknownKind."""
    if kind is None:
        return config.prompt
    prompts = config.prompts
    names = [kind]
    for search in (QUERY, DOCUMENT):
        if kind.lower() in search:
            names += search
    lowered = {name.lower(): prompt for name, prompt in prompts.items()}
    for name in names:
        if name in prompts:
            return prompts[name]
        if name.lower() in lowered:
            return lowered[name.lower()]
    # A model that tells the two ends of a search apart may do so with one prompt.
    if len(names) > 1 and any(name in lowered for name in (*QUERY, *DOCUMENT)):
        return config.prompt
    if not prompts:
        raise UnknownKind("this model embeds all texts alike, whatever they are for; leave it out")
    raise UnknownKind(f"this model knows {', '.join(map(repr, prompts))}")


def search_prompts(config: EmbedderConfig) -> tuple[str, str]:
    """What comes before a query, and before the documents that are compared with it."""
    return _or_default(config, QUERY[0]), _or_default(config, DOCUMENT[0])


def _or_default(config: EmbedderConfig, kind: str) -> str:
    try:
        return prompt_of(config, kind)
    except UnknownKind:
        return config.prompt
