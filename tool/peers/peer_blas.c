// SPDX-License-Identifier: Apache-2.0
// This file declares the few functions that it needs of each library, without the libraries' headers, so that the tool
// builds everywhere and looks for them at run time. To add a library: a row of `known`, its name, and its call.
#define _GNU_SOURCE
#include "peers/peer_blas.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "system/environment.h"

// cblas.h
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
typedef void cblas_sgemm_fn(int order, int transpose_a, int transpose_b, int m, int n, int k,
                            float alpha, const float *a, int lda, const float *b, int ldb,
                            float beta, float *c, int ldc);
// dnnl.h: row-major, transposes as 'N' and 'T', 0 is success. The bf16 function is exported, but no header has it.
typedef int dnnl_gemm_fn(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k,
                         float alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                         float beta, float *c, int64_t ldc);
typedef void set_threads_int_fn(int count);
typedef void set_threads_int64_fn(int64_t count); // BLIS: dim_t

// Libraries stay open until the process ends: their threads may still be in them.
struct peer_blas {
    const char *name;
    cblas_sgemm_fn *cblas_sgemm;
    dnnl_gemm_fn *dnnl_sgemm, *dnnl_bf16;
};

static const struct known {
    const char *name, *variable;
    const char *files[4]; // tried in this order
    const char *set_threads;
    bool has_int64_threads;
} known[] = {
    {"openblas",
     "TESSERA_OPENBLAS",
     {"libopenblas.so.0", "libopenblas.so", NULL},
     "openblas_set_num_threads",
     false},
    {"blis",
     "TESSERA_BLIS",
     {"libblis.so.4", "libblis.so", NULL},
     "bli_thread_set_num_threads",
     true},
    // Its threads are those of the OpenMP runtime that it was linked with.
    {"onednn",
     "TESSERA_ONEDNN",
     {"libdnnl.so.3", "libdnnl.so.2", "libdnnl.so", NULL},
     "omp_set_num_threads",
     false},
};
enum { NUM_KNOWN = sizeof known / sizeof *known };
const char *const peer_blas_names[] = {"openblas", "blis", "onednn", NULL};

