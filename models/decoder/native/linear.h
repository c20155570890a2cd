/* Weight-only int4 and int8 products on AVX-512 VNNI, and on AMX for many rows.
 *
 * Activations are quantised to int8 in groups of 32 values of a row, as ggml does it
 * (https://github.com/ggml-org/llama.cpp, Q8_1). A vector's lanes are 16 outputs, and each output sums its groups in
 * order: a result depends neither on how many rows run together nor on how outputs are shared among threads. Sums of a
 * group are integers, so where the processor has a matrix unit for them (AMX) it gives the same bits.
 *
 * Packed weights are blocks of 16 outputs, each with its groups one after the other:
 *   int4: 4 · 64 bytes of codes, low nibbles for the group's first 16 inputs, then 16 scales and 16 minima in float16;
 *         w = code · scale + minimum
 *   int8: 8 · 64 bytes of codes + 128; w = (code - 128) · scale, with one scale an output
 * Each 64 bytes hold 4 consecutive inputs of 16 outputs.
 */
#ifndef LINEAR_H
#define LINEAR_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    GROUP = 32,
    LANES = 16,
    INT4_BYTES = LANES * GROUP / 2 + 2 * LANES * 2, /* of one group of a block */
    INT8_BYTES = LANES * GROUP,
    TILE_ROWS = 16, /* most rows that share unpacked weights */
    FETCHED_AHEAD = 5120, /* bytes: the processor's own guesses stop at the end of a page, which is 13 groups away */
};

struct linear {
    const uint8_t *blocks;
    const float *scale; /* int8: [outputs, padded to 16] */
    const float *bias;  /* [outputs, padded to 16], or NULL */
    int32_t outputs, inputs;
    int32_t bits; /* 4 or 8 */
};

/* Rows quantised to int8 in groups. */
struct codes {
    int8_t *values;  /* [rows, inputs] */
    float *scale;    /* [rows, inputs / 32] */
    float *sum;      /* [rows, inputs / 32]: scale · the sum of the values */
    int32_t *offset; /* [rows, inputs / 32]: -128 · the sum of the values */
};

static inline int blocks_of(const struct linear *linear)
{
    return (linear->outputs + LANES - 1) / LANES;
}

/* The lanes of a block that are outputs. */
static inline __mmask16 lanes_of(const struct linear *linear, int block)
{
    int left = linear->outputs - block * LANES;
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}

static inline void quantise_row(const float *x, int inputs, const struct codes *codes, int row)
{
    int groups = inputs / GROUP;
    int8_t *values = codes->values + (size_t)row * inputs;
    for (int g = 0; g < groups; g++) {
        __m512 low = _mm512_loadu_ps(x + g * GROUP), high = _mm512_loadu_ps(x + g * GROUP + LANES);
        float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
        __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
        __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
        __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
        _mm_storeu_si128((__m128i *)(values + g * GROUP), _mm512_cvtsepi32_epi8(first));
        _mm_storeu_si128((__m128i *)(values + g * GROUP + LANES), _mm512_cvtsepi32_epi8(second));
        int sum = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        size_t at = (size_t)row * groups + g;
        codes->scale[at] = largest / 127.0f;
        codes->sum[at] = codes->scale[at] * (float)sum;
        codes->offset[at] = -128 * sum;
    }
}

/* Weights that are read once a step are not in the cache: ask for those of a group that comes later. */
static inline __attribute__((always_inline)) void fetch_ahead(const uint8_t *packed, int bytes)
{
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)(packed + FETCHED_AHEAD + i), _MM_HINT_T0);
}

static inline __m512i four_inputs(const int8_t *values)
{
    int32_t quad;
    memcpy(&quad, values, sizeof quad);
    return _mm512_set1_epi32(quad);
}

