/* What a decoder is, what a forward is asked, and the threads and memory that it runs on. */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdlib.h>

#include "attention.h"
#include "bfloat16.h"
#include "linear.h"
#include "pool.h"

enum {
    MOST_ROWS = 256,      /* of one forward */
    MOST_SHARED = 16,     /* queries of several rows that share a pass over keys and values; one row's always do */
    TASKS_PER_THREAD = 4, /* of one phase: enough that a thread that is put aside leaves little undone */
    PHASES = 7,           /* of one layer, at most */
};

/* What callers have to know of this build. */
struct limits {
    int32_t rows, head_dim, queries; /* at most: of one forward; of a head; that share keys and values in one row */
    int32_t block;                   /* positions of a block of the cache */
    int32_t group, lanes;            /* inputs of a group, outputs of a block of packed weights */
    int32_t int4_bytes, int8_bytes;  /* of one group of such a block */
    int32_t layer_bytes, batch_bytes; /* of the structures below: callers built for others see that here */
};

struct shape {
    int32_t hidden, intermediate, heads, kv_heads, head_dim, layers;
    float eps;
};

struct layer {
    const float *attention_norm; /* [hidden] */
    struct linear qkv;           /* query heads, then key heads, then value heads */
    const float *qk_norm;        /* [heads + kv_heads, head_dim], or NULL */
    int32_t rope;                /* which of the batch's */
    int32_t window;              /* positions that a row attends to, its own the last; at most 2^30 */
    struct linear output;
    const float *mlp_norm; /* [hidden] */
    struct linear gate_up; /* gate, then up */
    struct linear down;
};

struct decoder {
    struct shape shape;
    const struct layer *layers;
    const float *norm; /* [hidden] */
    struct linear head;
};

/* Rows of one forward, at most MOST_ROWS. */
struct batch {
    int32_t rows;
    int32_t prompt;          /* rows of prompts: their linears may be multiplied in bfloat16 */
    float *hidden;           /* [rows, hidden]: embedded rows; the residual afterwards */
    const float *rope;       /* of each rope [rows, 3 · head_dim / 2]: cosines twice, sines once */
    int64_t rope_stride;     /* from one rope's to the next one's */
    const int32_t *lengths;  /* [rows]: positions up to a row's own */
    const int32_t *starts;   /* [rows]: where a row's block table starts in `tables` */
    const int32_t *tables;   /* blocks of the cache */
    uint16_t *cache;         /* [layers, slots, 2, kv_heads, head_dim] bfloat16 */
    int64_t slots;           /* of one layer */
    const int32_t *wanted;   /* [wanted_rows]: rows whose logits are wanted */
    int32_t wanted_rows;
    float *logits; /* [wanted_rows, vocab] */
    const float *added;        /* [added_layers, added_rows, hidden]: to residuals, of the first layer behind it, … */
    int64_t added_stride;      /* from one layer's to the next one's */
    const int32_t *added_to;   /* [added_rows]: which rows */
    int32_t added_rows, added_layers;
};

/* What a thread works in. */
struct desk {
    struct codes codes;
    float *row;    /* [inputs] */
    uint16_t *narrowed, *expanded; /* rows [MOST_ROWS, inputs] and two blocks of weights, in bfloat16 */
    float *scores; /* [MOST_SHARED, positions] */
};

struct span {
    int row, rows;
};

/* Threads and their memory. One caller at a time. */
struct engine {
    struct pool pool;
    int matrix;   /* whether the processor's matrix unit is used, */
    int bfloat16; /* and for prompts in bfloat16 */
    int num_spans;
    struct span spans[MOST_ROWS];
    struct desk *desks;
    struct phase *phases;
    float *qkv, *attended, *activated; /* [MOST_ROWS, …] */
    int64_t inputs, scores, num_phases, widths; /* that there is room for */
};

static int grow(void *pointer, size_t bytes)
{
    void *old, *grown;
    memcpy(&old, pointer, sizeof old);
    free(old);
    grown = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
    memcpy(pointer, &grown, sizeof grown);
    return grown != NULL;
}

