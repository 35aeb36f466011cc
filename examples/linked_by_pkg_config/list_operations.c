// SPDX-License-Identifier: Apache-2.0
// Prints every operation of the installed library with its variants, and calls one of them.
#include <stdio.h>
#include <tessera/tessera.h>

int main(void) {
    printf("tessera %s\n", tsr_version());
    for (int op = 0; op < tsr_op_count(); op++) {
        printf("%s:", tsr_op_name(op));
        for (int i = 0; i < tsr_variant_count(tsr_op_name(op)); i++) {
            tsr_variant_info info;
            if (tsr_variant_info_get(tsr_op_name(op), i, &info) != TSR_OK) return 1;
            printf(" %s", info.name);
        }
        printf("\n");
    }

    tsr_context *ctx;
    float x[3] = {0, 0, 0};
    tsr_tensor row = TSR_TENSOR(x, TSR_F32, 1, 3);
    if (tsr_context_create(NULL, &ctx) != TSR_OK ||
        tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = row, .y = row)) != TSR_OK) {
        fprintf(stderr, "%s\n", tsr_last_error());
        return 1;
    }
    tsr_context_destroy(ctx);
    return x[0] > 0.333f && x[0] < 0.334f ? 0 : 1;
}
