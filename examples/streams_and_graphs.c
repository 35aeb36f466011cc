// SPDX-License-Identifier: Apache-2.0
// A GPU without the CUDA toolkit: device memory, a separate stream, and two calls recorded into a graph. The graph is replayed
// on new inputs, and the calls' arguments are not checked again. Without a device the program skips (exit code 77).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tessera/tessera.h>

enum { ROWS = 32, COLS = 64, STEPS = 3 };
static float x[STEPS][ROWS][COLS], weight[COLS], y[ROWS][COLS];

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != TSR_OK) {                                                                    \
            fprintf(stderr, "%s: %s\n", #call, tsr_last_error());                                  \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// Allocates a tensor on the device. TSR_TENSOR makes CPU tensors, so t.device is set afterwards.
static tsr_tensor make(tsr_context *ctx, int64_t rows, int64_t cols) {
    void *memory;
    TRY(tsr_memory_alloc(ctx, (size_t)(rows * cols) * sizeof(float), &memory));
    tsr_tensor t =
        rows > 1 ? TSR_TENSOR(memory, TSR_F32, rows, cols) : TSR_TENSOR(memory, TSR_F32, cols);
    t.device = tsr_context_device(ctx);
    return t;
}

// The sum of the differences between `out` and the softmax of the normalised rows, computed by definition.
static double error_of(float in[ROWS][COLS], float out[ROWS][COLS]) {
    double errors = 0;
    for (int r = 0; r < ROWS; r++) {
        double squares = 0, sum = 0, h[COLS];
        for (int c = 0; c < COLS; c++) squares += (double)in[r][c] * (double)in[r][c];
        for (int c = 0; c < COLS; c++) {
            h[c] = (double)in[r][c] / sqrt(squares / COLS + 1e-5) * (double)weight[c];
            sum += exp(h[c]);
        }
        for (int c = 0; c < COLS; c++) errors += fabs((double)out[r][c] - exp(h[c]) / sum);
    }
    return errors;
}

int main(void) {
    if (tsr_device_count(TSR_CUDA) == 0) {
        printf("skipped: no CUDA device\n");
        return 77;
    }
    tsr_context *ctx;
    void *stream;
    TRY(tsr_context_create(&TSR_CONTEXT_OPTIONS(.device = {TSR_CUDA, 0}), &ctx));
    // A graph cannot be recorded on the default stream. A stream from PyTorch or another cudaStream_t also works.
    TRY(tsr_stream_create(ctx, &stream));
    TRY(tsr_context_set_stream(ctx, stream));

    for (int i = 0; i < STEPS * ROWS * COLS; i++)
        ((float *)x)[i] = (float)(i * 7919 % 1000) / 500 - 1;
    for (int c = 0; c < COLS; c++) weight[c] = 1 + (float)c / COLS;
    tsr_tensor in = make(ctx, ROWS, COLS), normed = make(ctx, ROWS, COLS), w = make(ctx, 1, COLS);
    TRY(tsr_memory_copy(ctx, w.data, weight, sizeof weight));

    // Prepares both calls first: this compiles or loads the kernels and allocates workspace. Neither is possible in a recording.
    tsr_rmsnorm_forward_args norm = TSR_RMSNORM_FORWARD_ARGS(.x = in, .weight = w, .y = normed);
    tsr_softmax_forward_args softmax = TSR_SOFTMAX_FORWARD_ARGS(.x = normed, .y = normed);
    size_t workspace_bytes;
    TRY(tsr_rmsnorm_forward_prepare(ctx, &norm, &workspace_bytes));
    TRY(tsr_softmax_forward_prepare(ctx, &softmax, &workspace_bytes));
    tsr_graph *graph;
    TRY(tsr_graph_begin(ctx));
    TRY(tsr_rmsnorm_forward(ctx, &norm));
    TRY(tsr_softmax_forward(ctx, &softmax));
    TRY(tsr_graph_end(ctx, &graph));

    // Copies and launches run in stream order; the host waits once in each step, for the result.
    tsr_event *start, *end;
    TRY(tsr_event_create(ctx, &start));
    TRY(tsr_event_create(ctx, &end));
    double errors = 0, ms = 0;
    for (int step = 0; step < STEPS; step++) {
        TRY(tsr_memory_copy(ctx, in.data, x[step], sizeof x[step]));
        TRY(tsr_event_record(ctx, start));
        TRY(tsr_graph_launch(ctx, graph));
        TRY(tsr_event_record(ctx, end));
        TRY(tsr_memory_copy(ctx, y, normed.data, sizeof y));
        TRY(tsr_context_synchronize(ctx));
        errors += error_of(x[step], y);
    }
    TRY(tsr_event_elapsed(ctx, start, end, &ms));
    printf("%s: two calls replayed %d times, the last in %.3f ms; errors add up to %.1e\n",
           tsr_device_name(tsr_context_device(ctx)), STEPS, ms, errors);

    tsr_event_destroy(ctx, start);
    tsr_event_destroy(ctx, end);
    tsr_graph_destroy(ctx, graph);
    TRY(tsr_memory_free(ctx, in.data));
    TRY(tsr_memory_free(ctx, normed.data));
    TRY(tsr_memory_free(ctx, w.data));
    TRY(tsr_stream_destroy(ctx, stream));
    tsr_context_destroy(ctx);
    return errors < 1e-4 ? 0 : 1;
}
