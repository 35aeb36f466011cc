# SPDX-License-Identifier: Apache-2.0
# Each test_*.c below tests/ is one cmocka program and one ctest test. It may include src/, and the tool's parts if they
# are built. pytest runs test_*.py; scripts/run_tests runs both. A test with exit status 77 is skipped. examples/ are
# compiled, run, and built against an installed copy.
find_path(CMOCKA_INCLUDE_DIR cmocka.h)
find_library(CMOCKA_LIBRARY cmocka)
mark_as_advanced(CMOCKA_INCLUDE_DIR CMOCKA_LIBRARY)

file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS tests/test_*.c)
list(FILTER test_sources EXCLUDE REGEX "/tests/emulated_cpu/") # cmake/TesseraEmulatedCpu.cmake builds them in two ways
if(NOT CMOCKA_INCLUDE_DIR OR NOT CMOCKA_LIBRARY)
  message(STATUS "cmocka not found: the C tests are left out (Debian: apt install libcmocka-dev, "
                 "or run: make setup)")
  set(test_sources "")
endif()
file(GLOB test_helpers CONFIGURE_DEPENDS tests/support/*.c)

# Single-threaded tests of GPU kernels, figures and failing calls: they take minutes under ThreadSanitizer, which finds
# nothing in them.
if(TESSERA_SANITIZE STREQUAL thread)
  list(FILTER test_sources EXCLUDE REGEX "/test_(kernel_archs|tool_faults_cuda|tool_measure|tool_memory)\\.c$")
endif()

foreach(source ${test_sources})
  get_filename_component(name ${source} NAME_WE)
  # The tool's tests are built only with the tool.
  if(name MATCHES "^test_(tool|model)_" AND NOT TARGET tessera_tool_parts)
    continue()
  endif()
  add_executable(${name} ${source} ${test_helpers})
  tessera_flags(${name})
  target_include_directories(${name} PRIVATE src tests/support ${CMOCKA_INCLUDE_DIR})
  if(TARGET tessera_tool_parts)
    target_link_libraries(${name} PRIVATE tessera_tool_parts)
  endif()
  target_link_libraries(${name} PRIVATE tessera_static ${CMOCKA_LIBRARY} m Threads::Threads
                        ${CMAKE_DL_LIBS})
  # test_team_processes loads and unloads the shared library.
  if(TARGET tessera)
    target_compile_definitions(${name} PRIVATE TSR_TEST_SHARED_LIBRARY="$<TARGET_FILE:tessera>")
    add_dependencies(${name} tessera)
  endif()
  set(arguments "")
  if(name STREQUAL "test_tool_verify")
    set(arguments 1 2)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arguments})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
endforeach()
# The linker redirects its calls of operations to its own functions, one per OPERATION(name).
if(TARGET test_tool_floats)
  file(STRINGS tests/tool/test_tool_floats.c operations REGEX "^OPERATION\\([a-z_]+\\)$")
  foreach(line ${operations})
    string(REGEX REPLACE "^OPERATION\\((.*)\\)$" "tsr_\\1" name ${line})
    target_link_options(test_tool_floats PRIVATE -Wl,--wrap=${name} -Wl,--wrap=${name}_prepare)
  endforeach()
endif()
include(TesseraEmulator)
include(TesseraEmulatedCpu)
# The longest tests start first and run in parallel: each takes every second operation.
if(TEST test_tool_verify)
  add_test(NAME test_tool_verify_2 COMMAND test_tool_verify 2 2)
  set_tests_properties(test_tool_verify_2 PROPERTIES SKIP_RETURN_CODE 77)
  set_tests_properties(test_tool_verify test_tool_verify_2 PROPERTIES COST 1000 TIMEOUT 1800)
endif()

# Our declarations of CUDA are compared with the toolkit's, if there is one.
find_path(TESSERA_CUDA_INCLUDE_DIR NAMES cuda.h PATHS /usr/local/cuda/include /opt/cuda/include)
mark_as_advanced(TESSERA_CUDA_INCLUDE_DIR)
if(TARGET test_cuda_headers AND TESSERA_CUDA_INCLUDE_DIR
   AND EXISTS ${TESSERA_CUDA_INCLUDE_DIR}/nvrtc.h)
  target_include_directories(test_cuda_headers SYSTEM PRIVATE ${TESSERA_CUDA_INCLUDE_DIR})
  target_compile_definitions(test_cuda_headers PRIVATE TEST_HAS_CUDA_HEADERS)
  find_path(TESSERA_CUPTI_INCLUDE_DIR NAMES cupti.h PATHS ${TESSERA_CUDA_INCLUDE_DIR}
            ${TESSERA_CUDA_INCLUDE_DIR}/../extras/CUPTI/include)
  mark_as_advanced(TESSERA_CUPTI_INCLUDE_DIR)
  if(TESSERA_CUPTI_INCLUDE_DIR)
    target_include_directories(test_cuda_headers SYSTEM PRIVATE ${TESSERA_CUPTI_INCLUDE_DIR})
    target_compile_definitions(test_cuda_headers PRIVATE TEST_HAS_CUPTI_HEADERS)
  endif()
endif()

# ---- Fuzzing: docs/fuzzing.md --------------------------------------------------------------------

# tests/fuzz/fuzz_<subject>.c is a target, and <subject>_*.c are its helpers. With replay.c it is a program that runs
# the corpus and a few thousand mutations of it, in every build. TESSERA_FUZZ also builds it with libFuzzer.
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
if(NOT TARGET tessera_tool_parts)
  set(fuzz_sources "") # the subjects include the tool's options and the model library
endif()
foreach(source ${fuzz_sources})
  get_filename_component(name ${source} NAME_WE)
  string(REPLACE fuzz_ "" subject ${name})
  file(GLOB helpers CONFIGURE_DEPENDS tests/fuzz/${subject}_*.c)
  set(programs replay_${subject})
  add_executable(replay_${subject} ${source} ${helpers} tests/fuzz/replay.c)
  add_test(NAME replay_${subject}
           COMMAND replay_${subject} --mutations 4000 ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${subject})
  set_tests_properties(replay_${subject} PROPERTIES TIMEOUT 900)
  if(TESSERA_FUZZ)
    list(APPEND programs ${name})
    add_executable(${name} ${source} ${helpers})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  endif()
  foreach(program ${programs})
    tessera_flags(${program})
    target_include_directories(${program} PRIVATE src tests/fuzz)
    target_link_libraries(${program} PRIVATE tessera_tool_parts tessera_static)
  endforeach()
endforeach()

# ---- Examples: compiled and run, then built against an installed copy ----------------------------

file(GLOB examples CONFIGURE_DEPENDS examples/*.c)
foreach(source ${examples})
  get_filename_component(name ${source} NAME_WE)
  set(model "")
  file(STRINGS ${source} reads_files REGEX "tessera/safetensors.h")
  if(reads_files)
    set(model tessera_model)
    if(NOT TARGET tessera_model)
      continue()
    endif()
  endif()
  add_executable(${name} ${source})
  tessera_flags(${name})
  target_link_libraries(${name} PRIVATE ${model} tessera_static m)
  add_test(NAME example_${name} COMMAND ${name})
  set_tests_properties(example_${name} PROPERTIES SKIP_RETURN_CODE 77)
endforeach()
if(COMMAND add_emulated)
  add_emulated(emulated_example_streams_and_graphs streams_and_graphs)
endif()

# An instrumented library can only be linked with its sanitizer.
if(TESSERA_INSTALL AND TESSERA_SHARED AND NOT TESSERA_SANITIZE)
  add_test(NAME install COMMAND ${PROJECT_SOURCE_DIR}/scripts/test_install ${PROJECT_BINARY_DIR}
           ${CMAKE_C_COMPILER})
  set_tests_properties(install PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
  if(TARGET tessera_command)
    add_test(NAME deb COMMAND ${PROJECT_SOURCE_DIR}/scripts/test_deb ${PROJECT_BINARY_DIR} ${CMAKE_C_COMPILER})
    set_tests_properties(deb PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 900)
  endif()
endif()
