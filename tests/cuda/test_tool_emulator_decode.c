// SPDX-License-Identifier: Apache-2.0
// Decode's metadata that the host does not read, on the emulated device or, with TESSERA_TEST_DEVICE=cuda:0, on a GPU:
// bad sequences are counted, the others have the CPU's results, and nothing is accessed out of bounds.
#include "emulator_case.h"

#include <math.h>

#include "system/device_option.h"

enum { BATCH = 6, PAGE = 4, PAGES = 4, CAPACITY = PAGE * PAGES, DIM = 16, POSITIONS = 12 };

struct world {
    float q[BATCH][DIM], k_new[BATCH][DIM], v_new[BATCH][DIM];
    float k[BATCH * PAGES][PAGE][DIM], v[BATCH * PAGES][PAGE][DIM];
    float cos[CAPACITY][DIM / 2], sin[CAPACITY][DIM / 2], out[BATCH][DIM];
    int32_t lengths[BATCH], table[BATCH][PAGES], offsets[BATCH + 1], slots[BATCH], padding[BATCH];
    int32_t num_errors, guard;
};

static tsr_device device = {TSR_CUDA, 0};

static void fill(struct world *w) {
    uint64_t seed = 5;
    *w = (struct world){.num_errors = -1, .guard = 77};
    float *const from[] = {&w->q[0][0],    &w->k_new[0][0], &w->v_new[0][0], &w->k[0][0][0],
                           &w->v[0][0][0], &w->cos[0][0],   &w->sin[0][0]};
    const size_t bytes[] = {sizeof w->q, sizeof w->k_new, sizeof w->v_new, sizeof w->k,
                            sizeof w->v, sizeof w->cos,   sizeof w->sin};
    for (int i = 0; i < COUNT(from); i++)
        for (size_t j = 0; j < bytes[i] / sizeof(float); j++) from[i][j] = test_float(&seed) / 4;
    for (int b = 0; b < BATCH; b++) {
        w->lengths[b] = 2 + b;
        w->offsets[b + 1] = b + 1;
        w->slots[b] = b;
        for (int i = 0; i < PAGES; i++) w->table[b][i] = b * PAGES + i;
    }
}

// Changed metadata, and which sequences are bad with it.
struct bend {
    int32_t length; // of sequence 1; -100: unchanged
    int32_t page;   // first table entry of sequence 2
    int32_t unused; // last table entry of sequence 3, which is not read
    int32_t offset; // end of the last sequence; 0: the batch is not packed
    int positions;  // rows of the tables; the longest sequence has 2 + 5 + 1 keys
    int num_errors;
    unsigned bad;    // one bit per sequence
    bool has_slots;  // instead of pages; of sequence 2: page
    int32_t padding; // of sequence 1; 0: there is none
};

