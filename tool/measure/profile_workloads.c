// SPDX-License-Identifier: Apache-2.0
// Workloads of `tessera profile`: steps in a model's order. To add one, write its steps and its line in the table.
#include <string.h>

#include "measure/profile_steps.h"

static const char *const rows[] = {
    "softmax_forward rows=16384 cols=4096",
    "softmax_backward rows=16384 cols=4096",
    "layernorm_forward rows=16384 cols=4096 +weight +bias",
    "layernorm_backward rows=16384 cols=4096 +weight +dx +dweight +dbias",
    "rmsnorm_forward rows=16384 cols=4096 +weight",
    "rmsnorm_backward rows=16384 cols=4096 +weight +dx +dweight",
    NULL};

// A decoder layer: hidden, heads of 64 or 128, intermediate; pre-norm, SwiGLU.
static const char *const layer[] = {
    "rmsnorm_forward rows=512 cols=768 +weight +residual +residual_out",
    "matmul_forward m=512 n=2304 k=768 transpose_b=1",
    "rope_forward batch=1 seqlen=512 num_heads=12 head_dim=64",
    "attention_forward batch_size=1 seqlen_q=512 seqlen_k=512 num_heads=12 head_dim=64 mask=causal",
    "matmul_forward m=512 n=768 k=768 transpose_b=1",
    "rmsnorm_forward rows=512 cols=768 +weight +residual +residual_out",
    "matmul_forward m=512 n=2048 k=768 transpose_b=1 activation=silu +b_up",
    "matmul_forward m=512 n=768 k=2048 transpose_b=1 +residual",
    NULL};
static const char *const large_layer[] = {
    "rmsnorm_forward rows=4096 cols=4096 +weight +residual +residual_out",
    "matmul_forward m=4096 n=12288 k=4096 transpose_b=1",
    "rope_forward batch=1 seqlen=4096 num_heads=32 head_dim=128",
    "attention_forward batch_size=1 seqlen_q=4096 seqlen_k=4096 num_heads=32 head_dim=128 "
    "mask=causal",
    "matmul_forward m=4096 n=4096 k=4096 transpose_b=1",
    "rmsnorm_forward rows=4096 cols=4096 +weight +residual +residual_out",
    "matmul_forward m=4096 n=11008 k=4096 transpose_b=1 activation=silu +b_up",
    "matmul_forward m=4096 n=4096 k=11008 transpose_b=1 +residual",
    NULL};

// A decoder layer with experts in place of the MLP.
static const char *const experts_layer[] = {
    "rmsnorm_forward rows=512 cols=768 +weight +residual +residual_out",
    "matmul_forward m=512 n=2304 k=768 transpose_b=1",
    "rope_forward batch=1 seqlen=512 num_heads=12 head_dim=64",
    "attention_forward batch_size=1 seqlen_q=512 seqlen_k=512 num_heads=12 head_dim=64 mask=causal",
    "matmul_forward m=512 n=768 k=768 transpose_b=1",
    "rmsnorm_forward rows=512 cols=768 +weight +residual +residual_out",
    "moe_forward tokens=512 hidden=768 intermediate=256 experts=32 top_k=4 +router +w_gate "
    "+residual",
    NULL};

// A training step of a mixture of experts with its losses.
static const char *const experts_step[] = {
    "moe_forward tokens=2048 hidden=512 intermediate=256 experts=32 top_k=4 +router +w_gate "
    "+preact +topk_ids +topk_weights +load_balance_loss +z_loss",
    "moe_backward tokens=2048 hidden=512 intermediate=256 experts=32 top_k=4 +router +w_gate "
    "+dload_balance_loss +dz_loss +dx +drouter +dw_gate +dw_up +dw_down",
    "adamw_step rows=24576 cols=512", NULL};

// The end of a training step of a language model: head, loss, their gradients, and the optimiser.
static const char *const loss[] = {
    "layernorm_forward rows=2048 cols=768 +weight +bias",
    "matmul_forward m=2048 n=32000 k=768 transpose_b=1",
    "cross_entropy_forward rows=2048 vocab=32000",
    "cross_entropy_backward rows=2048 vocab=32000",
    "matmul_backward m=2048 n=32000 k=768 transpose_b=1 +da +db",
    "layernorm_backward rows=2048 cols=768 +weight +dx +dweight +dbias",
    "adamw_step rows=32000 cols=768",
    NULL};

const struct profile_workload profile_workloads[] = {
    {"rows", "softmax and the norms, forward and backward, 16384 rows of 4096", rows},
    {"layer", "a decoder layer, 512 tokens, hidden 768", layer},
    {"layer-large", "a decoder layer, 4096 tokens, hidden 4096", large_layer},
    {"layer-experts", "a decoder layer with 32 experts, 512 tokens, hidden 768", experts_layer},
    {"experts", "a training step of 32 experts, 2048 tokens, hidden 512", experts_step},
    {"loss", "head, loss and optimiser of a language model, 2048 tokens", loss},
    {NULL, NULL, NULL},
};

const struct profile_workload *profile_workload_find(const char *name) {
    for (const struct profile_workload *w = profile_workloads; w->name != NULL; w++)
        if (strcmp(w->name, name) == 0) return w;
    return NULL;
}
