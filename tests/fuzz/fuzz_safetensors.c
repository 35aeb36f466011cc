// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes, read as a safetensors file; every byte that an accepted one declares
// is touched.
//
//   cmake -S . -B build/fuzz -DCMAKE_C_COMPILER=clang -DTESSERA_FUZZ=ON \
//         -DTESSERA_SANITIZE=fuzzer-no-link,address,undefined && cmake --build build/fuzz
//   build/fuzz/fuzz_safetensors -max_len=4096 -dict=tests/fuzz/safetensors.dict
#include <stdlib.h>
#include <string.h>
#include <tessera/safetensors.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(int condition) {
    if (!condition) abort();
}

static void touch(const tsr_safetensors *file, int64_t index) {
    tsr_safetensors_info info;
    require(tsr_safetensors_info_get(file, index, &info) == TSR_OK);
    const volatile unsigned char *data = info.data;
    for (size_t i = 0; i < info.bytes; i++) (void)data[i];
    require(tsr_safetensors_find(file, info.name) == index);
    tsr_tensor tensor;
    if (tsr_safetensors_tensor_at(file, index, &tensor) != TSR_OK) return;
    require((uintptr_t)tensor.data % tsr_dtype_bytes(tensor.dtype) == 0);
    require((uint64_t)tsr_tensor_numel(&tensor) * tsr_dtype_bytes(tensor.dtype) == info.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    // The first 2 bytes of the input stand for the header's length: 8 are too seldom right
    // by chance.
    if (bytes < 2) return 0;
    size_t length = data[0] | (size_t)data[1] << 8;
    uint8_t *copy = malloc(bytes + 6);
    require(copy != NULL);
    for (int i = 0; i < 8; i++) copy[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(copy + 8, data + 2, bytes - 2);
    tsr_safetensors *file;
    tsr_status status = tsr_safetensors_open_memory(copy, bytes + 6, "fuzz", &file);
    free(copy);
    if (status != TSR_OK) {
        require(status == TSR_IO && file == NULL && *tsr_last_error() != '\0');
        return 0;
    }
    for (int64_t i = 0; i < tsr_safetensors_count(file); i++) touch(file, i);
    for (int64_t i = 0; i < tsr_safetensors_metadata_count(file); i++) {
        tsr_safetensors_pair pair;
        require(tsr_safetensors_metadata_get(file, i, &pair) == TSR_OK);
        require(tsr_safetensors_metadata(file, pair.key) == pair.value);
    }
    tsr_safetensors_close(file);
    return 0;
}