/* y[i] = 16 outputs of row `row + i`. `count` is known where this is inlined. */
static inline __attribute__((always_inline)) void int4_product(
    const struct linear *w, int block, const struct codes *codes, int row, int count, __m512 *y)
{
    int inputs = w->inputs, groups = inputs / GROUP;
    const uint8_t *packed = w->blocks + (size_t)block * groups * INT4_BYTES;
    const int8_t *values = codes->values + (size_t)row * inputs;
    const float *scales = codes->scale + (size_t)row * groups, *sums = codes->sum + (size_t)row * groups;
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512 total[8];
    for (int i = 0; i < count; i++)
        total[i] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, packed += INT4_BYTES) {
        __m512i low[4], high[4];
        fetch_ahead(packed, INT4_BYTES);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            __m512i both = _mm512_loadu_si512(packed + 64 * j);
            low[j] = _mm512_and_si512(both, nibble);
            high[j] = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
        }
        __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 256)));
        __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 288)));
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const int8_t *x = values + (size_t)i * inputs + g * GROUP;
            __m512i first = _mm512_setzero_si512(), second = _mm512_setzero_si512();
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                first = _mm512_dpbusd_epi32(first, low[j], four_inputs(x + 4 * j));
                second = _mm512_dpbusd_epi32(second, high[j], four_inputs(x + 16 + 4 * j));
            }
            __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
            __m512 of_row = _mm512_mul_ps(scale, _mm512_set1_ps(scales[(size_t)i * groups + g]));
            total[i] = _mm512_fmadd_ps(sum, of_row, total[i]);
            total[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(sums[(size_t)i * groups + g]), total[i]);
        }
    }
    for (int i = 0; i < count; i++)
        y[i] = total[i];
}

static inline __attribute__((always_inline)) void int8_product(
    const struct linear *w, int block, const struct codes *codes, int row, int count, __m512 *y)
{
    int inputs = w->inputs, groups = inputs / GROUP;
    const uint8_t *packed = w->blocks + (size_t)block * groups * INT8_BYTES;
    const int8_t *values = codes->values + (size_t)row * inputs;
    const float *scales = codes->scale + (size_t)row * groups;
    const int32_t *offsets = codes->offset + (size_t)row * groups;
    __m512 total[8];
    for (int i = 0; i < count; i++)
        total[i] = _mm512_setzero_ps();
    for (int g = 0; g < groups; g++, packed += INT8_BYTES) {
        __m512i weights[8];
        fetch_ahead(packed, INT8_BYTES);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
            weights[j] = _mm512_loadu_si512(packed + 64 * j);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const int8_t *x = values + (size_t)i * inputs + g * GROUP;
            __m512i first = _mm512_set1_epi32(offsets[(size_t)i * groups + g]), second = _mm512_setzero_si512();
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                first = _mm512_dpbusd_epi32(first, weights[j], four_inputs(x + 4 * j));
                second = _mm512_dpbusd_epi32(second, weights[j + 4], four_inputs(x + 16 + 4 * j));
            }
            __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
            total[i] = _mm512_fmadd_ps(sum, _mm512_set1_ps(scales[(size_t)i * groups + g]), total[i]);
        }
    }
    __m512 scale = _mm512_loadu_ps(w->scale + block * LANES);
    for (int i = 0; i < count; i++)
        y[i] = _mm512_mul_ps(total[i], scale);
}

/* --- the matrix unit ---------------------------------------------------------------------------------------------- */

