import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipelines.text.cache.block_manager import BlockManager
from pipelines.text.cache.prefix import prefix_keys

BLOCK = 4


def keys_of(text: str, salt: str = "") -> list:
    return prefix_keys(list(text.encode()), BLOCK, salt)


def cached(blocks: BlockManager, text: str, salt: str = "") -> list[int]:
    """Allocate and register `text`'s blocks, then let them go."""
    keys = keys_of(text, salt)
    table = blocks.allocate(len(keys))
    held = list(table)
    blocks.register(table, keys, 0, len(keys))
    blocks.release(table)
    return held


def test_a_table_is_one_run():
    blocks = BlockManager(16, BLOCK)
    first = blocks.allocate(3, growth=2)
    second = blocks.allocate(3, growth=2)
    for table in (first, second):
        blocks.append(table, 2)
        assert table == list(range(table[0], table[0] + 5))
    blocks.check([first, second])


def test_two_sequences_of_unknown_length_grow_side_by_side():
    blocks = BlockManager(64, BLOCK)
    first, second = blocks.allocate(2, growth=1000), blocks.allocate(2, growth=1000)
    for _ in range(20):
        blocks.append(first, 1)
        blocks.append(second, 1)
    assert first == list(range(first[0], first[0] + 22))
    assert second == list(range(second[0], second[0] + 22))


def test_a_hit_goes_on_right_behind_its_prefix():
    blocks = BlockManager(16, BLOCK)
    prompt = cached(blocks, "abcdefgh")
    prefix = blocks.match(keys_of("abcdefghijkl"))
    assert prefix == prompt
    assert blocks.allocate(2, prefix) == list(range(prompt[0], prompt[0] + 4))


def test_tables_that_are_given_back_free_what_no_other_holds():
    blocks = BlockManager(8, BLOCK)
    keys = keys_of("abcdefgh")
    first = blocks.allocate(3)
    blocks.register(first, keys, 0, 2)
    second = blocks.allocate(2, blocks.match(keys))
    assert blocks.num_available == 3
    for released, free in (([first], 4), ([second], 5), ([first, second], 8)):
        assert blocks.can_allocate(free, (), released)
        assert not blocks.can_allocate(free + 1, (), released)
    prefix = blocks.match(keys)  # the newcomer holds it then
    assert blocks.can_allocate(6, prefix, [first, second])
    assert not blocks.can_allocate(7, prefix, [first, second])


def test_where_there_is_no_run_the_scattered_blocks_do():
    blocks = BlockManager(6, BLOCK)
    tables = [blocks.allocate(1) for _ in range(6)]
    for table in tables[::2]:
        blocks.release(table)
    assert blocks.can_allocate(3)
    assert not blocks.can_allocate(4)
    table = blocks.allocate(3)
    assert len(set(table)) == 3
    blocks.check([table, *tables])


def test_the_longest_unused_prefix_is_evicted_first_and_its_end_before_its_beginning():
    blocks = BlockManager(6, BLOCK)
    cached(blocks, "aaaaAAAA")
    cached(blocks, "bbbbBBBB")
    table = blocks.allocate(0, blocks.match(keys_of("aaaaAAAA")))  # used again: now b is the older
    blocks.release(table)
    table = blocks.allocate(3)
    assert len(blocks.match(keys_of("bbbbBBBB"))) == 1
    assert len(blocks.match(keys_of("aaaaAAAA"))) == 2
    blocks.check([table])


def test_a_prefix_in_use_is_not_evicted():
    blocks = BlockManager(4, BLOCK)
    cached(blocks, "aaaabbbb")
    prefix = blocks.match(keys_of("aaaabbbb"))
    assert blocks.can_allocate(2, prefix)
    assert not blocks.can_allocate(3, prefix)
    assert blocks.can_allocate(4)
    table = blocks.allocate(2, prefix)
    assert table[:2] == prefix
    assert not blocks.can_append(1)
    blocks.check([table])


def test_equal_blocks_are_found_only_behind_equal_prefixes():
    blocks = BlockManager(8, BLOCK)
    cached(blocks, "aaaacccc")
    assert blocks.match(keys_of("bbbbcccc")) == []
    assert len(blocks.match(keys_of("aaaabbbb"))) == 1
    assert len(blocks.match(keys_of("aaaacccc"))) == 2


