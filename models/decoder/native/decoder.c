/* One decode forward of a decoder-only transformer, from embedded rows to logits, on AVX-512 with VNNI.
 *
 * A step of one row is some two hundred small operations: calling them one by one takes as long as their work does.
 * Here they are phases of one call, shared by threads that stay awake until it ends. Each value is computed by one
 * thread, in an order that follows from its own row: the same request gives the same bytes whatever else runs, and
 * however many threads.
 */
#include "engine.h"
#include "pack.h"

enum epilogue { STORE, ADD, GATE };

struct product {
    const struct linear *linear;
    const float *x;       /* [any, inputs] */
    const float *norm;    /* [inputs] where rows are to be normed first, else NULL */
    float eps;
    const int32_t *which; /* [rows]: rows of x, or NULL: the first ones */
    int rows;
    int prompt; /* may be multiplied in bfloat16; without `which` */
    enum epilogue epilogue;
    float *y; /* [rows, outputs]; GATE: [rows, outputs / 2], silu(first half) · second half */
};

/* Row i of those that are multiplied, normed where that is asked for. */
static const float *entering(const struct product *p, int i, struct desk *desk)
{
    int inputs = p->linear->inputs;
    const float *row = p->x + (size_t)(p->which ? p->which[i] : i) * inputs;
    if (p->norm == NULL)
        return row;
    rms_norm(row, p->norm, inputs, p->eps, desk->row);
    return desk->row;
}

static void quantise(const struct product *p, struct desk *desk)
{
    for (int i = 0; i < p->rows; i++)
        quantise_row(entering(p, i, desk), p->linear->inputs, &desk->codes, i);
}

static __attribute__((target("avx512bf16"))) void narrow(const struct product *p, struct desk *desk)
{
    for (int i = 0; i < p->rows; i++)
        narrow_row(entering(p, i, desk), p->linear->inputs, i, desk->narrowed);
}

static void write_block(const struct product *p, int block, int row, int count, const __m512 *y)
{
    __mmask16 lanes = lanes_of(p->linear, block);
    for (int i = 0; i < count; i++) {
        float *out = p->y + (size_t)(row + i) * p->linear->outputs + block * LANES;
        __m512 value = p->epilogue == ADD ? _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), y[i]) : y[i];
        _mm512_mask_storeu_ps(out, lanes, value);
    }
}

static void write_gated(
    const struct product *p, int block, int blocks, int row, int count, const __m512 *gate, const __m512 *up)
{
    for (int i = 0; i < count; i++) {
        float *out = p->y + (size_t)(row + i) * blocks * LANES + block * LANES;
        _mm512_storeu_ps(out, _mm512_mul_ps(silu_ps(gate[i]), up[i]));
    }
}

/* A block of outputs, or of GATE's gates with theirs of the other half. */
static void int8_block(const struct engine *engine, const struct product *p, int block, int blocks, struct desk *desk)
{
    for (int row = 0, count; row < p->rows; row += count) {
        __m512 y[2][TILE_ROWS];
        count = tile_of(p->rows - row, engine->matrix);
        block_product(p->linear, block, &desk->codes, row, count, y[0]);
        if (p->epilogue == GATE) {
            block_product(p->linear, blocks + block, &desk->codes, row, count, y[1]);
            write_gated(p, block, blocks, row, count, y[0], y[1]);
        } else {
            write_block(p, block, row, count, y[0]);
        }
    }
}

/* Two blocks of outputs, but for the last of an odd number, in bfloat16; of GATE, one of gates with theirs of the other
 * half.
 */
