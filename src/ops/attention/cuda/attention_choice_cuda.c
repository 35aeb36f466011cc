// SPDX-License-Identifier: Apache-2.0
// Which variant of attention on CUDA is preferred. NULL: the first in the table that serves the call. Pure.
#include "ops/attention/cuda/backward/attention_backward_cuda.h"
#include "ops/attention/cuda/forward/attention_forward_cuda.h"

const char *attention_cuda_prefer_forward(const void *problem, const struct tsri_limits *limits) {
    const struct attention_problem *p = problem;
    if (attention_cuda_prefers_small(p, limits)) return "cuda-small";
    return attention_cuda_prefers_few(p, limits) ? "cuda-few" : NULL;
}

// With few queries and keys a tile of flash1 or flash3 is mostly empty, and the cost of starting a tile counts. For flash3 this
// holds if there are more heads than run at once; not with a bias, which costs flash2 more than flash3 loses, and not in f16 on
// Hopper, where flash2's kernels are rare. The choice depends on other heads of the call, so it is not made under
// TSR_BATCH_INVARIANT.
const char *attention_cuda_prefer_backward(const void *problem, const struct tsri_limits *limits) {
    enum { FEW = 16, FEW_DEEP = 32, FEW_SHALLOW = 96, MANY_HEADS = 64 };
    const struct attention_problem *p = problem;
    const int64_t longest = tsri_max(p->seqlen_q, p->seqlen_k);
    if (attention_backward_prefers_small(p, limits)) return "cuda-small";
    if (limits->flags & TSR_BATCH_INVARIANT) return NULL;
    if (p->dtype == TSR_F32)
        return longest <= FEW && attention_backward_deepest(p) > 128 ? "cuda-naive" : NULL;
    if (p->dtype == TSR_F16 && limits->cuda_arch == 90) return NULL;
    const bool is_short = longest <= (attention_backward_deepest(p) <= 64 ? FEW_SHALLOW : FEW_DEEP);
    return is_short && attention_backward_deepest(p) <= 128 && p->bias.data == NULL &&
                   p->num_batches * p->num_heads_q >= MANY_HEADS
               ? "cuda-flash2"
               : NULL;
}
