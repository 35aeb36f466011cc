# SPDX-License-Identifier: Apache-2.0
# Emulates AVX-512, AVX512-BF16 and AMX for tests: the sources that use them are compiled for AVX2 with the intrinsics
# of tests/emulated_cpu in place of the compiler's. A program that links these objects before the library gets its
# kernels and its cpuid from them. `tessera-emulated` is the command built this way.
if(NOT is_x86_64 OR NOT has_bf16_flags OR NOT TARGET tessera_tool_parts OR NOT CMAKE_C_COMPILER_ID STREQUAL GNU
   OR TESSERA_SANITIZE)
  return()
endif()

tessera_objects(tessera_emulated_cpu ${simd_sources} ${bf16_sources} tests/emulated_cpu/emulated_cpu.c)
target_include_directories(tessera_emulated_cpu BEFORE PRIVATE tests/emulated_cpu)
target_compile_definitions(tessera_emulated_cpu PRIVATE TSRI_SIMD_AVX512)
# -Wno-psabi: AVX2 passes these vectors in memory, and all files agree on it.
target_compile_options(tessera_emulated_cpu PRIVATE ${isa_flags_avx2} ${kernel_flags} -O2 -Wno-psabi)

# Takes minutes to compile, so it is only built on request (scripts/emulate_cpu).
add_executable(tessera_emulated_command EXCLUDE_FROM_ALL tool/main.c $<TARGET_OBJECTS:tessera_emulated_cpu>)
set_target_properties(tessera_emulated_cpu PROPERTIES EXCLUDE_FROM_ALL ON)
tessera_flags(tessera_emulated_command)
set_target_properties(tessera_emulated_command PROPERTIES OUTPUT_NAME tessera-emulated
                      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(tessera_emulated_command PRIVATE tessera_tool_parts tessera_static ${CMAKE_DL_LIBS} m
                      Threads::Threads)

# The choices for AMX, and that bits do not depend on the number of threads with it. Built with the command.
if(test_sources)
  foreach(test test_matmul_choice test_matmul_tables test_matmul_rows_tables test_attention_choice test_matmul_bits)
    set(name emulated_${test})
    set(source ${test_sources})
    list(FILTER source INCLUDE REGEX "/${test}\\.c$")
    add_executable(${name} EXCLUDE_FROM_ALL ${source} ${test_helpers} $<TARGET_OBJECTS:tessera_emulated_cpu>)
    tessera_flags(${name})
    target_include_directories(${name} PRIVATE src tests/support ${CMOCKA_INCLUDE_DIR})
    target_link_libraries(${name} PRIVATE tessera_static ${CMOCKA_LIBRARY} m Threads::Threads ${CMAKE_DL_LIBS})
    add_dependencies(tessera_emulated_command ${name})
    add_test(NAME ${name} COMMAND sh -c "test -x '$<TARGET_FILE:${name}>' || exit 77; exec '$<TARGET_FILE:${name}>'")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 ENVIRONMENT EMULATED_CPU=sapphire_rapids)
  endforeach()
endif()

# The intrinsics themselves, and the compiler's if the processor supports them.
if(test_sources)
  foreach(name emulated_test_intrinsics test_intrinsics)
    add_executable(${name} tests/emulated_cpu/test_intrinsics.c)
    tessera_flags(${name})
    target_include_directories(${name} PRIVATE ${CMOCKA_INCLUDE_DIR})
    target_link_libraries(${name} PRIVATE ${CMOCKA_LIBRARY} m)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
  target_include_directories(emulated_test_intrinsics BEFORE PRIVATE tests/emulated_cpu)
  target_compile_options(emulated_test_intrinsics PRIVATE ${isa_flags_avx2} -Wno-psabi)
  target_compile_options(test_intrinsics PRIVATE ${isa_flags_avx512} ${bf16_flags})
endif()

# Every operation on each processor, if the command is built. scripts/emulate_cpu tests more.
set(configs_sapphire_rapids 1500)
set(configs_zen4 600)
set(configs_skylake 600)
foreach(cpu sapphire_rapids zen4 skylake)
  add_test(NAME emulated_verify_${cpu} COMMAND ${PROJECT_SOURCE_DIR}/scripts/emulate_cpu --if-built
           verify --isa avx512 --edges none --configs ${configs_${cpu}} --threads 2 --seed 1)
  set(environment EMULATED_CPU=${cpu} TESSERA_EMULATED=$<TARGET_FILE:tessera_emulated_command>)
  set_tests_properties(emulated_verify_${cpu} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900 COST 700
                       ENVIRONMENT "${environment}")
endforeach()