// Decodes one new token per sequence. The world is in the context's device memory.
static tsr_status decode(tsr_context *ctx, const char *variant, struct world *w, int positions,
                         const struct bend *bend) {
    tsr_attention_decode_args args =
        TSR_ATTENTION_DECODE_ARGS(.variant = variant, .mask = TSR_MASK_CAUSAL,
                                  .q = TSR_TENSOR(w->q, TSR_F32, BATCH, 1, 1, DIM),
                                  .k_new = TSR_TENSOR(w->k_new, TSR_F32, BATCH, 1, 1, DIM),
                                  .v_new = TSR_TENSOR(w->v_new, TSR_F32, BATCH, 1, 1, DIM),
                                  .k_cache = TSR_TENSOR(w->k, TSR_F32, BATCH * PAGES, PAGE, 1, DIM),
                                  .v_cache = TSR_TENSOR(w->v, TSR_F32, BATCH * PAGES, PAGE, 1, DIM),
                                  .cache_seqlens = TSR_TENSOR(w->lengths, TSR_I32, BATCH),
                                  .page_table = TSR_TENSOR(w->table, TSR_I32, BATCH, PAGES),
                                  .cos = TSR_TENSOR(w->cos, TSR_F32, positions, DIM / 2),
                                  .sin = TSR_TENSOR(w->sin, TSR_F32, positions, DIM / 2),
                                  .out = TSR_TENSOR(w->out, TSR_F32, BATCH, 1, 1, DIM),
                                  .num_errors = TSR_TENSOR(&w->num_errors, TSR_I32, 1));
    if (bend->has_slots) {
        args.k_cache = TSR_TENSOR(w->k, TSR_F32, BATCH, CAPACITY, 1, DIM);
        args.v_cache = TSR_TENSOR(w->v, TSR_F32, BATCH, CAPACITY, 1, DIM);
        args.page_table = (tsr_tensor){0};
        args.cache_batch_idx = TSR_TENSOR(w->slots, TSR_I32, BATCH);
    }
    if (bend->padding != 0) args.leftpad_k = TSR_TENSOR(w->padding, TSR_I32, BATCH);
    if (bend->offset != 0) {
        tsr_tensor *rows[] = {&args.q, &args.k_new, &args.v_new, &args.out};
        for (int i = 0; i < COUNT(rows); i++)
            *rows[i] = TSR_TENSOR(rows[i]->data, TSR_F32, BATCH, 1, DIM);
        args.cu_seqlens_q = TSR_TENSOR(w->offsets, TSR_I32, BATCH + 1);
        args.max_seqlen_q = 1;
    }
    tsr_tensor *all[] = {&args.q,
                         &args.k_new,
                         &args.v_new,
                         &args.k_cache,
                         &args.v_cache,
                         &args.cache_seqlens,
                         &args.page_table,
                         &args.cu_seqlens_q,
                         &args.cos,
                         &args.sin,
                         &args.out,
                         &args.num_errors,
                         &args.cache_batch_idx,
                         &args.leftpad_k};
    for (int i = 0; i < COUNT(all); i++) all[i]->device = tsr_context_device(ctx);
    return tsr_attention_decode(ctx, &args);
}

static void decode_on_device(tsr_context *ctx, const char *variant, struct world *w,
                             const struct bend *bend) {
    void *there;
    assert_ok(tsr_memory_alloc(ctx, sizeof *w, &there));
    assert_ok(tsr_memory_copy(ctx, there, w, sizeof *w));
    assert_ok(decode(ctx, variant, there, bend->positions, bend));
    assert_ok(tsr_memory_copy(ctx, w, there, sizeof *w));
    assert_ok(tsr_context_synchronize(ctx));
    assert_ok(tsr_memory_free(ctx, there));
}

static const struct bend bends[] = {
    {-100, 8, 13, 0, POSITIONS, 0, 0},
    {-1, 8, 13, 0, POSITIONS, 1, 1u << 1},
    {INT32_MIN, 8, -5, 0, POSITIONS, 1, 1u << 1},
    {CAPACITY, 8, 13, 0, CAPACITY, 1, 1u << 1},
    {CAPACITY + 1, 8, 13, 0, CAPACITY, 1, 1u << 1},
    {INT32_MAX, BATCH *PAGES, 1 << 30, 0, CAPACITY, 2, 1u << 1 | 1u << 2},
    {CAPACITY - 1, 8, 13, 0, CAPACITY, 0, 0}, // the last position
    {CAPACITY - 1, 8, 13, 0, CAPACITY - 1, 1, 1u << 1},
    {-100, -1, 13, 0, POSITIONS, 1, 1u << 2},
    {-100, 8, 13, 0, 7, 1, 1u << 5},
    {-100, 8, 13, 0, 6, 2, 1u << 4 | 1u << 5},
    {-100, 8, 13, BATCH, POSITIONS, 0, 0},
    {-100, 8, 13, BATCH + 3, POSITIONS, 1, 1u << 5},
    {-100, 8, 13, BATCH - 2, POSITIONS, 1, 1u << 5},
    {-100, 2, 0, 0, POSITIONS, 0, 0, .has_slots = true},
    {-100, -1, 0, 0, POSITIONS, 1, 1u << 2, .has_slots = true},
    {-100, BATCH, 0, 0, POSITIONS, 1, 1u << 2, .has_slots = true},
    {INT32_MAX, INT32_MIN, 0, 0, POSITIONS, 2, 1u << 1 | 1u << 2, .has_slots = true},
    {9, 8, 13, 0, 9, 0, 0, .padding = 1}, // the longest has 9 keys
    {9, 8, 13, 0, 8, 1, 1u << 1, .padding = 1},
    {9, 8, 13, 0, CAPACITY, 0, 0, .padding = 9},
    {9, 8, 13, 0, CAPACITY, 1, 1u << 1, .padding = 10},
    {9, 2, 13, 0, CAPACITY, 1, 1u << 1, .has_slots = true, .padding = -1},
    {9, 8, 13, 0, CAPACITY, 1, 1u << 1, .padding = INT32_MAX},
    {CAPACITY, 8, 13, BATCH, CAPACITY, 1, 1u << 1, .padding = INT32_MIN},
};

