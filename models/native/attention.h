/* Attention of one position over the paged cache of its sequence, and the functions that go with it, in float32. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

enum {
    BLOCK = 16, /* positions of a block of the cache */
    MOST_HEAD_DIM = 512,
    MOST_GROUP = 64, /* query heads that share keys and values */
    AHEAD = 16,      /* positions whose values are fetched early: a position's lie too far apart for the processor to guess */
};

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

/* The sums of 16 vectors, side by side. */
static inline __m512 sums(const __m512 *v)
{
    __m512 two[8], four[4], eight[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        two[i] = _mm512_add_ps(
            _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(two[2 * i]), b = _mm512_castps_pd(two[2 * i + 1]);
        four[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0x88),
            _mm512_shuffle_f32x4(four[2 * i], four[2 * i + 1], 0xdd));
    return _mm512_add_ps(
        _mm512_shuffle_f32x4(eight[0], eight[1], 0x88), _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
}

/* Values of a head at even and at odd places. */
static inline void split(const float *head, int head_dim, float *even, float *odd)
{
    for (int i = 0; i < head_dim / 2; i++) {
        even[i] = head[2 * i];
        odd[i] = head[2 * i + 1];
    }
}

/* Scores of the 16 positions of one block. `keys`: those of its first position. */
static inline __m512 block_scores(const float *even, const float *odd, const uint16_t *keys, size_t stride, int head_dim)
{
    __m512 sum[BLOCK];
#pragma GCC unroll 16
    for (int p = 0; p < BLOCK; p++)
        sum[p] = _mm512_setzero_ps();
    for (int i = 0; i < head_dim; i += 32) {
        __m512 query_even = _mm512_loadu_ps(even + i / 2), query_odd = _mm512_loadu_ps(odd + i / 2);
#pragma GCC unroll 16
        for (int p = 0; p < BLOCK; p++) {
            __m512i pairs = _mm512_loadu_si512(keys + p * stride + i);
            sum[p] = _mm512_fmadd_ps(query_even, even_bf16(pairs), sum[p]);
            sum[p] = _mm512_fmadd_ps(query_odd, odd_bf16(pairs), sum[p]);
        }
    }
    return sums(sum);
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

/* Of up to 4 heads that share values: the weighted sum of 32 components over all positions. `heads` is known here. */
static inline __attribute__((always_inline)) void weigh(const float *weights, size_t room, int heads,
    const uint16_t *values, size_t stride, const int32_t *table, int length, __m512 *even, __m512 *odd)
{
    for (int h = 0; h < heads; h++)
        even[h] = odd[h] = _mm512_setzero_ps();
    for (int from = 0; from < length; from += BLOCK) {
        const uint16_t *value = values + (size_t)table[from / BLOCK] * BLOCK * stride;
        int count = length - from < BLOCK ? length - from : BLOCK;
        for (int p = 0; p < count; p++, value += stride) {
            __m512i pairs = _mm512_loadu_si512(value);
            _mm_prefetch((const char *)(value + AHEAD * stride), _MM_HINT_T0);
            _mm_prefetch((const char *)(value + AHEAD * stride + 32), _MM_HINT_T0);
            __m512 value_even = even_bf16(pairs), value_odd = odd_bf16(pairs);
#pragma GCC unroll 4
            for (int h = 0; h < heads; h++) {
                __m512 weight = _mm512_set1_ps(weights[h * room + from + p]);
                even[h] = _mm512_fmadd_ps(weight, value_even, even[h]);
                odd[h] = _mm512_fmadd_ps(weight, value_odd, odd[h]);
            }
        }
    }
}

static void weigh_heads(const float *weights, size_t room, int heads, const uint16_t *values, size_t stride,
    const int32_t *table, int length, __m512 *even, __m512 *odd)
{
    switch (heads) {
    case 1: weigh(weights, room, 1, values, stride, table, length, even, odd); break;
    case 2: weigh(weights, room, 2, values, stride, table, length, even, odd); break;
    case 3: weigh(weights, room, 3, values, stride, table, length, even, odd); break;
    default: weigh(weights, room, 4, values, stride, table, length, even, odd);
    }
}

/* The queries of `group` heads that share keys and values, against `length` positions. A query's result doesn't depend
 * on the others.
 *
 * queries, out: [group, head_dim]. `keys`, `values`: those of the heads at slot 0, `stride` values a slot; slots of a
 * block beyond `length` hold finite values, any. `scores`: [group, room], room ≥ length padded to whole blocks.
 */
static void attend(const float *queries, int group, const uint16_t *keys, const uint16_t *values, size_t stride,
    const int32_t *table, int length, int head_dim, float *scores, size_t room, float *out)
{
    float even[MOST_GROUP][MOST_HEAD_DIM / 2], odd[MOST_GROUP][MOST_HEAD_DIM / 2], total[MOST_GROUP];
    for (int h = 0; h < group; h++)
        split(queries + h * head_dim, head_dim, even[h], odd[h]);
    __m512 scale = _mm512_set1_ps(1.0f / sqrtf((float)head_dim));
    for (int from = 0; from < length; from += BLOCK) {
        int count = length - from < BLOCK ? length - from : BLOCK;
        __mmask16 real = (__mmask16)((1u << count) - 1);
        const uint16_t *block = keys + (size_t)table[from / BLOCK] * BLOCK * stride;
        if (from + BLOCK < length) {
            const uint16_t *next = keys + (size_t)table[from / BLOCK + 1] * BLOCK * stride;
            for (int p = 0; p < BLOCK; p++, next += stride)
                for (int i = 0; i < head_dim; i += 32)
                    _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
        }
        for (int h = 0; h < group; h++) {
            __m512 score = block_scores(even[h], odd[h], block, stride, head_dim);
            score = _mm512_mask_mul_ps(_mm512_set1_ps(-INFINITY), real, score, scale);
            _mm512_storeu_ps(scores + h * room + from, score);
        }
    }
    for (int h = 0; h < group; h++)
        total[h] = soften(scores + h * room, (length + BLOCK - 1) / BLOCK * BLOCK);
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    for (int i = 0; i < head_dim; i += 32)
        for (int head = 0; head < group; head += 4) {
            int heads = group - head < 4 ? group - head : 4;
            __m512 of_even[4], of_odd[4];
            weigh_heads(scores + head * room, room, heads, values + i, stride, table, length, of_even, of_odd);
            for (int h = 0; h < heads; h++) {
                __m512 inverse = _mm512_set1_ps(1.0f / total[head + h]);
                __m512 e = _mm512_mul_ps(of_even[h], inverse), o = _mm512_mul_ps(of_odd[h], inverse);
                float *to = out + (head + h) * head_dim + i;
                _mm512_storeu_ps(to, _mm512_permutex2var_ps(e, first, o));
                _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(e, second, o));
            }
        }
}

#endif
