# SPDX-License-Identifier: Apache-2.0
# The emulated CUDA device of tests/emulator: one library with the driver and the compiler, for tests that run kernels
# without a GPU. It switches stacks, which sanitizers do not support, and compiles kernels with g++ when they are run.
find_program(TESSERA_GXX g++)
mark_as_advanced(TESSERA_GXX)
if(TESSERA_SANITIZE OR NOT TESSERA_GXX OR NOT CMAKE_SIZEOF_VOID_P EQUAL 8
   OR NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  return()
endif()

file(GLOB emulator_sources CONFIGURE_DEPENDS tests/emulator/*.c)
add_library(tessera_emulator MODULE ${emulator_sources})
tessera_flags(tessera_emulator)
target_include_directories(tessera_emulator PRIVATE include src)
target_compile_definitions(tessera_emulator PRIVATE EMULATOR_FOLDER="${PROJECT_SOURCE_DIR}/tests/emulator"
                           EMULATOR_COMPILER="${TESSERA_GXX}")
set_target_properties(tessera_emulator PROPERTIES PREFIX lib)
target_link_libraries(tessera_emulator PRIVATE m Threads::Threads ${CMAKE_DL_LIBS})

set(cache ${PROJECT_BINARY_DIR}/emulator-cache)
file(MAKE_DIRECTORY ${cache})
foreach(name test_emulator test_tool_emulator test_tool_emulator_attention test_tool_emulator_gradients
        test_tool_emulator_products test_tool_emulator_fp8 test_tool_emulator_small
        test_tool_emulator_decode test_tool_emulator_late test_emulator_invariant)
  if(TARGET ${name})
    target_compile_definitions(${name} PRIVATE TEST_EMULATOR="$<TARGET_FILE:tessera_emulator>"
                               TEST_EMULATOR_CACHE="${cache}")
    add_dependencies(${name} tessera_emulator)
    set_tests_properties(${name} PROPERTIES COST 900 ENVIRONMENT "TMPDIR=${cache}")
  endif()
endforeach()

# Runs tests for a real GPU, or for either device, on the emulated one too. Two of them run again with copies and
# products as late as possible.
function(add_emulated name test) # further arguments: environment variables
  if(TARGET ${test})
    add_dependencies(${test} tessera_emulator)
    add_test(NAME ${name} COMMAND ${PROJECT_SOURCE_DIR}/scripts/emulate $<TARGET_FILE:${test}>)
    set(environment "TESSERA_EMULATOR=$<TARGET_FILE:tessera_emulator>" "TSR_CACHE_DIR=${cache}" "TMPDIR=${cache}"
        ${ARGN})
    set_tests_properties(${name} PROPERTIES TIMEOUT 900 COST 800 ENVIRONMENT "${environment}")
  endif()
endfunction()
foreach(test test_cuda_layouts test_cuda_wgmma test_cuda_indices test_cuda_matmul_grouped test_cuda_tf32 test_cuda_floats
        test_cuda_cross_entropy test_cuda_norm test_cuda_sample test_cuda_softmax)
  add_emulated(emulated_${test} ${test})
endforeach()
add_emulated(emulated_test_attention_large_masks test_attention_large_masks TESSERA_TEST_DEVICE=cuda
             TESSERA_TEST_CASES=12)
add_emulated(emulated_test_cuda_fp8 test_cuda_fp8 TESSERA_TEST_CASES=1)
add_emulated(emulated_test_cuda_matmul_backward test_cuda_matmul_backward EMULATOR_SMS=132)
foreach(test test_cuda_layouts test_cuda_wgmma)
  add_emulated(emulated_late_${test} ${test} EMULATOR_COPIES=late)
endforeach()
