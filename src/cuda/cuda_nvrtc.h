// SPDX-License-Identifier: Apache-2.0
// Our own declarations of NVRTC, the run-time compiler, which is opened when a kernel is first compiled.
#ifndef TSRI_CUDA_NVRTC_H
#define TSRI_CUDA_NVRTC_H

#include <stddef.h>

#ifndef TSRI_CUDA_TYPES_FROM_TOOLKIT
typedef int nvrtc_result;
typedef struct nvrtc_program_st *nvrtc_program;
#endif

enum { NVRTC_OK = 0, NVRTC_INVALID_OPTION = 5 };

// X(returns, field, name in nvrtc.h, parameters)
#define TSRI_NVRTC_FUNCTIONS(X)                                                                    \
    X(nvrtc_result, version, nvrtcVersion, (int *major, int *minor))                               \
    X(nvrtc_result, create_program, nvrtcCreateProgram,                                            \
      (nvrtc_program *, const char *text, const char *name, int, const char *const *texts,         \
       const char *const *names))                                                                  \
    X(nvrtc_result, destroy_program, nvrtcDestroyProgram, (nvrtc_program *))                       \
    X(nvrtc_result, compile_program, nvrtcCompileProgram,                                          \
      (nvrtc_program, int, const char *const *options))                                            \
    X(nvrtc_result, get_cubin_size, nvrtcGetCUBINSize, (nvrtc_program, size_t *))                  \
    X(nvrtc_result, get_cubin, nvrtcGetCUBIN, (nvrtc_program, char *))                             \
    X(nvrtc_result, get_log_size, nvrtcGetProgramLogSize, (nvrtc_program, size_t *))               \
    X(nvrtc_result, get_log, nvrtcGetProgramLog, (nvrtc_program, char *))                          \
    X(const char *, get_error_string, nvrtcGetErrorString, (nvrtc_result))

struct tsri_nvrtc {
    int major, minor; // version of NVRTC
#define TSRI_FIELD(returns, field, name, parameters) returns(*field) parameters;
    TSRI_NVRTC_FUNCTIONS(TSRI_FIELD)
#undef TSRI_FIELD
};

// The first call decides for the process. NULL, with a sentence in tsri_nvrtc_sentence, if there is no NVRTC.
const struct tsri_nvrtc *tsri_nvrtc(void);
const char *tsri_nvrtc_sentence(void);

#endif