/* 0 where there is no memory. */
static int reserve(struct engine *engine, int64_t inputs, int64_t scores, int64_t num_phases)
{
    int done = 1;
    for (int thread = 0; thread < engine->pool.threads; thread++) {
        struct desk *desk = &engine->desks[thread];
        if (inputs > engine->inputs) {
            size_t groups = (size_t)MOST_ROWS * inputs / GROUP;
            done &= grow(&desk->codes.values, (size_t)MOST_ROWS * inputs);
            done &= grow(&desk->codes.scale, groups * sizeof(float));
            done &= grow(&desk->codes.sum, groups * sizeof(float));
            done &= grow(&desk->codes.offset, groups * sizeof(int32_t));
            done &= grow(&desk->row, inputs * sizeof(float));
            if (engine->bfloat16) {
                done &= grow(&desk->narrowed, (size_t)MOST_ROWS * inputs * sizeof(uint16_t));
                done &= grow(&desk->expanded, (size_t)PAIR_ROWS * inputs * sizeof(uint16_t));
            }
        }
        if (scores > engine->scores)
            done &= grow(&desk->scores, scores * sizeof(float));
    }
    if (num_phases > engine->num_phases)
        done &= grow(&engine->phases, num_phases * sizeof(struct phase));
    if (!done) {
        engine->inputs = engine->scores = engine->num_phases = 0;
        return 0;
    }
    engine->inputs = inputs > engine->inputs ? inputs : engine->inputs;
    engine->scores = scores > engine->scores ? scores : engine->scores;
    engine->num_phases = num_phases > engine->num_phases ? num_phases : engine->num_phases;
    return 1;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int reserve_forward(struct engine *engine, const struct decoder *decoder, const struct batch *batch)
{
    const struct shape *s = &decoder->shape;
    int64_t query = s->heads * s->head_dim, qkv = query + 2 * s->kv_heads * s->head_dim, length = 0;
    for (int row = 0; row < batch->rows; row++)
        length = larger(length, batch->lengths[row]);
    int64_t group = s->heads / s->kv_heads, scores = larger(group, MOST_SHARED) * (length + BLOCK);
    /* A context grows by one position a step: its room by doubling. */
    scores = scores > engine->scores ? 2 * scores : engine->scores;
    if (!reserve(engine, larger(larger(s->hidden, s->intermediate), query), scores, (int64_t)PHASES * s->layers + 1))
        return 0;
    int64_t widths = qkv + query + s->intermediate;
    if (widths > engine->widths) {
        if (!(grow(&engine->qkv, MOST_ROWS * qkv * sizeof(float)) &&
                grow(&engine->attended, MOST_ROWS * query * sizeof(float)) &&
                grow(&engine->activated, MOST_ROWS * s->intermediate * sizeof(float)))) {
            engine->widths = 0;
            return 0;
        }
        engine->widths = widths;
    }
    return 1;
}

void engine_free(struct engine *engine)
{
    pool_stop(&engine->pool);
    for (int thread = 0; thread < engine->pool.threads; thread++) {
        struct desk *desk = &engine->desks[thread];
        free(desk->codes.values);
        free(desk->codes.scale);
        free(desk->codes.sum);
        free(desk->codes.offset);
        free(desk->row);
        free(desk->narrowed);
        free(desk->expanded);
        free(desk->scores);
    }
    free(engine->desks);
    free(engine->phases);
    free(engine->qkv);
    free(engine->attended);
    free(engine->activated);
    free(engine);
}

/* `matrix`: use the matrix unit where there is one; results are the same bits. NULL where there is no memory. */
struct engine *engine_new(int threads, int matrix)
{
    struct engine *engine = calloc(1, sizeof *engine);
    struct desk *desks = calloc(threads, sizeof *desks);
    if (engine == NULL || desks == NULL || !pool_start(&engine->pool, threads)) {
        free(desks);
        free(engine);
        return NULL;
    }
    engine->desks = desks;
    engine->matrix = matrix && matrix_supported();
    engine->bfloat16 = engine->matrix && bfloat16_supported();
    return engine;
}

#endif
