// SPDX-License-Identifier: Apache-2.0
// Backward of long heads by Hopper's asynchronous products, one gradient at a time: a block owns 128 rows of it, 64 for each of two
// warpgroups, whose sums fill the registers, and goes through tiles of 64 rows that one thread copies. Blocks of dq, which have the
// most to do, come first. The scores are computed anew for every gradient; in return nothing is summed in memory, and weights and
// gradients of scores never leave the registers.
// Floor: five products, 6 head_dim + 4 head_dim_v FLOPs for each visible pair of query and key; this does eight, 10 head_dim + 6
// head_dim_v, as registers do not hold dk and dv of 64 keys.
// Figures: docs/kernels/attention_backward_cuda.md.
// The host defines
//     DTYPE, HEAD_DIM (of q, k), HEAD_DIM_V (of v, dout): 192 and 128, or 256 both
#include "cuda/device/tma.cuh"
#include "cuda/device/wgmma.cuh"
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

// The gradient of which a block owns rows: dv, dk or dq. A literal, in functions that are compiled for each of them.
//         owned       passing     sums
//     dv  k           q, dout     weights^T dout
//     dk  k, v        q, dout     gradients of scores^T q
//     dq  q, dout     k, v        gradients of scores k
// Numbers that are not finite, in rows that are summed over, would leak through weights of 0. In tiles in which some pairs do not
// see each other such pieces become 0, and everything that their row's pairs add becomes NaN.
#define OF_VALUES 0
#define OF_KEYS 1
#define OF_QUERIES 2
#define IS_OF_QUERIES (of == OF_QUERIES)
#define HAS_GRADS (of != OF_VALUES)

enum {
    OWNED = FLASH3_OWNED,
    PASSING = FLASH3_DEEP_PASSING,
    THREADS = FLASH3_THREADS,
    SCORES = PASSING / 8, // groups of 8 columns
    SUMS = HEAD_DIM / 8,
    PIECES = HEAD_DIM / 8,
    OWNED_SLAB = OWNED * 128, // bytes of 64 columns
    PASSING_SLAB = PASSING * 128,
    // First: of q or k; second: of v or dout.
    FIRST_SLABS = HEAD_DIM / 64,
    SECOND_SLABS = HEAD_DIM_V / 64,
    FIRST_OWNED_BYTES = OWNED_SLAB * FIRST_SLABS,
    SECOND_OWNED_BYTES = OWNED_SLAB * SECOND_SLABS,
    FIRST_BYTES = PASSING_SLAB * FIRST_SLABS,
    SECOND_BYTES = PASSING_SLAB * SECOND_SLABS,
    FIRST_STAGES = 2,
    HAS_ROOM = HEAD_DIM < 256, // for a second stage of second passing rows

    FIRST_OWNED_AT = 0,
    SECOND_OWNED_AT = FIRST_OWNED_BYTES,
    FIRST_AT = SECOND_OWNED_AT + SECOND_OWNED_BYTES,
    SECOND_AT = FIRST_AT + FIRST_STAGES * FIRST_BYTES,
    LSE_AT = SECOND_AT + (1 + HAS_ROOM) * SECOND_BYTES, // of two stages of passing queries
    DELTA_AT = LSE_AT + 2 * PASSING * 4,
    MARKS_AT = DELTA_AT + 2 * PASSING * 4,
    BARRIERS_AT = MARKS_AT + 2 * PASSING * 4,
    OWNED_ARE_THERE = BARRIERS_AT,
    FIRST_IS_THERE = BARRIERS_AT + 8, // of each stage
    FIRST_IS_FREE = FIRST_IS_THERE + 16,
    SECOND_IS_THERE = FIRST_IS_FREE + 16,
    SECOND_IS_FREE = SECOND_IS_THERE + 16,
    END_AT = SECOND_IS_FREE + 16,
};
static_assert(END_AT <= FLASH3_DEEP_SHARED_BYTES, "shared memory that the host asks for");

extern __shared__ __align__(1024) unsigned char memory[];
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3.cuh"

