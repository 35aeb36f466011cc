// SPDX-License-Identifier: Apache-2.0
// NVML, in declarations of our own: what a GPU's sensors say. Nothing of the library depends on it, so
// without it, or where it lacks a function, the figures are absent.
#ifndef TSRI_CUDA_NVML_H
#define TSRI_CUDA_NVML_H

#include <stdbool.h>

struct tsri_cuda_sensors {
    double sm_clock_mhz, memory_clock_mhz, power_w, power_limit_w, temperature_c; // NAN: not known
    unsigned long long throttle_reasons; // bits of nvmlClocksEventReasons; 0 for none or not known
};

// Of the GPU at this PCI bus, "0000:17:00.0". False where NVML is not there or does not know it.
bool tsri_cuda_sensors_read(const char *pci_bus_id, struct tsri_cuda_sensors *sensors);

#endif
