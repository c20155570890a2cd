import random

import numpy as np

from models.vision.image import EncodedImage
from pipelines.text.vision.encoder_cache import EncoderCache
from pipelines.text.vision.prompt_images import ImageKey

ROW = 16


def key(number: int) -> ImageKey:
    return ImageKey("", bytes([number]) * 16)


def image(rows: int) -> EncodedImage:
    return EncodedImage(np.zeros((rows, ROW // 4), np.float32))


def test_a_claim_is_of_all_or_of_none():
    cache = EncoderCache(10 * ROW)
    assert cache.claim({key(1): 6 * ROW})
    assert not cache.claim({key(1): 6 * ROW, key(2): 5 * ROW})
    assert cache.claim({key(1): 6 * ROW, key(3): 4 * ROW})
    cache.release([key(1)])
    assert not cache.claim({key(2): ROW})  # the other claim of the first holds it
    cache.release([key(1), key(3)])
    assert cache.claim({key(2): 20 * ROW})  # nobody else has one
    cache.release([key(2)])
    cache.check()


def test_sizes_are_those_that_came_out():
    cache = EncoderCache(10 * ROW)
    assert cache.claim({key(1): ROW})
    cache.put(key(1), image(9))
    assert cache.nbytes == 9 * ROW
    assert not cache.claim({key(2): 2 * ROW})
    cache.release([key(1)])
    assert cache.claim({key(2): 2 * ROW})
    assert cache.nbytes == 2 * ROW  # and the first has gone
    cache.release([key(2)])
    cache.check()
    assert cache.nbytes == 0  # nothing was encoded


def test_whatever_comes_what_is_claimed_stays_and_the_bytes_are_kept():
    rng = random.Random(5)
    cache, capacity = EncoderCache(40 * ROW), 40 * ROW
    sizes = {number: rng.randint(1, 15) for number in range(12)}
    claims: list[list[int]] = []
    encoded: set[int] = set()
    for _ in range(3000):
        held = {number for claim in claims for number in claim}
        match rng.randrange(3):
            case 0:
                wanted = rng.sample(range(12), rng.randint(1, 3))
                if cache.claim({key(number): sizes[number] * ROW for number in wanted}):
                    claims.append(wanted)
                else:
                    assert held
            case 1 if held:
                number = rng.choice(sorted(held))
                if cache.get(key(number)) is None:
                    cache.put(key(number), image(sizes[number]))
                    encoded.add(number)
            case 2 if claims:
                claim = claims.pop(rng.randrange(len(claims)))
                cache.release([key(number) for number in claim])
        held = {number for claim in claims for number in claim}
        for number in held & encoded:
            found = cache.get(key(number))
            if found is None:  # it went while nobody held it
                encoded.discard(number)
            else:
                assert len(found.rows) == sizes[number]
        assert cache.nbytes <= max(capacity, sum(sizes[number] * ROW for number in held))
        assert len(claims) < 2 or sum(sizes[number] * ROW for number in held) <= capacity
    for claim in claims:
        cache.release([key(number) for number in claim])
    cache.check()