static void bfloat16_pair(const struct product *p, int unit, int blocks, struct desk *desk)
{
    const struct linear *w = p->linear;
    int block[2] = {2 * unit, 2 * unit + 1}, pair = 2 * unit + 1 < blocks ? 2 : 1;
    if (p->epilogue == GATE) {
        block[0] = unit;
        block[1] = blocks + unit;
        pair = 2;
    }
    _Alignas(64) float sums[2][2][TILE_ROWS * LANES];
    for (int each = 0; each < pair; each++)
        expand_block(w, block[each], desk->expanded + (size_t)each * w->inputs * LANES);
    for (int row = 0; row < p->rows; row += PAIR_ROWS) {
        bfloat16_sums(desk->narrowed + (size_t)row * w->inputs, desk->expanded, w->inputs, sums[0][0]);
        for (int tile = 0, at = row; tile < 2 && at < p->rows; tile++, at += TILE_ROWS) {
            int count = p->rows - at < TILE_ROWS ? p->rows - at : TILE_ROWS;
            __m512 y[2][TILE_ROWS];
            for (int each = 0; each < pair; each++) {
                for (int i = 0; i < count; i++)
                    y[each][i] = _mm512_load_ps(sums[tile][each] + i * LANES);
                add_bias(w, block[each], count, y[each]);
                if (p->epilogue != GATE)
                    write_block(p, block[each], at, count, y[each]);
            }
            if (p->epilogue == GATE)
                write_gated(p, unit, blocks, at, count, y[0], y[1]);
        }
    }
}

/* Threads prepare the rows each for itself: that costs less than waiting for one that does it for all. */
static void linear_phase(struct engine *engine, struct phase *phase, int thread, const struct product *p)
{
    struct desk *desk = &engine->desks[thread];
    int bfloat16 = p->prompt && engine->bfloat16;
    int blocks = blocks_of(p->linear) / (p->epilogue == GATE ? 2 : 1);
    int units = bfloat16 && p->epilogue != GATE ? (blocks + 1) / 2 : blocks;
    int tasks = TASKS_PER_THREAD * engine->pool.threads;
    tasks = units < tasks ? units : tasks;
    int ready = 0;
    for (int task; (task = phase_claim(phase, tasks)) < tasks; phase_complete(phase, tasks)) {
        if (!ready)
            (bfloat16 ? narrow : quantise)(p, desk);
        ready = 1;
        int end = (int)((int64_t)units * (task + 1) / tasks);
        for (int unit = (int)((int64_t)units * task / tasks); unit < end; unit++)
            if (bfloat16)
                bfloat16_pair(p, unit, blocks, desk);
            else
                int8_block(engine, p, unit, blocks, desk);
    }
    phase_await(phase, tasks);
}

/* Give queries and keys their positions; put keys and values into the cache. A task a row. */
static void cache_phase(struct engine *engine, struct phase *phase, const struct decoder *decoder,
    const struct batch *batch, int layer)
{
    const struct shape *s = &decoder->shape;
    const float *ropes = batch->rope + decoder->layers[layer].rope * batch->rope_stride;
    int dim = s->head_dim, half = dim / 2, rotated = s->heads + s->kv_heads;
    size_t width = (size_t)(s->heads + 2 * s->kv_heads) * dim, slot_width = (size_t)2 * s->kv_heads * dim;
    for (int row; (row = phase_claim(phase, batch->rows)) < batch->rows; phase_complete(phase, batch->rows)) {
        float *qkv = engine->qkv + row * width;
        const float *rope = ropes + (size_t)row * 3 * half, *norm = decoder->layers[layer].qk_norm;
        for (int head = 0; head < rotated; head++) {
            if (norm != NULL)
                rms_norm(qkv + head * dim, norm + head * dim, dim, s->eps, qkv + head * dim);
            rotate(qkv + head * dim, rope, rope + 2 * half, half);
        }
        int position = batch->lengths[row] - 1;
        size_t slot = (size_t)batch->tables[batch->starts[row] + position / BLOCK] * BLOCK + position % BLOCK;
        uint16_t *out = batch->cache + ((size_t)layer * batch->slots + slot) * slot_width;
        for (size_t i = 0; i < slot_width; i += 16)
            to_bf16(_mm512_loadu_ps(qkv + s->heads * dim + i), out + i);
    }
    phase_await(phase, batch->rows);
}