static void apply(struct world *w, const struct bend *bend) {
    fill(w);
    w->table[2][0] = bend->page, w->table[3][PAGES - 1] = bend->unused;
    if (bend->has_slots) w->slots[2] = bend->page;
    if (bend->length != -100) w->lengths[1] = bend->length;
    if (bend->offset != 0) w->offsets[BATCH] = bend->offset;
    w->padding[1] = bend->padding;
}

static void bad_sequences_are_counted(void **state) {
    (void)state;
    static const char *const variants[] = {NULL, "cuda-split", "cuda-naive"};
    static struct world good, w;
    tsr_context *host = test_context(1), *ctx;
    assert_ok(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = device), &ctx));
    for (int i = 0; i < COUNT(bends); i++)
        for (int v = 0; v < COUNT(variants); v++) {
            const struct bend *bend = &bends[i];
            apply(&w, bend);
            good = w; // without the bad metadata
            if (bend->bad & 1u << 1) good.lengths[1] = 3, good.padding[1] = 0;
            if (bend->bad & 1u << 2) good.table[2][0] = 8, good.slots[2] = 2;
            good.offsets[BATCH] = BATCH;
            tsr_status on_host = decode(host, NULL, &w, bend->positions, bend);
            assert_int_equal(on_host, bend->num_errors > 0 ? TSR_INVALID_ARGUMENT : TSR_OK);
            assert_int_equal(w.num_errors, bend->num_errors > 0 ? -1 : 0);
            apply(&w, bend);
            w.num_errors = -1;
            decode_on_device(ctx, variants[v], &w, bend);
            if (w.num_errors != bend->num_errors)
                fail_msg("case %d: num_errors is %d, expected %d", i, w.num_errors,
                         bend->num_errors);
            assert_int_equal(w.guard, 77);
            assert_ok(decode(host, NULL, &good, CAPACITY, bend));
            for (int j = 0; j < BATCH * DIM; j++)
                if ((bend->bad >> j / DIM & 1) == 0 &&
                    !(fabsf(w.out[j / DIM][j % DIM] - good.out[j / DIM][j % DIM]) <= 1e-5f))
                    fail_msg("case %d: out[%d][%d] is %g, expected %g", i, j / DIM, j % DIM,
                             (double)w.out[j / DIM][j % DIM], (double)good.out[j / DIM][j % DIM]);
        }
    tsr_context_destroy(ctx);
    tsr_context_destroy(host);
}

int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(bad_sequences_are_counted)};
    const char *name = getenv("TESSERA_TEST_DEVICE");
    if (name != NULL && device_parse("test", name, &device) >= 0) return 77;
    int skip = name == NULL ? emulator_start("test_tool_emulator_decode.log") : 0;
    return skip != 0 ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
