/* Products of a prompt's many rows, in bfloat16 on the matrix unit (AMX).
 *
 * Weights of two blocks of outputs are expanded at a time, once for all rows. A sum runs over the inputs in order, in
 * float32, and no row or output sees another: a result doesn't depend on how many rows run together.
 */
#ifndef BFLOAT16_H
#define BFLOAT16_H

#include "linear.h"

enum {
    PAIR_ROWS = 2 * TILE_ROWS,     /* rows, and outputs, that are multiplied at once */
    EXPANDED = GROUP * LANES,      /* values of an expanded group: [inputs / 2, outputs, 2] */
};

/* Sums of two tiles of rows by two blocks of outputs: 0 to 3; rows: 4, 5; weights: 6, 7. */
static const struct tile_shapes BFLOAT16_SHAPES = {
    .palette = 1,
    .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static int bfloat16_supported(void)
{
    return __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16");
}

/* A row, to the nearest, ties to even. out: tiles of 16 rows, [tiles, groups, 16, 32]. */
static inline __attribute__((always_inline, target("avx512bf16"))) void narrow_row(
    const float *x, int inputs, int row, uint16_t *out)
{
    out += (size_t)(row / TILE_ROWS) * inputs * TILE_ROWS + row % TILE_ROWS * GROUP;
    for (int i = 0; i < inputs; i += GROUP, out += TILE_ROWS * GROUP) {
        __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
        _mm512_store_si512(out, (__m512i)both);
    }
}

/* Codes of 4 consecutive inputs of 16 outputs -> their values by pairs of inputs. */
static inline __attribute__((always_inline, target("avx512bf16"))) void expand_quads(
    __m512i codes, __m512 scale, __m512 minimum, uint16_t *out)
{
    const __m512i byte = _mm512_set1_epi32(0xff);
    const __m512i by_turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
        6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int pair = 0; pair < 2; pair++) {
        __m512i first = _mm512_and_si512(_mm512_srli_epi32(codes, 16 * pair), byte);
        __m512i second = _mm512_and_si512(_mm512_srli_epi32(codes, 16 * pair + 8), byte);
        __m512 low = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), scale, minimum);
        __m512 high = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), scale, minimum);
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_store_si512(out + 2 * LANES * pair, _mm512_permutexvar_epi16(by_turns, both));
    }
}

/* out: [groups, EXPANDED] */
static __attribute__((noinline, target("avx512bf16"))) void expand_block(
    const struct linear *w, int block, uint16_t *out)
{
    int groups = w->inputs / GROUP, bytes = w->bits == 4 ? INT4_BYTES : INT8_BYTES;
    const uint8_t *packed = w->blocks + (size_t)block * groups * bytes;
    const __m512i nibble = _mm512_set1_epi8(15);
    for (int g = 0; g < groups; g++, packed += bytes, out += EXPANDED) {
        if (w->bits == 4) {
            __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 256)));
            __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 288)));
            for (int j = 0; j < 4; j++) {
                __m512i both = _mm512_loadu_si512(packed + 64 * j);
                expand_quads(_mm512_and_si512(both, nibble), scale, minimum, out + j * 64);
                both = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
                expand_quads(both, scale, minimum, out + EXPANDED / 2 + j * 64);
            }
        } else {
            __m512 scale = _mm512_loadu_ps(w->scale + block * LANES);
            __m512 offset = _mm512_mul_ps(scale, _mm512_set1_ps(-128.0f));
            for (int j = 0; j < 8; j++)
                expand_quads(_mm512_loadu_si512(packed + 64 * j), scale, offset, out + j * 64);
        }
    }
}

/* sums: [two tiles of rows][two blocks][16][16], of narrowed rows and expanded weights [2, groups, EXPANDED] */
static __attribute__((noinline, target("amx-tile,amx-bf16"))) void bfloat16_sums(
    const uint16_t *rows, const uint16_t *weights, int inputs, float *sums)
{
    enum { TILE = TILE_ROWS * GROUP };
    int groups = inputs / GROUP;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    settle_memory();
    for (int g = 0; g < groups; g++) {
        _tile_loadd(4, rows + (size_t)g * TILE, 64);
        _tile_loadd(6, weights + (size_t)g * EXPANDED, 64);
        _tile_loadd(7, weights + (size_t)(groups + g) * EXPANDED, 64);
        _tile_loadd(5, rows + (size_t)(groups + g) * TILE, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    settle_memory();
}

#endif