// Stages of second passing rows. dv owns one tile less and has a stage in its place, unless there is room for another stage.
#define SECOND_STAGES (HAS_GRADS && !HAS_ROOM ? 1 : 2)
DEVICE unsigned second_at(int stage) {
    return stage == 0 ? SECOND_AT : HAS_ROOM ? SECOND_AT + SECOND_BYTES : SECOND_OWNED_AT;
}

// ---- Work -------------------------------------------------------------------------------------

// The task of a block, in shared memory. One thread sets it.
struct work {
    struct attention_sequence s;
    int of, batch;
    int head, own_head;         // the first passing head; the owned head
    int first, seen, end;       // owned rows; from `seen` on they see nothing
    int begin, last, num_steps; // passing rows of the first and last tile
    int num_rows;               // passing rows of the sequence
    long long own_row, row;     // of the two sequences in the tensors
};

DEVICE void set_work(const struct attention_backward_deep_params *f, struct work *w) {
    const struct attention_params *p = &f->b.p;
    unsigned index = blockIdx.x;
    int of = OF_QUERIES;
    for (; of > 0 && index >= f->num_blocks[of]; of--) index -= f->num_blocks[of];
    w->of = of;
    const int num_heads = IS_OF_QUERIES ? p->num_heads_q : p->num_heads_kv;
    const int num_tiles = IS_OF_QUERIES ? f->num_query_tiles : f->b.num_tiles;
    unsigned of_section = (unsigned)(f->section * num_tiles);
    unsigned section = index / of_section, rest = index - section * of_section;
    unsigned first_head = section * f->section;
    unsigned heads = (unsigned)(p->num_batches * num_heads) - first_head;
    if (heads > (unsigned)f->section) heads = f->section;
    const int head = (int)(first_head + rest % heads);
    // Under a causal mask the first keys and the last queries have the most work, so they come first.
    const int tile = (int)(rest / heads);
    w->first = (IS_OF_QUERIES ? num_tiles - 1 - tile : tile) * OWNED;
    w->own_head = head % num_heads;
    w->head = IS_OF_QUERIES ? w->own_head / p->group : w->own_head * p->group;
    w->batch = head / num_heads;
    const struct attention_sequence s = attention_sequence_at(p, w->batch);
    w->s = s;
    w->num_steps = 0;
    w->seen = w->end = IS_OF_QUERIES ? s.len_q : s.len_k;
    if (!IS_OF_QUERIES && !p->is_packed) w->end = p->seqlen_k;
    w->own_row = IS_OF_QUERIES ? s.q_first : s.k_first;
    w->row = IS_OF_QUERIES ? s.k_first : s.q_first;
    w->num_rows = IS_OF_QUERIES ? s.len_k : s.len_q;
    if (w->first >= w->seen) return;
    const int last_owned = w->first + OWNED < w->seen ? w->first + OWNED - 1 : w->seen - 1;
    int begin = IS_OF_QUERIES ? attention_first_key(p, &s, w->first)
                              : attention_first_query(p, &s, w->first);
    int end = IS_OF_QUERIES ? attention_end_key(p, &s, last_owned)
                            : attention_end_query(p, &s, last_owned);
    if (end <= begin) return;
    w->begin = begin / PASSING * PASSING;
    w->last = (end - 1) / PASSING * PASSING;
    w->num_steps = ((w->last - w->begin) / PASSING + 1) * (IS_OF_QUERIES ? 1 : p->group);
}

// ---- Copies -----------------------------------------------------------------------------------

