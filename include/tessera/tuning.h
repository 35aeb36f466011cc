// SPDX-License-Identifier: Apache-2.0
// Tuning files: which variant calls take, measured on a machine of the kind that they run on (`tessera tune`).
#ifndef TESSERA_TUNING_H
#define TESSERA_TUNING_H

#include <tessera/context.h>

#ifdef __cplusplus
extern "C" {
#endif

// A context without options.tuning_file looks here: $TSR_TUNING_FILE, else `tuning` in $TSR_CACHE_DIR,
// $XDG_CACHE_HOME/tessera or ~/.cache/tessera. Read once in a process, when its first such context is made; ordinary
// calls read and time nothing. No file, one that is damaged or larger than 1 MiB, or one of another version is no error:
// every call then takes the built-in choice. TSR_LOG=plan says what became of it.
//
// A file is text: "tessera-tuning 1", then rows of words, comments from '#' on:
//
//   matmul_forward avx512/2048K/32768K f32 1024x1024x1024x1 packed 192x256
//
// operation, device (ISA and caches of levels 2 and 3 as plans assume them, or architecture and multiprocessors), dtype,
// sizes (each stands for those nearest to it among the powers of two, of matmul on CUDA for itself; * for any), variant, and for
// variants of matmul rows and columns of a block; on CUDA a third number, the parts that k is cut into (by cuda-wgmma and cuda-fp8:
// the blocks of a cluster). Blocks that the variant does not have for a call leave it its own. A row is for all layouts and
// epilogues of its sizes. The first row that fits counts. It chooses for calls whose args.variant is NULL, where the
// variant serves the call, and only as far as the operation's promises leave the choice free: a call with
// TSR_DETERMINISTIC or TSR_BATCH_INVARIANT has the same bits with and without a file, and so has whatever is promised
// not to depend on the rest of a batch. So rows choose for matmul_forward (on the CPU, above 16 rows and with flags, among
// variants that add in one order) and, without flags, for attention_forward and attention_backward; those of other operations
// are not looked at. On the CPU blocks change no bits; on CUDA a call with a flag has the built-in ones.
//
// A call's cost does not follow the number of rows.

// Copies the path. Errors: INVALID_ARGUMENT (path NULL or too short), UNSUPPORTED (no folder is known).
TSR_API tsr_status tsr_tuning_path(char *path, size_t bytes);

// The words of a row, without the variant, that would choose for the last call that was prepared on this context; ""
// where no row can. Valid until the next call of this function or the one below, or the next _prepare.
TSR_API const char *tsr_context_tuning_key(const tsr_context *context);

// The rest of such a row, for the index-th way (from 0) in which this device could serve that call, variant and blocks, in
// no order; NULL after the last, and where nothing is known but the variants (variants.h): on the CPU, of operations without
// blocks, and of a call with flags. *expected_ns (or NULL) is what the library's own account expects the call to take, in
// nanoseconds: good for leaving out what cannot be the fastest. Valid as the key is.
TSR_API const char *tsr_context_tuning_choice(const tsr_context *context, int index,
                                              double *expected_ns);

#ifdef __cplusplus
}
#endif
#endif
