// SPDX-License-Identifier: Apache-2.0
// One call of tessera in about thirty lines: the softmax of two rows, checked against the definition.
#include <math.h>
#include <stdio.h>
#include <tessera/tessera.h>

int main(void) {
    float x[2][4] = {{1, 2, 3, 4}, {-1000, 0, 0, 1000}}, y[2][4];
    tsr_tensor in = TSR_TENSOR(x, TSR_F32, 2, 4), out = TSR_TENSOR(y, TSR_F32, 2, 4);

    tsr_context *ctx; // NULL options choose the best instruction set and all CPUs
    tsr_status status = tsr_context_create(NULL, &ctx);
    if (status == TSR_OK)
        status = tsr_softmax_forward(ctx, &TSR_SOFTMAX_FORWARD_ARGS(.x = in, .y = out));
    if (status != TSR_OK) {
        fprintf(stderr, "%s: %s\n", tsr_status_name(status), tsr_last_error());
        return 1;
    }
    tsr_context_destroy(ctx);

    double errors = 0;
    for (int row = 0; row < 2; row++) {
        double e[4], sum = 0;
        for (int col = 0; col < 4; col++) sum += e[col] = exp((double)x[row][col] - x[row][3]);
        for (int col = 0; col < 4; col++) {
            errors += fabs(y[row][col] - e[col] / sum);
            printf("%10.7f%s", (double)y[row][col], col < 3 ? " " : "\n");
        }
    }
    printf("errors add up to %.1e\n", errors);
    return errors < 1e-6 ? 0 : 1;
}
