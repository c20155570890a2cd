/* Attention of a few positions over the paged cache of their sequence, and what goes with it, in float32. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

enum {
    BLOCK = 16, /* positions of a block of the cache */
    MOST_HEAD_DIM = 512,
    MOST_QUERIES = 64,
    MOST_TOGETHER = 8, /* queries that share a pass over keys or values: as many as there are registers for */
    AHEAD = 16,       /* positions whose values are fetched early: too far apart for the processor to guess */
};

/* Of queries that are taken together: a case each, in which their number is known. */
#define EACH_COUNT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)

/* 32 bfloat16 as two vectors of float32: those at even places and those at odd ones. */
static inline __m512 even_bf16(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static inline __m512 odd_bf16(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* To the nearest, ties to even; `x` is finite. */
static inline void to_bf16(__m512 x, uint16_t *out)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* e^x within 2 units in the last place: 2^n · a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' coefficients). */
static inline __m512 exp_ps(__m512 x)
{
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(88.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), x);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(x, x), _mm512_add_ps(x, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

/* x / (1 + e^-x) */
static inline __m512 silu_ps(__m512 x)
{
    __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(x, _mm512_add_ps(one, exp_ps(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

/* RMSNorm (https://arxiv.org/abs/1910.07467). `size` is a multiple of 16; `out` may be `x`. */
static inline void rms_norm(const float *x, const float *weight, int size, float eps, float *out)
{
    __m512 squares = _mm512_setzero_ps();
    for (int i = 0; i < size; i += 16) {
        __m512 part = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(part, part, squares);
    }
    __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + eps));
    for (int i = 0; i < size; i += 16)
        _mm512_storeu_ps(
            out + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), factor), _mm512_loadu_ps(weight + i)));
}

/* A head's first half against its second; `half` is a multiple of 16. */
static inline void rotate(float *head, const float *cos, const float *sin, int half)
{
    for (int i = 0; i < half; i += 16) {
        __m512 c = _mm512_loadu_ps(cos + i), s = _mm512_loadu_ps(sin + i);
        __m512 first = _mm512_loadu_ps(head + i), second = _mm512_loadu_ps(head + half + i);
        _mm512_storeu_ps(head + i, _mm512_fmsub_ps(first, c, _mm512_mul_ps(second, s)));
        _mm512_storeu_ps(head + half + i, _mm512_fmadd_ps(second, c, _mm512_mul_ps(first, s)));
    }
}

/* Rows become columns. */
static inline void transpose(__m512i *rows)
{
    __m512i two[16], four[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        two[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        two[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            four[i + 2 * j] = _mm512_unpacklo_epi64(two[i + j], two[i + j + 2]);
            four[i + 2 * j + 1] = _mm512_unpackhi_epi64(two[i + j], two[i + j + 2]);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i low = _mm512_shuffle_i32x4(four[i], four[i + 4], 0x88);
        __m512i high = _mm512_shuffle_i32x4(four[i], four[i + 4], 0xdd);
        __m512i low_too = _mm512_shuffle_i32x4(four[i + 8], four[i + 12], 0x88);
        __m512i high_too = _mm512_shuffle_i32x4(four[i + 8], four[i + 12], 0xdd);
        rows[i] = _mm512_shuffle_i32x4(low, low_too, 0x88);
        rows[i + 8] = _mm512_shuffle_i32x4(low, low_too, 0xdd);
        rows[i + 4] = _mm512_shuffle_i32x4(high, high_too, 0x88);
        rows[i + 12] = _mm512_shuffle_i32x4(high, high_too, 0xdd);
    }
}

/* The keys of a block, [16 positions, head_dim] bfloat16 -> [head_dim, 16 positions] */
static inline void turn_keys(const uint16_t *keys, size_t stride, int head_dim, float *turned)
{
    for (int i = 0; i < head_dim; i += 32, turned += 32 * BLOCK) {
        __m512i pairs[BLOCK];
#pragma GCC unroll 16
        for (int p = 0; p < BLOCK; p++)
            pairs[p] = _mm512_loadu_si512(keys + p * stride + i);
        transpose(pairs);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) {
            _mm512_store_ps(turned + 2 * j * BLOCK, even_bf16(pairs[j]));
            _mm512_store_ps(turned + (2 * j + 1) * BLOCK, odd_bf16(pairs[j]));
        }
    }
}

/* Scores of the 16 positions of a block, of some queries. `count` is known here. */
static inline __attribute__((always_inline)) void score(
    const float *const *queries, int count, const float *turned, int head_dim, __m512 *out)
{
    __m512 even[MOST_TOGETHER], odd[MOST_TOGETHER]; /* two sums each: one addition need not wait for the other */
    for (int i = 0; i < count; i++)
        even[i] = odd[i] = _mm512_setzero_ps();
    for (int d = 0; d < head_dim; d += 2) {
        __m512 of_even = _mm512_load_ps(turned + d * BLOCK), of_odd = _mm512_load_ps(turned + (d + 1) * BLOCK);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            even[i] = _mm512_fmadd_ps(_mm512_set1_ps(queries[i][d]), of_even, even[i]);
            odd[i] = _mm512_fmadd_ps(_mm512_set1_ps(queries[i][d + 1]), of_odd, odd[i]);
        }
    }
    for (int i = 0; i < count; i++)
        out[i] = _mm512_add_ps(even[i], odd[i]);
}

static __attribute__((noinline)) void score_some(
    const float *const *queries, int count, const float *turned, int head_dim, __m512 *out)
{
#define CASE(n)                                      \
    case n:                                          \
        score(queries, n, turned, head_dim, out);    \
        break;
    switch (count) {
        EACH_COUNT(CASE)
    }
#undef CASE
}

/* e^(score - largest) in place of each score; returns their sum. */
static inline float soften(float *scores, int count)
{
    __m512 largest = _mm512_loadu_ps(scores), total = _mm512_setzero_ps();
    for (int p = 16; p < count; p += 16)
        largest = _mm512_max_ps(largest, _mm512_loadu_ps(scores + p));
    largest = _mm512_set1_ps(_mm512_reduce_max_ps(largest));
    for (int p = 0; p < count; p += 16) {
        __m512 score = _mm512_loadu_ps(scores + p);
        __mmask16 real = _mm512_cmp_ps_mask(score, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
        __m512 weight = _mm512_maskz_mov_ps(real, exp_ps(_mm512_sub_ps(score, largest)));
        total = _mm512_add_ps(total, weight);
        _mm512_storeu_ps(scores + p, weight);
    }
    return _mm512_reduce_add_ps(total);
}

/* Of some queries the weighted sum of 32 components of the values at all positions. `count` is known here. */
static inline __attribute__((always_inline)) void weigh(const float *weights, size_t room, int count,
    const uint16_t *values, size_t stride, const int32_t *table, int length, __m512 *even, __m512 *odd)
{
    __m512 sum_even[MOST_TOGETHER], sum_odd[MOST_TOGETHER];
    for (int i = 0; i < count; i++)
        sum_even[i] = sum_odd[i] = _mm512_setzero_ps();
    for (int from = 0; from < length; from += BLOCK) {
        const uint16_t *value = values + (size_t)table[from / BLOCK] * BLOCK * stride;
        int positions = length - from < BLOCK ? length - from : BLOCK;
        for (int p = 0; p < positions; p++, value += stride) {
            _mm_prefetch((const char *)(value + AHEAD * stride), _MM_HINT_T0);
            _mm_prefetch((const char *)(value + AHEAD * stride + 32), _MM_HINT_T0); /* the next pass's */
            __m512i pairs = _mm512_loadu_si512(value);
            __m512 value_even = even_bf16(pairs), value_odd = odd_bf16(pairs);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                __m512 weight = _mm512_set1_ps(weights[i * room + from + p]);
                sum_even[i] = _mm512_fmadd_ps(weight, value_even, sum_even[i]);
                sum_odd[i] = _mm512_fmadd_ps(weight, value_odd, sum_odd[i]);
            }
        }
    }
    for (int i = 0; i < count; i++) {
        even[i] = sum_even[i];
        odd[i] = sum_odd[i];
    }
}

static __attribute__((noinline)) void weigh_some(const float *weights, size_t room, int count, const uint16_t *values,
    size_t stride, const int32_t *table, int length, __m512 *even, __m512 *odd)
{
#define CASE(n)                                                                     \
    case n:                                                                         \
        weigh(weights, room, n, values, stride, table, length, even, odd);          \
        break;
    switch (count) {
        EACH_COUNT(CASE)
    }
#undef CASE
}

/* Queries that share keys and values: some heads of some rows, which stand at consecutive positions of one sequence. */
struct queries {
    const float *first; /* [rows, group, head_dim], rows `row_stride` apart */
    float *out;         /* the same, rows `out_stride` apart */
    size_t row_stride, out_stride;
    int rows, group;
    int length; /* positions up to the first row's own; up to each next row's is one more */
    int window; /* positions that a row attends to, the last of these */
};

static inline __mmask16 first_lanes(int count)
{
    return count >= BLOCK ? 0xffff : count > 0 ? (__mmask16)((1u << count) - 1) : 0;
}

/* `keys`, `values`: those of the heads at slot 0, `stride` values a slot; slots of a block that nobody attends to hold
 * finite values, any. `scores`: [queries, room], room ≥ the last row's length padded to whole blocks. A query's result
 * doesn't depend on the others: what it doesn't attend to has a weight of zero.
 */
static void attend(const struct queries *q, const uint16_t *keys, const uint16_t *values, size_t stride,
    const int32_t *table, int head_dim, float *scores, size_t room)
{
    _Alignas(64) float turned[MOST_HEAD_DIM * BLOCK];
    const float *own[MOST_QUERIES];
    float total[MOST_QUERIES];
    int count = q->rows * q->group, longest = q->length + q->rows - 1;
    int padded = (longest + BLOCK - 1) / BLOCK * BLOCK;
    for (int i = 0; i < count; i++)
        own[i] = q->first + i / q->group * q->row_stride + i % q->group * head_dim;
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)head_dim));
    for (int from = 0; from < longest; from += BLOCK) {
        const uint16_t *block = keys + (size_t)table[from / BLOCK] * BLOCK * stride;
        if (from + BLOCK < longest) {
            const uint16_t *next = keys + (size_t)table[from / BLOCK + 1] * BLOCK * stride;
            for (int p = 0; p < BLOCK; p++, next += stride)
                for (int i = 0; i < head_dim; i += 32)
                    _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
        }
        turn_keys(block, stride, head_dim, turned);
        for (int i = 0, some; i < count; i += some) {
            __m512 found[MOST_TOGETHER];
            some = count - i < MOST_TOGETHER ? count - i : MOST_TOGETHER;
            score_some(own + i, some, turned, head_dim, found);
            for (int j = 0; j < some; j++) {
                int real = q->length + (i + j) / q->group - from; /* positions of this block and of later ones */
                int before = real - q->window;                    /* of these, positions before the window */
                __mmask16 mask = first_lanes(real) & ~first_lanes(before);
                __m512 scaled = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), mask, found[j], scale);
                _mm512_storeu_ps(scores + (i + j) * room + from, scaled);
            }
        }
    }
    for (int i = 0; i < count; i++)
        total[i] = soften(scores + i * room, padded);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (int part = 0; part < head_dim; part += 32)
        for (int i = 0, some; i < count; i += some) {
            some = count - i < MOST_TOGETHER ? count - i : MOST_TOGETHER;
            __m512 of_even[MOST_TOGETHER], of_odd[MOST_TOGETHER];
            weigh_some(scores + i * room, room, some, values + part, stride, table, longest, of_even, of_odd);
            for (int j = 0; j < some; j++) {
                __m512 inverse = _mm512_set1_ps(1.0f / total[i + j]);
                __m512 e = _mm512_mul_ps(of_even[j], inverse), o = _mm512_mul_ps(of_odd[j], inverse);
                float *to = q->out + (i + j) / q->group * q->out_stride + (i + j) % q->group * head_dim + part;
                _mm512_storeu_ps(to, _mm512_permutex2var_ps(e, first, o));
                _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(e, second, o));
            }
        }
}

#endif
