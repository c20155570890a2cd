/* From the forms in which weights come to the layout of linear.h. All write to zeros, blocks of 16 outputs. */
#ifndef PACK_H
#define PACK_H

#include "linear.h"

static inline uint16_t to_half(float value)
{
    return (uint16_t)_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}

static inline float from_half(const uint8_t *raw)
{
    uint16_t half;
    memcpy(&half, raw, sizeof half);
    return _cvtsh_ss(half);
}

static inline int half_is_finite(uint16_t half)
{
    return (half & 0x7c00) != 0x7c00;
}

/* codes: [outputs, inputs], 0 … 15; scale, minimum: [outputs, inputs / 32]. */
void pack_int4(const uint8_t *codes, const float *scale, const float *minimum, int outputs, int inputs, uint8_t *out)
{
    int groups = inputs / GROUP;
    for (int n = 0; n < outputs; n++) {
        int lane = n % LANES;
        for (int g = 0; g < groups; g++) {
            uint8_t *packed = out + ((size_t)(n / LANES) * groups + g) * INT4_BYTES;
            const uint8_t *from = codes + (size_t)n * inputs + g * GROUP;
            for (int quad = 0; quad < 4; quad++)
                for (int i = 0; i < 4; i++)
                    packed[quad * 64 + lane * 4 + i] =
                        (uint8_t)(from[quad * 4 + i] | from[16 + quad * 4 + i] << 4);
            uint16_t pair[2] = {to_half(scale[(size_t)n * groups + g]), to_half(minimum[(size_t)n * groups + g])};
            memcpy(packed + 256 + 2 * lane, &pair[0], 2);
            memcpy(packed + 288 + 2 * lane, &pair[1], 2);
        }
    }
}

/* codes: [outputs, inputs]. */
void pack_int8(const int8_t *codes, int outputs, int inputs, uint8_t *out)
{
    int groups = inputs / GROUP;
    for (int n = 0; n < outputs; n++)
        for (int g = 0; g < groups; g++) {
            uint8_t *packed = out + ((size_t)(n / LANES) * groups + g) * INT8_BYTES + n % LANES * 4;
            const int8_t *from = codes + (size_t)n * inputs + g * GROUP;
            for (int quad = 0; quad < 8; quad++)
                for (int i = 0; i < 4; i++)
                    packed[quad * 64 + i] = (uint8_t)(from[quad * 4 + i] + 128);
        }
}

/* GGUF's Q4_1 (`minima`): groups of scale and minimum in float16 and 16 bytes of codes, those of inputs i and i + 16 in
 * one. Q4_0: no minimum, it is -8 scales. 0 where one of them is not finite.
 */
int repack_q4(const uint8_t *rows, int minima, int outputs, int inputs, uint8_t *out)
{
    int groups = inputs / GROUP, bytes = GROUP / 2 + (minima ? 4 : 2), finite = 1;
    for (int first = 0; first < outputs; first += LANES)
        for (int g = 0; g < groups; g++, out += INT4_BYTES)
            for (int lane = 0; lane < LANES && first + lane < outputs; lane++) {
                const uint8_t *from = rows + ((size_t)(first + lane) * groups + g) * bytes;
                for (int quad = 0; quad < 4; quad++)
                    memcpy(out + quad * 64 + lane * 4, from + bytes - GROUP / 2 + quad * 4, 4);
                uint16_t scale, minimum = to_half(-8.0f * from_half(from));
                memcpy(&scale, from, 2);
                if (minima)
                    memcpy(&minimum, from + 2, 2);
                memcpy(out + 256 + 2 * lane, &scale, 2);
                memcpy(out + 288 + 2 * lane, &minimum, 2);
                finite &= half_is_finite(scale) & half_is_finite(minimum);
            }
    return finite;
}

/* GGUF's Q8_0: groups of a scale in float16 and 32 codes. They get the largest scale of their row, [outputs].
 * 0 where a scale is not finite.
 */
int repack_q8(const uint8_t *rows, int outputs, int inputs, float *scale, uint8_t *out)
{
    enum { BYTES = GROUP + 2 };
    int groups = inputs / GROUP;
    for (int n = 0; n < outputs; n++) {
        const uint8_t *row = rows + (size_t)n * groups * BYTES;
        float largest = 1e-8f;
        for (int g = 0; g < groups; g++) {
            float magnitude = __builtin_fabsf(from_half(row + g * BYTES));
            if (!(magnitude < INFINITY))
                return 0;
            largest = magnitude > largest ? magnitude : largest;
        }
        scale[n] = largest;
        for (int g = 0; g < groups; g++) {
            const uint8_t *from = row + g * BYTES;
            uint8_t *packed = out + ((size_t)(n / LANES) * groups + g) * INT8_BYTES + n % LANES * 4;
            __m512 shrink = _mm512_set1_ps(from_half(from) / largest);
            for (int half = 0; half < 2; half++) {
                __m128i codes = _mm_loadu_si128((const __m128i *)(from + 2 + half * 16));
                __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), shrink);
                __m128i rounded = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(values));
                uint8_t shifted[16];
                _mm_storeu_si128((__m128i *)shifted, _mm_xor_si128(rounded, _mm_set1_epi8((char)0x80)));
                for (int quad = 0; quad < 4; quad++)
                    memcpy(packed + (half * 4 + quad) * 64, shifted + quad * 4, 4);
            }
        }
    }
    return 1;
}

#endif
