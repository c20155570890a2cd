import numpy as np
import pytest

from models.vision.image import EncodedImage, PreparedImage
from models.vision.vision import PlacedImage
from pipelines.text.vision.prompt_images import PromptImages


def placed(start: int, tokens: str, identity: int = 0) -> PlacedImage:
    """`tokens`: x where the tower gives a row."""
    rows = np.array([place for place, token in enumerate(tokens) if token == "x"])
    image = PreparedImage({}, tuple(range(len(tokens))), rows, None, bytes([identity]) * 16, 1)
    return PlacedImage(start, image)


def encoded(count: int, layers: int = 0) -> EncodedImage:
    rows = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return EncodedImage(rows, np.stack([rows + 100] * layers) if layers else None)


@pytest.mark.parametrize("start", range(12))
@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_a_chunk_has_the_rows_that_stand_in_it(start, length):
    images = PromptImages([placed(2, "|xx|xxx|"), placed(12, "xx", 1), placed(15, "|xx|xxx|")], "", bidirectional=False)
    for key, count in zip(images.keys, (5, 2), strict=True):
        images.put(key, encoded(count, layers=2))
    whole = np.full((40, 2), -1, np.float32)
    for begin, first, count in ((3, 0, 2), (6, 2, 3), (12, 0, 2), (16, 0, 2), (19, 2, 3)):
        whole[begin : begin + count] = encoded(5).rows[first : first + count]
    found = np.full((length, 2), -1, np.float32)
    deep = np.full((length, 2), 99, np.float32)
    for part in images.rows(start, length):
        found[part.offset : part.offset + part.length] = part.embeds
        deep[part.offset : part.offset + part.length] = part.deepstack[1]
    assert (found == whole[start : start + length]).all()
    assert (deep == whole[start : start + length] + 100).all()


def test_chunks_end_around_spans():
    images = PromptImages(
        [placed(5, "x" * 10), placed(20, "x" * 20, 1), placed(42, "x" * 4, 2)], "", bidirectional=True
    )
    assert images.spans == ((5, 15), (20, 40), (42, 46))
    assert [images.border(place, 8) for place in (0, 5, 8, 14, 16, 24, 40, 44, 48)] == [0, 5, 0, 0, 16, 16, 40, 40, 48]
    assert images.chunk_end(0, 8, 8) == 16  # the first, whole
    assert images.chunk_end(0, 24, 8) == 16  # ends before the second
    assert images.chunk_end(16, 24, 8) == 40
    assert images.chunk_end(40, 48, 8) == 48
    assert PromptImages([placed(5, "x" * 10)], "", bidirectional=False).chunk_end(0, 8, 8) == 8


def test_a_span_that_ends_in_the_tile_of_the_next_takes_it_along():
    images = PromptImages([placed(4, "x" * 14), placed(20, "x" * 9, 1)], "", bidirectional=True)
    assert images.border(24, 8) == 0
    assert images.chunk_end(0, 8, 8) == 32


def test_blocks_tell_which_part_of_which_image_they_hold():
    def extras(*images: PlacedImage):
        return PromptImages(images, "", bidirectional=False).block_extras(4)

    one = extras(placed(2, "xxxxxx"))
    assert sorted(one) == [0, 1]
    assert len(set(one.values())) == 2
    assert extras(placed(2, "xxxxxx", 1))[0] != one[0]
    assert extras(placed(1, "xxxxxxx"))[1] != one[1]  # other rows of the same image
    two = extras(placed(0, "xx"), placed(2, "xx", 1))
    assert two != extras(placed(0, "xx", 1), placed(2, "xx"))


def test_behind_the_prompt_positions_are_the_places_and_a_delta():
    positions = np.arange(30).reshape(3, 10)
    images = PromptImages([placed(2, "xx")], "", bidirectional=False, positions=positions, delta=-1)
    assert images.positions(4, 3).tolist() == [[4, 5, 6], [14, 15, 16], [24, 25, 26]]
    assert images.positions(10, 2).tolist() == [9, 10]