// An elected thread of a warp copies.
DEVICE void copy_tiles(const struct attention_backward_deep_params *f, const struct work *w,
                       unsigned base, int of) {
    const struct attention_params *p = &f->b.p;
    const struct tensor_map *first = IS_OF_QUERIES ? &f->passing.k : &f->passing.q,
                            *second = IS_OF_QUERIES ? &f->passing.v : &f->passing.dout;
    const int batch = p->is_packed ? 0 : w->batch, is_elected = elect_one();
    int at = w->begin, head = w->head;
    if (is_elected)
        barrier_expect(base + OWNED_ARE_THERE,
                       FIRST_OWNED_BYTES + (HAS_GRADS ? SECOND_OWNED_BYTES : 0));
    load_rows(base + FIRST_OWNED_AT, IS_OF_QUERIES ? &f->owned.q : &f->owned.k, FIRST_SLABS,
              OWNED_SLAB, w->own_row + w->first, w->own_head, batch, base + OWNED_ARE_THERE,
              is_elected);
    if (HAS_GRADS)
        load_rows(base + SECOND_OWNED_AT, IS_OF_QUERIES ? &f->owned.dout : &f->owned.v,
                  SECOND_SLABS, OWNED_SLAB, w->own_row + w->first, w->own_head, batch,
                  base + OWNED_ARE_THERE, is_elected);
#pragma unroll 1
    for (int n = 0; n < w->num_steps; n++) {
        const int stage = n % FIRST_STAGES, second_stage = n % SECOND_STAGES;
        const unsigned there = base + FIRST_IS_THERE + 8 * stage,
                       second_there = base + SECOND_IS_THERE + 8 * second_stage;
        barrier_wait(base + FIRST_IS_FREE + 8 * stage, n / FIRST_STAGES & 1 ^ 1);
        if (is_elected) barrier_expect(there, FIRST_BYTES + (IS_OF_QUERIES ? 0 : 2 * PASSING * 4));
        load_rows(base + FIRST_AT + stage * FIRST_BYTES, first, FIRST_SLABS, PASSING_SLAB,
                  w->row + at, head, batch, there, is_elected);
        if (!IS_OF_QUERIES && is_elected) {
            const long long row = statistics_at(&f->b, &w->s, w->batch, head) + at;
            bulk_load(base + LSE_AT + stage * PASSING * 4, f->b.lse + row, PASSING * 4, there);
            bulk_load(base + DELTA_AT + stage * PASSING * 4, f->b.delta + row, PASSING * 4, there);
        }
        barrier_wait(base + SECOND_IS_FREE + 8 * second_stage, n / SECOND_STAGES & 1 ^ 1);
        if (is_elected) barrier_expect(second_there, SECOND_BYTES);
        load_rows(base + second_at(second_stage), second, SECOND_SLABS, PASSING_SLAB, w->row + at,
                  head, batch, second_there, is_elected);
        at += PASSING;
        if (at > w->last) {
            at = w->begin;
            head++;
        }
    }
}

// ---- Products ---------------------------------------------------------------------------------

// c = owned passing^T, over the given columns: 64 rows times the passing rows.
DEVICE void issue_scores(float (*c)[4], unsigned owned, unsigned passing, int columns) {
    unsigned long long a = wgmma_tile(owned, 16), b = wgmma_tile(passing, 16);
#pragma unroll
    for (int d = 0; d < columns / 16; d++)
        wgmma_shared_64(c, a + WGMMA_STEP(d / 4 * OWNED_SLAB + d % 4 * 32),
                        b + WGMMA_STEP(d / 4 * PASSING_SLAB + d % 4 * 32), d > 0);
}

// sums += weights passing, over the given columns.
DEVICE void issue_sums(float (*sums)[4], const unsigned (*weights)[4], unsigned passing,
                       int columns) {
    unsigned long long b = wgmma_tile(passing, PASSING_SLAB);
#pragma unroll
    for (int n = 0; n < PASSING / 16; n++) {
        const unsigned long long more = b + WGMMA_STEP(2 * PASSING_SLAB + n * 2048);
        wgmma_registers_128(sums, weights[n], b + WGMMA_STEP(n * 2048));
        if (columns == 192) wgmma_registers_64(sums + 16, weights[n], more);
        if (columns == 256) wgmma_registers_128(sums + 16, weights[n], more);
    }
}

DEVICE void mask_tile(unsigned (*a)[4], const struct attention_params *p, const struct work *w,
                      int at, int of) {
    const int thread = (int)thread_now() - 128, col = thread % 4 * 2;
    const int row = w->first + thread / 32 * 16 + thread % 32 / 4;
    const int back = IS_OF_QUERIES ? p->window_left : p->window_right,
              forth = IS_OF_QUERIES ? p->window_right : p->window_left;
    const int diagonal = row + (IS_OF_QUERIES ? w->s.shift : -w->s.shift) - at - col;
    mask(a, see(diagonal - back, diagonal + forth + 1, w->num_rows - at - col, row < w->seen,
                row + 8 < w->seen));
}

