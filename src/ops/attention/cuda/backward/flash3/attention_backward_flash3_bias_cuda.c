// SPDX-License-Identifier: Apache-2.0
// The bias of cuda-flash3's backward: its map, and dbias. If each element of dbias is the gradient of one score, the kernel of
// keys writes them, and another kernel writes zeros where the first does not come. If batches or heads share elements, a separate
// kernel sums them. If all queries share one row, the kernel of keys sums over queries, and a small kernel sums over batches and
// heads.
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_bias_cuda.h"

#include "cuda/cuda_tensor_map.h"

enum { PIECE_BYTES = 16, FEW_ROWS = 64, HIDDEN_THREADS = 256, ROW_THREADS = 256 };
static const char op[] = "attention_backward";

bool attention_backward_has_bias_map(const struct attention_problem *p) {
    struct tsri_tensor_map_args args;
    struct attention_bias_map unused;
    return attention_cuda_map_bias(&p->bias, p->seqlen_k, FEW_ROWS, &args, &unused);
}

// Whether each element of dbias is one gradient and the copy engine can store it. It stores whole pieces of 16 bytes and must not
// write beyond a row.
static bool has_own(const struct attention_problem *p) {
    const int64_t full[] = {p->num_batches, p->num_heads_q, p->seqlen_q};
    struct tsri_tensor_map_args args;
    struct attention_bias_map unused;
    if (p->dbias.data == NULL || p->seqlen_q < 2 ||
        p->seqlen_k * (int64_t)tsr_dtype_bytes(p->dbias.dtype) % PIECE_BYTES != 0)
        return false;
    for (int d = 0; d < 3; d++)
        if (p->dbias.shape[d] != full[d]) return false;
    return p->dbias.shape[3] == p->seqlen_k &&
           attention_cuda_map_bias(&p->dbias, p->seqlen_k, FEW_ROWS, &args, &unused);
}

static bool has_rows(const struct attention_problem *p) {
    return p->dbias.data != NULL && p->dbias.shape[2] == p->seqlen_q;
}

// One row for all queries. It has a column for each key, as the bias has a map.
int64_t attention_backward_dbias_sums(const struct attention_problem *p) {
    return p->dbias.data == NULL || has_rows(p) ? 0 : p->num_batches * p->num_heads_q * p->seqlen_k;
}

bool attention_backward_flash3_has_dbias(const struct attention_problem *p) {
    return p->dbias.data != NULL;
}

tsr_status attention_backward_set_bias(tsr_context *ctx, const struct attention_problem *p,
                                       int rows, struct attention_flash3_bias *to) {
    const struct tsri_cuda_queue *queue = tsri_context_queue(ctx);
    struct tsri_tensor_map_args args;
    struct attention_bias_map map;
    (void)attention_cuda_map_bias(&p->bias, p->seqlen_k, rows, &args, &map);
    to->head = map.head;
    to->batch = map.batch;
    to->rows = map.rows;
    TSRI_TRY(tsri_cuda_queue_map(op, queue, &args, &to->map));
    to->has_dbias = has_own(p);
    if (!to->has_dbias) return TSR_OK;
    (void)attention_cuda_map_bias(&p->dbias, p->seqlen_k, rows, &args, &map);
    return tsri_cuda_queue_map(op, queue, &args, &to->dbias);
}

// ---- What is launched behind --------------------------------------------------------------------

// Whether there may be tiles that the kernel of keys skips.
static bool has_hidden(const struct attention_problem *p) {
    return p->mask != TSR_MASK_NONE || p->has_window_left || p->has_window_right || p->is_packed ||
           p->seqused_k != NULL;
}

static struct tsri_cuda_program hidden_program(void) {
    return (struct tsri_cuda_program){
        .source = "ops/attention/cuda/backward/attention_backward_bias_hidden.cu",
        .entry = "attention_backward_bias_hidden"};
}

static struct tsri_cuda_program sums_program(tsr_dtype dtype, int64_t head_dim, bool is_f32) {
    struct tsri_cuda_program program =
        attention_cuda_program("ops/attention/cuda/backward/flash3/attention_backward_bias_sm90.cu",
                               "attention_backward_bias_sm90", dtype);
    attention_cuda_define(&program, "HEAD_DIM", head_dim);
    attention_cuda_define(&program, "IS_F32", is_f32);
    return program;
}

static struct tsri_cuda_program row_program(void) {
    return (struct tsri_cuda_program){
        .source = "ops/attention/cuda/backward/attention_backward_bias_row.cu",
        .entry = "attention_backward_bias_row"};
}

bool attention_backward_dbias_kernel(int *index, struct tsri_cuda_program *program) {
    static const struct {
        int head_dim;
        bool is_f32;
    } sums[] = {{64, false}, {128, false}, {128, true}};
    for (int i = 0; i < 2 * TSRI_COUNT(sums) + 2; i++)
        if ((*index)-- == 0) {
            *program = i == 2 * TSRI_COUNT(sums) ? hidden_program()
                       : i > 2 * TSRI_COUNT(sums)
                           ? row_program()
                           : sums_program(i % 2 ? TSR_F16 : TSR_BF16, sums[i / 2].head_dim,
                                          sums[i / 2].is_f32);
            program->is_rare = true;
            return true;
        }
    return false;
}

int attention_backward_dbias_programs(const struct attention_problem *p, int64_t head_dim,
                                      struct tsri_cuda_program *programs) {
    if (p->dbias.data == NULL || (has_own(p) && !has_hidden(p))) return 0;
    programs[0] = has_own(p)     ? hidden_program()
                  : !has_rows(p) ? row_program()
                                 : sums_program(p->dtype, head_dim, p->dbias.dtype == TSR_F32);
    return 1;
}

tsr_status attention_backward_finish_dbias(tsr_context *ctx, const struct attention_problem *p,
                                           struct attention_backward_flash3_params params) {
    const int64_t *shape = p->dbias.shape;
    struct tsri_cuda_program program;
    if (attention_backward_dbias_programs(p, params.tile_dims, &program) == 0) return TSR_OK;
    if (has_own(p)) {
        params.b.num_tiles = (int)tsri_ceil_div(p->seqlen_k, FLASH3_OWNED);
        params.b.num_tasks = p->num_batches * p->num_heads_q * params.b.num_tiles;
        return attention_cuda_launch(ctx, op, &program, params.b.num_tasks, HIDDEN_THREADS, 0,
                                     &params);
    }
    if (!has_rows(p)) {
        params.b.num_tiles = (int)tsri_ceil_div(shape[3], FLASH3_ROW_KEYS);
        params.b.num_tasks = shape[0] * shape[1] * params.b.num_tiles;
        return attention_cuda_launch(ctx, op, &program, params.b.num_tasks, ROW_THREADS, 0,
                                     &params);
    }
    TSRI_TRY(attention_backward_set_bias(ctx, p, FLASH3_OWNED, &params.bias));
    const int64_t tiles = shape[0] * shape[1] * tsri_ceil_div(shape[2], FLASH3_OWNED) *
                          tsri_ceil_div(shape[3], FLASH3_OWNED);
    const bool is_f32 = p->dbias.dtype == TSR_F32;
    return attention_cuda_launch(ctx, op, &program, tiles, FLASH3_THREADS,
                                 params.tile_dims == 64 ? FLASH3_DBIAS_SHARED_BYTES(64, is_f32)
                                                        : FLASH3_DBIAS_SHARED_BYTES(128, is_f32),
                                 &params);
}