/* A task a span of rows and the query heads that share keys and values. All of these are in the cache by now, those of
 * the batch's own rows too.
 */
static void attention_phase(struct engine *engine, struct phase *phase, int thread, const struct decoder *decoder,
    const struct batch *batch, int layer)
{
    const struct shape *s = &decoder->shape;
    int dim = s->head_dim, group = s->heads / s->kv_heads, tasks = engine->num_spans * s->kv_heads;
    size_t width = (size_t)(s->heads + 2 * s->kv_heads) * dim, stride = (size_t)2 * s->kv_heads * dim;
    size_t out_width = (size_t)s->heads * dim;
    int window = decoder->layers[layer].window;
    const uint16_t *cache = batch->cache + (size_t)layer * batch->slots * stride;
    for (int task; (task = phase_claim(phase, tasks)) < tasks; phase_complete(phase, tasks)) {
        const struct span *span = &engine->spans[task / s->kv_heads];
        int head = task % s->kv_heads, length = batch->lengths[span->row];
        /* Whole blocks before the first row's window are left out. */
        int skipped = length > window ? (length - window) / BLOCK : 0;
        const uint16_t *keys = cache + head * dim, *values = keys + s->kv_heads * dim;
        struct queries queries = {
            .first = engine->qkv + span->row * width + (size_t)head * group * dim,
            .out = engine->attended + span->row * out_width + (size_t)head * group * dim,
            .row_stride = width,
            .out_stride = out_width,
            .rows = span->rows,
            .group = group,
            .length = length - skipped * BLOCK,
            .window = window,
        };
        const int32_t *table = batch->tables + batch->starts[span->row] + skipped;
        attend(&queries, keys, values, stride, table, dim, engine->desks[thread].scores,
            engine->scores / (group > MOST_SHARED ? group : MOST_SHARED));
    }
    phase_await(phase, tasks);
}

/* Add to the residuals behind a layer. A task a row. */
static void add_phase(struct phase *phase, const struct batch *batch, int hidden, int layer)
{
    const float *added = batch->added + layer * batch->added_stride;
    for (int i; (i = phase_claim(phase, batch->added_rows)) < batch->added_rows;
         phase_complete(phase, batch->added_rows)) {
        float *out = batch->hidden + (size_t)batch->added_to[i] * hidden;
        for (int j = 0; j < hidden; j++)
            out[j] += added[(size_t)i * hidden + j];
    }
    phase_await(phase, batch->added_rows);
}

/* Rows at consecutive positions of one sequence, few enough that their queries share a pass over keys and values. */
static void find_spans(struct engine *engine, const struct decoder *decoder, const struct batch *batch)
{
    int group = decoder->shape.heads / decoder->shape.kv_heads;
    int most = MOST_SHARED / group > 1 ? MOST_SHARED / group : 1;
    engine->num_spans = 0;
    for (int row = 0; row < batch->rows; row++) {
        struct span *last = engine->num_spans > 0 ? &engine->spans[engine->num_spans - 1] : NULL;
        if (last != NULL && last->rows < most && batch->starts[row] == batch->starts[row - 1] &&
            batch->lengths[row] == batch->lengths[row - 1] + 1)
            last->rows++;
        else
            engine->spans[engine->num_spans++] = (struct span){row, 1};
    }
}

struct forward {
    struct engine *engine;
    const struct decoder *decoder;
    const struct batch *batch;
};