// Whether some pair of the tile does not see each other.
DEVICE int is_edge_tile(const struct attention_params *p, const struct work *w, int at, int of) {
    const int back = IS_OF_QUERIES ? p->window_left : p->window_right,
              forth = IS_OF_QUERIES ? p->window_right : p->window_left;
    const int diagonal = w->first + (IS_OF_QUERIES ? w->s.shift : -w->s.shift) - at;
    return diagonal + OWNED - 1 - back > 0 || diagonal + forth < PASSING - 1 ||
           at + PASSING > w->num_rows || w->first + OWNED > w->seen;
}

// lse and delta of a thread's two rows.
struct rows {
    float lse2[2], delta[2];
};
DEVICE void weigh_rows(float (*s)[4], const struct rows *rows, float scale) {
#pragma unroll
    for (int n = 0; n < SCORES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[n][c] = exp2_fast(s[n][c] * scale - rows->lse2[c / 2]);
}
DEVICE void differentiate_rows(float (*g)[4], const float (*weights)[4], const struct rows *rows) {
#pragma unroll
    for (int n = 0; n < SCORES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) g[n][c] = weights[n][c] * (g[n][c] - rows->delta[c / 2]);
}
// marks: for each passing row 0 or NaN.
DEVICE void spread_marks(float (*g)[4], const float *marks) {
    marks += thread_now() % 4 * 2;
#pragma unroll
    for (int n = 0; n < SCORES; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) g[n][c] += marks[n * 8 + c % 2];
}

DEVICE void multiply_tiles(const struct attention_backward_deep_params *f, const struct work *w,
                           unsigned base, int warp, int of) {
    const struct attention_params *p = &f->b.p;
    const int thread = threadIdx.x - 128, lane = threadIdx.x % 32;
    const unsigned own_first = base + FIRST_OWNED_AT + warp / 4 * 64 * 128,
                   own_second = base + SECOND_OWNED_AT + warp / 4 * 64 * 128;
    int at = w->begin;
    float s[SCORES][4], g[SCORES][4], sums[SUMS][4];
    unsigned a[4][4];
#pragma unroll
    for (int n = 0; n < SUMS; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) sums[n][c] = 0;
    if (w->num_steps > 0) {
        struct rows rows;
        barrier_wait(base + OWNED_ARE_THERE, 0);
        if (IS_OF_QUERIES) {
            const long long row = statistics_at(&f->b, &w->s, w->batch, w->own_head) + w->first +
                                  warp * 16 + lane / 4;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                rows.lse2[half] = f->b.lse[row + half * 8] * LOG2_E;
                rows.delta[half] = f->b.delta[row + half * 8];
            }
        }
        WGMMA_HOLD(sums, SUMS);
#pragma unroll 1
        for (int n = 0; n < w->num_steps; n++) {
            const int stage = n % FIRST_STAGES, second_stage = n % SECOND_STAGES;
            const unsigned first = FIRST_AT + stage * FIRST_BYTES;
            const unsigned second = SECOND_STAGES == 1 ? SECOND_AT : second_at(second_stage);
            const unsigned summed = HAS_GRADS ? first : second; // the tile that is summed over
            const int columns = HAS_GRADS ? HEAD_DIM : HEAD_DIM_V,
                      summed_bytes = PASSING * columns * 2;
            const unsigned statistics = base + LSE_AT + stage * PASSING * 4 + lane % 4 * 8;
            barrier_wait(base + FIRST_IS_THERE + 8 * stage, n / FIRST_STAGES & 1);
            WGMMA_FORGET(s, SCORES);
            WGMMA_BEGIN();
            issue_scores(s, own_first, base + first, HEAD_DIM);
            WGMMA_COMMIT();
            barrier_wait(base + SECOND_IS_THERE + 8 * second_stage, n / SECOND_STAGES & 1);
            const float *marks = 0;
            const int is_edge = is_edge_tile(p, w, at, of);
            if (is_edge) {
                float *found =
                    (float *)(memory + (IS_OF_QUERIES ? MARKS_AT : LSE_AT)) + stage * PASSING;
                if (any_worker(search_rows(memory + summed, summed_bytes, thread))) {
                    marks = found;
                    if (IS_OF_QUERIES) {
                        if (thread < PASSING) found[thread] = 0;
                        workers_meet();
                    }
                    clean_rows(memory + summed, summed_bytes, PASSING, found, thread);
                    WGMMA_SEE_SHARED();
                    workers_meet();
                }
            }
            if (HAS_GRADS) {
                WGMMA_FORGET(g, SCORES);
                WGMMA_BEGIN();
                issue_scores(g, own_second, base + second, HEAD_DIM_V);
                WGMMA_COMMIT();
                WGMMA_WAIT(1);
            } else {
                WGMMA_WAIT(0);
            }
            WGMMA_HOLD(s, SCORES);
            // The last products of the sums are complete too.
            if (lane == 0 && n > 0)
                barrier_arrive(base + (HAS_GRADS ? FIRST_IS_FREE : SECOND_IS_FREE) +
                               8 * (stage ^ 1));
            if (IS_OF_QUERIES)
                weigh_rows(s, &rows, f->scale_log2);
            else
                weigh(s, statistics, f->scale_log2);
            if (HAS_GRADS) {
                WGMMA_WAIT(0);
                WGMMA_HOLD(g, SCORES);
                if (lane == 0) barrier_arrive(base + SECOND_IS_FREE + 8 * second_stage);
                if (IS_OF_QUERIES) {
                    differentiate_rows(g, s, &rows);
                    if (marks != 0) spread_marks(g, marks);
                } else {
                    differentiate(g, s, statistics + (DELTA_AT - LSE_AT), 1);
                }
                pack(a, g);
            } else {
                pack(a, s);
            }
            if (is_edge) mask_tile(a, p, w, at, of);
            WGMMA_BEGIN();
            issue_sums(sums, a, base + summed, columns);
            if (!HAS_GRADS && lane == 0)
                barrier_arrive(base + FIRST_IS_FREE + 8 * stage); // also frees its statistics
            WGMMA_COMMIT();
            at = at < w->last ? at + PASSING : w->begin;
        }
        WGMMA_WAIT(0);
        WGMMA_HOLD(sums, SUMS);
        workers_meet(); // owned rows are no longer read
    }
    const struct attention_tensor *to = of == OF_VALUES ? &p->dv : of == OF_KEYS ? &p->dk : &p->dq;
    store_sums(sums, of == OF_VALUES ? 1 : p->softmax_scale,
               base + FIRST_OWNED_AT + warp * 16 * 128, to->data,
               attention_at(to, w->batch, w->own_row, w->own_head), to->seq, w->first + warp * 16,
               w->seen, w->end, of == OF_VALUES ? p->head_dim_v : p->head_dim);
}

