# SPDX-License-Identifier: Apache-2.0
# tessera_embed_file(TARGET SYMBOL FILE) compiles a file into a target, as
#     extern const unsigned char SYMBOL[];      the bytes, and a zero after the last
#     extern const size_t SYMBOL_bytes;         their number
# An empty FILE gives no bytes. Run as a script (cmake -P), this file writes the C source.
if(CMAKE_SCRIPT_MODE_FILE)
  set(hex "")
  if(INPUT)
    file(READ "${INPUT}" hex HEX)
  endif()
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  file(WRITE "${OUTPUT}" "#include <stddef.h>
extern const unsigned char ${SYMBOL}[];
extern const size_t ${SYMBOL}_bytes;
const unsigned char ${SYMBOL}[] = {\n${hex}0};
const size_t ${SYMBOL}_bytes = ${bytes};\n")
  return()
endif()

function(tessera_embed_file target symbol file)
  set(output ${PROJECT_BINARY_DIR}/embedded/${symbol}.c)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DINPUT=${file}" "-DOUTPUT=${output}" "-DSYMBOL=${symbol}"
            -P ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
    DEPENDS ${file} ${PROJECT_SOURCE_DIR}/cmake/EmbedFile.cmake
    COMMENT "Embedding ${symbol}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