static void say(char *error, size_t error_bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(char *error, size_t error_bytes, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(error, error_bytes, format, list);
    va_end(list);
}

// While a peer's threads spin they occupy the processors for our measurement; if they slept after every call, waking
// would slow the peer down. 1 ms suits both: back-to-back calls find them awake, and the pause before our turn is longer.
void peer_set_environment(void) {
    setenv("GOMP_SPINCOUNT", "20000", 0);       // GNU OpenMP: pauses of about 50 ns
    setenv("KMP_BLOCKTIME", "1", 0);            // Intel's and LLVM's: milliseconds
    setenv("OPENBLAS_THREAD_TIMEOUT", "21", 0); // 2^21 clocks
}

// ---- Opening ----------------------------------------------------------------------------------

// POSIX lets a function's address travel in a void *; ISO C needs the detour.
#define FIND(target, library, name)                                                                \
    do {                                                                                           \
        void *address = dlsym(library, name);                                                      \
        memcpy(&(target), &address, sizeof address);                                               \
    } while (0)

// RTLD_LOCAL, so that one library does not get the cblas_sgemm of another.
static void *open_library(const struct known *row, char *error, size_t error_bytes) {
    const char *given = environment_value(row->variable);
    if (given != NULL) {
        void *library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) say(error, error_bytes, "%s: %s", row->variable, dlerror());
        return library;
    }
    for (int i = 0; row->files[i] != NULL; i++) {
        void *library = dlopen(row->files[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) return library;
    }
    say(error, error_bytes, "%s is not installed (no %s)", row->name, row->files[0]);
    return NULL;
}

static bool set_threads(const struct known *row, void *library, int num_threads) {
    if (row->has_int64_threads) {
        set_threads_int64_fn *set;
        FIND(set, library, row->set_threads);
        if (set != NULL) set(num_threads);
        return set != NULL;
    }
    set_threads_int_fn *set;
    FIND(set, library, row->set_threads);
    if (set != NULL) set(num_threads);
    return set != NULL;
}

const struct peer_blas *peer_blas_open(const char *name, int num_threads, char *error,
                                       size_t error_bytes) {
    const struct known *row = NULL;
    for (int i = 0; i < NUM_KNOWN; i++)
        if (strcmp(known[i].name, name) == 0) row = &known[i];
    if (row == NULL) {
        say(error, error_bytes, "there is no peer '%s'", name);
        return NULL;
    }
    peer_set_environment(); // read when the library is loaded
    void *library = open_library(row, error, error_bytes);
    if (library == NULL) return NULL;
    static struct peer_blas opened[NUM_KNOWN];
    struct peer_blas *peer = &opened[row - known];
    *peer = (struct peer_blas){.name = row->name};
    FIND(peer->cblas_sgemm, library, "cblas_sgemm");
    FIND(peer->dnnl_sgemm, library, "dnnl_sgemm");
    FIND(peer->dnnl_bf16, library, "dnnl_gemm_bf16bf16f32");
    bool has_sgemm = peer->cblas_sgemm != NULL || peer->dnnl_sgemm != NULL;
    if (has_sgemm && set_threads(row, library, num_threads)) return peer;
    say(error, error_bytes, "%s lacks %s", name, has_sgemm ? row->set_threads : "an sgemm");
    return NULL;
}

// ---- Calling ----------------------------------------------------------------------------------

// What the case needs beyond c = alpha op(a) op(b) for one pair of matrices; NULL: nothing.
static const char *beyond_gemm(const struct op_case *c) {
    static const char *const tensors[] = {"b_up", "bias", "residual", NULL};
    if (strcmp(c->spec->op, "matmul_forward") != 0) return c->spec->op;
    if (case_int(c, "batch") != 1) return "a batch";
    if (case_int(c, "activation") != 0) return "an activation";
    if (case_int(c, "accumulate") != 0) return "accumulation";
    if (case_int(c, "fp8") != 0) return "fp8";
    for (int i = 0; tensors[i] != NULL; i++)
        if (c->is_present[spec_slot(c->spec, tensors[i])]) return tensors[i];
    static const char *const sizes[] = {"m", "n", "k", NULL};
    for (int i = 0; sizes[i] != NULL; i++)
        if (case_int(c, sizes[i]) < 1 || case_int(c, sizes[i]) > INT_MAX) return "this size";
    return NULL;
}

const char *peer_blas_call_name(const struct peer_blas *peer, const struct op_case *c, char *error,
                                size_t error_bytes) {
    const char *beyond = beyond_gemm(c);
    if (beyond != NULL)
        say(error, error_bytes, "%s has no call that computes %s", peer->name, beyond);
    else if (c->dtype == TSR_F32 && peer->cblas_sgemm != NULL)
        return "cblas_sgemm";
    else if (c->dtype == TSR_F32)
        return "dnnl_sgemm";
    else if (c->dtype == TSR_BF16 && peer->dnnl_bf16 != NULL)
        return "dnnl_gemm_bf16bf16f32";
    else
        say(error, error_bytes, "%s has no matmul of %s", peer->name, tsr_dtype_name(c->dtype));
    return NULL;
}

bool peer_blas_call(const struct peer_blas *peer, const struct op_case *c, float *out) {
    int64_t m = case_int(c, "m"), n = case_int(c, "n"), k = case_int(c, "k");
    bool is_a = case_int(c, "transpose_a") != 0, is_b = case_int(c, "transpose_b") != 0;
    int64_t lda = is_a ? m : k, ldb = is_b ? k : n;
    const void *a = c->tensor[0].data, *b = c->tensor[1].data;
    float alpha = (float)case_real(c, "alpha");
    if (c->dtype == TSR_F32 && peer->cblas_sgemm != NULL) {
        peer->cblas_sgemm(CBLAS_ROW_MAJOR, is_a ? CBLAS_TRANS : CBLAS_NO_TRANS,
                          is_b ? CBLAS_TRANS : CBLAS_NO_TRANS, (int)m, (int)n, (int)k, alpha, a,
                          (int)lda, b, (int)ldb, 0, out, (int)n);
        return true;
    }
    dnnl_gemm_fn *gemm = c->dtype == TSR_F32 ? peer->dnnl_sgemm : peer->dnnl_bf16;
    return gemm(is_a ? 'T' : 'N', is_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, 0, out, n) == 0;
}