static void run_forward(void *argument, int thread)
{
    const struct forward *f = argument;
    struct engine *engine = f->engine;
    const struct decoder *decoder = f->decoder;
    const struct batch *batch = f->batch;
    float eps = decoder->shape.eps, *hidden = batch->hidden;
    int rows = batch->rows, prompt = batch->prompt;
    struct phase *phase = engine->phases;
    if (engine->matrix)
        matrix_open(prompt && engine->bfloat16 ? &BFLOAT16_SHAPES : &TILE_SHAPES);
    for (int i = 0; i < decoder->shape.layers; i++) {
        const struct layer *layer = &decoder->layers[i];
        struct product qkv = {&layer->qkv, hidden, layer->attention_norm, eps, NULL, rows, prompt, STORE, engine->qkv};
        struct product output = {&layer->output, engine->attended, NULL, eps, NULL, rows, prompt, ADD, hidden};
        struct product gate_up = {
            &layer->gate_up, hidden, layer->mlp_norm, eps, NULL, rows, prompt, GATE, engine->activated};
        struct product down = {&layer->down, engine->activated, NULL, eps, NULL, rows, prompt, ADD, hidden};
        linear_phase(engine, phase++, thread, &qkv);
        cache_phase(engine, phase++, decoder, batch, i);
        attention_phase(engine, phase++, thread, decoder, batch, i);
        linear_phase(engine, phase++, thread, &output);
        linear_phase(engine, phase++, thread, &gate_up);
        linear_phase(engine, phase++, thread, &down);
        if (i < batch->added_layers && batch->added_rows > 0)
            add_phase(phase++, batch, decoder->shape.hidden, i);
    }
    if (batch->wanted_rows > 0) {
        struct product head = {
            &decoder->head, hidden, decoder->norm, eps, batch->wanted, batch->wanted_rows, 0, STORE, batch->logits};
        if (engine->matrix)
            matrix_open(&TILE_SHAPES);
        linear_phase(engine, phase, thread, &head);
    }
    if (engine->matrix)
        matrix_close();
}

/* --- what Python calls -------------------------------------------------------------------------------------------- */

const struct limits native_limits = {
    MOST_ROWS, MOST_HEAD_DIM, MOST_QUERIES, BLOCK, GROUP, LANES, INT4_BYTES, INT8_BYTES,
    (int32_t)sizeof(struct layer), (int32_t)sizeof(struct batch)};

int native_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

int native_matrix(void)
{
    return matrix_supported() && bfloat16_supported();
}

/* 0 where there is no memory. */
int engine_forward(struct engine *engine, const struct decoder *decoder, const struct batch *batch)
{
    if (!reserve_forward(engine, decoder, batch))
        return 0;
    memset(engine->phases, 0, engine->num_phases * sizeof(struct phase));
    find_spans(engine, decoder, batch);
    struct forward forward = {engine, decoder, batch};
    pool_run(&engine->pool, run_forward, &forward);
    return 1;
}

struct matmul {
    struct engine *engine;
    struct product product;
};

static void run_matmul(void *argument, int thread)
{
    const struct matmul *matmul = argument;
    if (matmul->engine->matrix)
        matrix_open(matmul->product.prompt && matmul->engine->bfloat16 ? &BFLOAT16_SHAPES : &TILE_SHAPES);
    linear_phase(matmul->engine, matmul->engine->phases, thread, &matmul->product);
    if (matmul->engine->matrix)
        matrix_close();
}

/* y = x · Wᵀ + b. x: [rows, inputs]; y: [rows, outputs]. `prompt`: as in a batch. 0 where there is no memory. */
int engine_matmul(
    struct engine *engine, const struct linear *linear, const float *x, int rows, int prompt, float *y)
{
    if (!reserve(engine, linear->inputs, 0, 1))
        return 0;
    for (int row = 0; row < rows; row += MOST_ROWS) {
        struct product part = {.linear = linear, .x = x + (size_t)row * linear->inputs,
            .rows = rows - row < MOST_ROWS ? rows - row : MOST_ROWS, .prompt = prompt, .epilogue = STORE,
            .y = y + (size_t)row * linear->outputs};
        struct matmul matmul = {engine, part};
        memset(engine->phases, 0, sizeof(struct phase));
        pool_run(&engine->pool, run_matmul, &matmul);
    }
    return 1;
}
