// SPDX-License-Identifier: Apache-2.0
// Tuning files: which variant a call takes, as `tessera tune` measured it on a machine of the same kind.
#ifndef TESSERA_TUNING_H
#define TESSERA_TUNING_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// A context without options.tuning_file looks here: $TSR_TUNING_FILE, else `tuning` in $TSR_CACHE_DIR,
// $XDG_CACHE_HOME/tessera or ~/.cache/tessera. A process reads the file once, when it makes its first such context;
// ordinary calls read and time nothing. A file that is missing, damaged, larger than 1 MiB or of another version is no
// error: every call then takes the built-in choice. TSR_LOG=plan says what became of the file.
//
// A file is text: "tessera-tuning 1", then rows of words, comments from '#' on:
//
//   matmul_forward avx512/2048K/32768K f32 1024x1024x1024x1 packed 192x256
//
// The words are the operation, the device, the dtype, the sizes, the variant and, for a variant of matmul, its blocks:
//
// device   ISA and caches of levels 2 and 3 as plans assume them, or architecture and multiprocessors.
// sizes    each stands for all sizes with the same nearest power of two; for matmul on CUDA it stands for itself alone.
//          * stands for any sizes.
// blocks   rows and columns of a block; on CUDA a third number, the parts that k is split into (for cuda-wgmma and
//          cuda-fp8: the blocks of a cluster). If the variant cannot use these blocks for a call, it uses its own.
//
// A row covers all layouts and epilogues of its sizes, and the first matching row counts. It applies to calls whose
// args.variant is NULL and that the variant can serve, and only where the operation's promises leave a choice: a call
// with TSR_DETERMINISTIC or TSR_BATCH_INVARIANT gives the same bits with and without a file, and so does every result
// that is promised not to depend on the rest of a batch. So rows choose for matmul_forward (on the CPU, above 16 rows and
// with flags, only among variants that add in one order) and, without flags, for attention_forward and
// attention_backward; rows of other operations are ignored. On the CPU blocks change no bits; on CUDA a call with a flag
// keeps the built-in blocks.
//
// The number of rows in a file does not change the cost of a call.

// Copies the path. Errors: INVALID_ARGUMENT (path NULL or too short), UNSUPPORTED (no folder is known).
TSR_API tsr_status tsr_tuning_path(char *path, size_t bytes);

// The first words, up to the variant, of a row that would choose for the last call prepared on this context; "" if no
// row can. Valid until the next _prepare, or the next call of this function or the one below.
TSR_API const char *tsr_context_tuning_key(const tsr_context *context);

// The other words of such a row, variant and blocks, for the index-th candidate (from 0, in no particular order) that can
// serve that call on this device; NULL after the last. It is NULL too where only the list of variants (variants.h) is
// known: on the CPU, for operations without blocks, and for calls with flags. *expected_ns (may be NULL) receives the
// nanoseconds that the library's cost model expects: with it a tuner can skip candidates that cannot be the fastest.
// Valid as long as the key.
TSR_API const char *tsr_context_tuning_choice(const tsr_context *context, int index,
                                              double *expected_ns);

#ifdef __cplusplus
}
#endif
#endif
