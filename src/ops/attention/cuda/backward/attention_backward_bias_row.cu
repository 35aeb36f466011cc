// SPDX-License-Identifier: Apache-2.0
// dbias with one row for all queries, of what flash3's kernel of keys summed over these, fp32 (batch, heads, seqlen_k): a block
// takes FLASH3_ROW_KEYS keys and goes through the batches and heads that share them, PARTS of them side by side, each sum in one
// order.
// Floor: 4 bytes read for each batch, head and key.
// Figures of the whole call: docs/kernels/attention_backward_cuda.md.
#define ANY_DTYPE
#include "ops/attention/cuda/backward/attention_backward_device.cuh"
#include "ops/attention/cuda/backward/flash3/attention_backward_flash3_params.h"

enum { THREADS = 256, KEYS = FLASH3_ROW_KEYS, PARTS = THREADS / KEYS };

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_bias_row(const __grid_constant__ struct attention_backward_flash3_params f) {
    __shared__ float parts[PARTS][KEYS];
    const struct attention_params *p = &f.b.p;
    const struct attention_bias_tensor *dbias = &p->dbias;
    const int lane = threadIdx.x % KEYS, part = threadIdx.x / KEYS;
    const int has_batch = dbias->shape[0] > 1, has_head = dbias->shape[1] > 1;
    const int num_heads = has_head ? 1 : p->num_heads_q;
    const int count = (has_batch ? 1 : p->num_batches) * num_heads;
    wait_for_primary();
    for (long long index = blockIdx.x; index < f.b.num_tasks; index += gridDim.x) {
        const int key = (int)(index % f.b.num_tiles) * KEYS + lane;
        const long long rest = index / f.b.num_tiles;
        const int own_head = (int)(rest % dbias->shape[1]),
                  own_batch = (int)(rest / dbias->shape[1]);
        float sum = 0;
        for (int n = part; n < count && key < dbias->shape[3]; n += PARTS) {
            const int batch = has_batch ? own_batch : n / num_heads;
            const int head = has_head ? own_head : n % num_heads;
            sum += f.bias.sums[((long long)batch * p->num_heads_q + head) * dbias->shape[3] + key];
        }
        parts[part][lane] = sum;
        __syncthreads();
        if (part == 0 && key < dbias->shape[3]) {
            for (int n = 1; n < PARTS; n++) sum += parts[n][lane];
            store_any(dbias->data,
                      own_batch * dbias->stride[0] + own_head * dbias->stride[1] +
                          key * dbias->stride[3],
                      sum, f.b.bias_dtype);
        }
        __syncthreads();
    }
}