/* Tiles 0 and 1: sums of 16 rows by 16 outputs; 2 and 3: 16 rows of a group's inputs; 4 and 5: a group's weights. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
};

static const struct tile_shapes TILE_SHAPES = {
    .palette = 1,
    .bytes = {64, 64, GROUP, GROUP, 64, 64},
    .rows = {16, 16, 16, 16, GROUP / 4, GROUP / 4},
};

/* GCC's intrinsics don't say that they read and write memory. */
static inline void settle_memory(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Whether the system lets this process use it. */
static int matrix_supported(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static __attribute__((target("amx-tile"))) void matrix_open(const struct tile_shapes *shapes)
{
    _tile_loadconfig(shapes);
}

/* The system saves a thread's tiles at every switch until then. */
static __attribute__((target("amx-tile"))) void matrix_close(void)
{
    _tile_release();
}

static inline __attribute__((always_inline)) void unpack_group(const uint8_t *packed, uint8_t *weights)
{
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512i both = _mm512_loadu_si512(packed + 64 * j);
        _mm512_store_si512(weights + 64 * j, _mm512_and_si512(both, nibble));
        _mm512_store_si512(weights + 256 + 64 * j, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
    }
}

/* sums[i] = 16 rows of a group's inputs by 16 outputs, as integers. Two sets of tiles by turns: `matrix_product`. */
static inline __attribute__((always_inline, target("amx-tile,amx-int8"))) void group_sums(
    int bits, int turn, const uint8_t *packed, const int8_t *values, size_t stride, uint8_t *weights, int32_t *sums)
{
    if (bits == 4) {
        unpack_group(packed, weights);
        packed = weights;
    }
    settle_memory();
    if (turn == 0) {
        _tile_zero(0);
        _tile_loadd(2, values, stride);
        _tile_loadd(4, packed, 64);
        _tile_dpbsud(0, 2, 4);
        _tile_stored(0, sums, 64);
    } else {
        _tile_zero(1);
        _tile_loadd(3, values, stride);
        _tile_loadd(5, packed, 64);
        _tile_dpbsud(1, 3, 5);
        _tile_stored(1, sums, 64);
    }
    settle_memory();
}

/* As `int4_product` and `int8_product` of 16 rows, to the bit: sums of a group are integers. A group's sums are asked
 * for one turn before they are used, for they take a while.
 */
static inline __attribute__((always_inline, target("amx-tile,amx-int8"))) void matrix_product(
    const struct linear *w, int bits, int block, const struct codes *codes, int row, __m512 *y)
{
    _Alignas(64) uint8_t weights[2][16 * GROUP];
    _Alignas(64) int32_t sums[2][16 * LANES];
    int inputs = w->inputs, groups = inputs / GROUP, bytes = bits == 4 ? INT4_BYTES : INT8_BYTES;
    const uint8_t *packed = w->blocks + (size_t)block * groups * bytes;
    const int8_t *values = codes->values + (size_t)row * inputs;
    const float *scales = codes->scale + (size_t)row * groups, *totals = codes->sum + (size_t)row * groups;
    const int32_t *offsets = codes->offset + (size_t)row * groups;
    __m512 total[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        total[i] = _mm512_setzero_ps();
    group_sums(bits, 0, packed, values, inputs, weights[0], sums[0]);
    for (int g = 0; g < groups; g++, packed += bytes) {
        if (g + 1 < groups) {
            const int8_t *next = values + (g + 1) * GROUP;
            if (g & 1)
                group_sums(bits, 0, packed + bytes, next, inputs, weights[0], sums[0]);
            else
                group_sums(bits, 1, packed + bytes, next, inputs, weights[1], sums[1]);
        }
        fetch_ahead(packed, bytes);
        const int32_t *whole = sums[g & 1];
        __m512 scale, minimum;
        if (bits == 4) {
            scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 256)));
            minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(packed + 288)));
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m512i sum = _mm512_load_si512(whole + i * LANES);
            __m512 of_row = _mm512_set1_ps(scales[(size_t)i * groups + g]);
            if (bits == 4) {
                total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, of_row), total[i]);
                total[i] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(totals[(size_t)i * groups + g]), total[i]);
            } else {
                sum = _mm512_add_epi32(sum, _mm512_set1_epi32(offsets[(size_t)i * groups + g]));
                total[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), of_row, total[i]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        y[i] = bits == 4 ? total[i] : _mm512_mul_ps(total[i], _mm512_loadu_ps(w->scale + block * LANES));
}

static __attribute__((noinline, target("amx-tile,amx-int8"))) void matrix_block(
    const struct linear *w, int block, const struct codes *codes, int row, __m512 *y)
{
    if (w->bits == 4)
        matrix_product(w, 4, block, codes, row, y);
    else
        matrix_product(w, 8, block, codes, row, y);
}

/* --- a block of outputs ------------------------------------------------------------------------------------------- */

/* The tile of rows that `left` rows start with. */
static inline int tile_of(int left, int matrix)
{
    return left >= 16 && matrix ? 16 : left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static inline void add_bias(const struct linear *w, int block, int count, __m512 *y)
{
    if (w->bias != NULL)
        for (int i = 0; i < count; i++)
            y[i] = _mm512_add_ps(y[i], _mm512_loadu_ps(w->bias + block * LANES));
}

/* y[i] = 16 outputs, those of `block`, of row `row + i`, with their bias. `count`: of a tile. */
static __attribute__((noinline)) void block_product(
    const struct linear *w, int block, const struct codes *codes, int row, int count, __m512 *y)
{
#define CASE(n)                                       \
    case n:                                           \
        if (w->bits == 4)                             \
            int4_product(w, block, codes, row, n, y); \
        else                                          \
            int8_product(w, block, codes, row, n, y); \
        break;
    switch (count) {
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
    default:
        matrix_block(w, block, codes, row, y);
    }
#undef CASE
    add_bias(w, block, count, y);
}

#endif
