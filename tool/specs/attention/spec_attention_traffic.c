// SPDX-License-Identifier: Apache-2.0
// The traffic of attention's variants. flash2 and tuned, and every backward pass but the naive one, move each
// tensor once. The others move more, with P the bytes of an fp32 number for every visible pair of query and key
// in every head:
//
//   naive forward    scores; softmax; product with v          writes P twice, reads it twice
//   naive backward   weights and their gradients; dk and dv; dq  writes P twice, reads it three times, q, k
//                                                             and dout again
//   flash1 forward   blocks of 64 keys in turn: for every block after the first, out, maximum and denominator are
//                    written in fp32 and read again, with q
#include <math.h>
#include <string.h>

#include "measure/traffic.h"
#include "specs/attention/spec_attention.h"

enum { FLASH1_BLOCK = 64 };

static double slot_bytes(const struct op_case *c, int slot) {
    return (double)case_numel(c, slot) * (double)tsr_dtype_bytes(case_slot_dtype(c, slot));
}

bool attention_traffic(const struct op_case *c, const char *variant, struct op_traffic *traffic) {
    struct attention_sizes n = attention_sizes_of(c);
    bool is_backward = spec_slot(c->spec, "dout") >= 0;
    double pairs = attention_visible_pairs(c) * (double)n.heads * sizeof(float);
    *traffic = traffic_of_tensors(c);
    if (variant == NULL) return true;
    if (strcmp(variant, "naive") == 0) {
        traffic->num_passes = 3;
        traffic->read_bytes += is_backward ? 3 * pairs : 2 * pairs;
        traffic->write_bytes += 2 * pairs;
        if (is_backward)
            traffic->read_bytes +=
                slot_bytes(c, ATTN_Q) + slot_bytes(c, ATTN_K) + slot_bytes(c, ATTN_DOUT);
    } else if (strcmp(variant, "flash1") == 0 && !is_backward) {
        // A mask reduces the queries of a block in the same proportion as the pairs.
        double all = (double)n.total_q * (double)n.seqlen_k * (n.is_packed ? 1 : (double)n.batch);
        double blocks = ceil((double)n.seqlen_k / FLASH1_BLOCK) - 1;
        double share = all > 0 ? attention_visible_pairs(c) / all : 0;
        double rows = (double)n.total_q * (double)n.heads * (n.is_packed ? 1 : (double)n.batch);
        double state = rows * (double)(n.head_dim_v + 2) * sizeof(float);
        double again = fmax(blocks, 0) * share;
        traffic->read_bytes += again * (state + slot_bytes(c, ATTN_Q));
        traffic->write_bytes += again * state;
    }
    return true;
}
