# SPDX-License-Identifier: Apache-2.0
# Shared by all our targets: warnings, hidden symbols, exact arithmetic, no LTO, sanitizers.
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)

# Whether the target (not the host, and not a -m32 build) is x86-64.
function(tessera_check_x86_64 result)
  check_c_source_compiles("
    #if !defined(__x86_64__)
    #error not x86-64
    #endif
    int main(void) { return 0; }" TESSERA_IS_X86_64)
  set(${result} ${TESSERA_IS_X86_64} PARENT_SCOPE)
endfunction()

# Whether the compiler accepts all of some flags.
function(tessera_check_flags flags result)
  set(CMAKE_REQUIRED_QUIET ON)
  string(MAKE_C_IDENTIFIER "TESSERA_HAS_${flags}" name)
  check_c_compiler_flag("${flags}" ${name})
  set(${result} ${${name}} PARENT_SCOPE)
endfunction()

# Results must not depend on CMAKE_C_FLAGS, so these flags come after them (docs/decisions/0016-bits-and-compilers.md):
# the compiler must not fuse or reorder operations or assume finite values, and the link step must not compile again.
set(tessera_exact_flags -ffp-contract=off -fno-fast-math -fno-unsafe-math-optimizations -fno-associative-math
    -fno-reciprocal-math -fno-finite-math-only -fsigned-zeros -fno-lto)
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
  list(APPEND tessera_exact_flags -fno-single-precision-constant)
elseif(CMAKE_C_COMPILER_ID MATCHES Clang)
  list(APPEND tessera_exact_flags -fno-approx-func -fdenormal-fp-math=ieee)
endif()
tessera_check_x86_64(is_x86_64)
tessera_check_flags(-mno-daz-ftz has_daz_flag)
set(tessera_exact_link_flags)
if(is_x86_64)
  list(APPEND tessera_exact_flags -mfpmath=sse)
  if(has_daz_flag)
    list(APPEND tessera_exact_link_flags -mno-daz-ftz)
  endif()
endif()

# Flags of our own targets. None of them reaches a user's target.
function(tessera_flags target)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
    C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
  # The interface that our sources use. A file that needs more of the system defines _GNU_SOURCE first.
  target_compile_definitions(${target} PRIVATE _POSIX_C_SOURCE=200809L)
  if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow
                           -Wno-missing-field-initializers ${tessera_exact_flags})
    # With -ffast-math or -Ofast at link time, gcc and clang add start-up code that flushes subnormals to 0.
    target_link_options(${target} PRIVATE -O2 -fno-fast-math -fno-unsafe-math-optimizations ${tessera_exact_link_flags})
  endif()
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    # gcc's -Wconversion ignores signs; both compilers must warn about the same.
    target_compile_options(${target} PRIVATE -Wno-sign-conversion)
  endif()
  # A newer compiler than those tested may have new warnings, which must not stop a build.
  set(newest_GNU 15)
  set(newest_Clang 20)
  if(TESSERA_WERROR AND newest_${CMAKE_C_COMPILER_ID}
     AND CMAKE_C_COMPILER_VERSION VERSION_LESS newest_${CMAKE_C_COMPILER_ID})
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(TESSERA_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${TESSERA_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${TESSERA_SANITIZE})
  endif()
endfunction()

# Objects of the library, which may include every floor of src/.
function(tessera_objects target)
  add_library(${target} OBJECT ${ARGN})
  tessera_flags(${target})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE Threads::Threads)
endfunction()

# A library that others link: tessera::<target>, built as lib<output>.
function(tessera_library target type output)
  add_library(${target} ${type} ${ARGN})
  add_library(tessera::${target} ALIAS ${target})
  tessera_flags(${target})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output} LINKER_LANGUAGE C)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE m Threads::Threads ${CMAKE_DL_LIBS})
  if(type STREQUAL SHARED AND CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT TESSERA_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
endfunction()