def test_salt_and_media_are_part_of_the_key():
    blocks = BlockManager(8, BLOCK)
    cached(blocks, "aaaacccc", salt="one")
    assert blocks.match(keys_of("aaaacccc", salt="two")) == []
    assert blocks.match(prefix_keys(list(b"aaaacccc"), BLOCK, "one", {0: b"image"})) == []
    assert len(blocks.match(prefix_keys(list(b"aaaacccc"), BLOCK, "one", {1: b"image"}))) == 1


def test_fields_of_a_key_do_not_run_into_each_other():
    def digest(extra: bytes, salt: str) -> bytes:
        return prefix_keys([1, 2, 3, 4], BLOCK, salt, {0: extra})[0].digest()

    fields = [(b"ab", ""), (b"a", "b"), (b"", "ab"), (b"", "cd"), (b"cd", "")]
    assert len({digest(extra, salt) for extra, salt in fields}) == len(fields)


def test_a_collision_of_digests_is_no_hit():
    blocks = BlockManager(8, BLOCK)
    cached(blocks, "aaaa")
    (key,) = keys_of("aaaa")
    assert blocks.match([key._replace(tokens=(98,) * BLOCK)]) == []


@pytest.mark.parametrize("damage", ["_references", "_num_free", "_states", "_keys", "_by_key", "_unreferenced"])
def test_the_check_sees_damage(damage):
    blocks = BlockManager(8, BLOCK)
    cached(blocks, "aaaabbbb")
    table = blocks.allocate(2)
    blocks.check([table])
    match damage:
        case "_references":
            blocks._references[table[0]] += 1
        case "_num_free":
            blocks._num_free -= 1
        case "_states":
            blocks._states[table[0]] = 0
        case "_keys":
            blocks._keys[table[0]] = keys_of("aaaa")[0]
        case "_by_key":
            blocks._by_key[keys_of("zzzz")[0]] = 0
        case "_unreferenced":
            blocks._unreferenced.popitem()
    with pytest.raises(RuntimeError):
        blocks.check([table])


class Blocks(RuleBasedStateMachine):
    """Sequences come, grow and go over a pool that is too small for them; contents are checked against a shadow."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(12, BLOCK)
        self.tables: list[list[int]] = []
        self.content: dict[int, bytes] = {}  # what a block holds, as far as a prefix hit may rely on it

    @rule(text=st.text("ab", min_size=1, max_size=20), growth=st.integers(0, 8), extra=st.integers(0, 2))
    def admit(self, text: str, growth: int, extra: int) -> None:
        keys = keys_of(text)
        prefix = self.blocks.match(keys)
        for number, block in enumerate(prefix):
            assert self.content[block] == text[: (number + 1) * BLOCK].encode()
        count = self.blocks.blocks_for(len(text)) - len(prefix) + extra
        if not self.blocks.can_allocate(count, prefix):
            return
        table = self.blocks.allocate(count, prefix, growth)
        assert table[: len(prefix)] == prefix
        assert len(table) == len(set(table)) == len(prefix) + count
        for block in table[len(prefix) :]:
            self.content.pop(block, None)
        for number in range(len(prefix), len(keys)):
            self.content[table[number]] = text[: (number + 1) * BLOCK].encode()
        self.blocks.register(table, keys, len(prefix), len(keys))
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        if self.blocks.can_append(count):
            before = len(table)
            self.blocks.append(table, count)
            for block in table[before:]:
                self.content.pop(block, None)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.blocks.release(table)
        assert table == []

    @invariant()
    def holds(self) -> None:
        self.blocks.check(self.tables)
        assert self.blocks.num_used == len({block for table in self.tables for block in table})
        assert self.blocks.num_used + self.blocks.num_available == self.blocks.num_blocks
        assert self.blocks.num_available >= self.blocks.num_cached

    def teardown(self) -> None:
        for table in self.tables:
            self.blocks.release(table)
        self.blocks.check([])
        assert self.blocks.num_available == self.blocks.num_blocks
        assert self.blocks.can_allocate(self.blocks.num_blocks)
        self.blocks.allocate(self.blocks.num_blocks)


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=40, stateful_step_count=30)