// ---- The kernel -------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attention_backward_deep(const __grid_constant__ struct attention_backward_deep_params f) {
    __shared__ struct work work;
    const unsigned base = shared_address(memory);
    const int warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        set_work(&f, &work);
        barrier_start(base + OWNED_ARE_THERE, 1);
        for (int i = 0; i < 2; i++) {
            barrier_start(base + FIRST_IS_THERE + 8 * i, 1);
            barrier_start(base + SECOND_IS_THERE + 8 * i, 1);
            barrier_start(base + FIRST_IS_FREE + 8 * i, WORKERS / 32);
            barrier_start(base + SECOND_IS_FREE + 8 * i, WORKERS / 32);
        }
        barrier_publish_starts();
    }
    __syncthreads();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp > 0) return;
        wait_for_primary(); // also without steps: later kernels rely on earlier ones
        if (work.num_steps == 0) return;
        if (work.of == OF_VALUES)
            copy_tiles(&f, &work, base, OF_VALUES);
        else if (work.of == OF_KEYS)
            copy_tiles(&f, &work, base, OF_KEYS);
        else
            copy_tiles(&f, &work, base, OF_QUERIES);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        if (work.of == OF_VALUES)
            multiply_tiles(&f, &work, base, warp - 4, OF_VALUES);
        else if (work.of == OF_KEYS)
            multiply_tiles(&f, &work, base, warp - 4, OF_KEYS);
        else
            multiply_tiles(&f, &work, base, warp - 4, OF_QUERIES);
    }
}
