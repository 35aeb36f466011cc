# SPDX-License-Identifier: Apache-2.0
# tessera_embed_kernels(TARGET FILE...) compiles kernel sources and the headers that they include into a target, with
# the table of src/cuda/cuda_source.h. A file's name is its path below src/, as in #include.
include(EmbedFile)

function(tessera_embed_kernels target)
  set(declarations "")
  set(rows "")
  foreach(file ${ARGN})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/src ${file})
    string(MAKE_C_IDENTIFIER "embedded_${name}" symbol)
    tessera_embed_file(${target} ${symbol} ${file})
    string(APPEND declarations "extern const unsigned char ${symbol}[];\nextern const size_t ${symbol}_bytes;\n")
    string(APPEND rows "    {\"${name}\", ${symbol}, &${symbol}_bytes},\n")
  endforeach()
  set(table ${PROJECT_BINARY_DIR}/embedded/cuda_files.c)
  file(WRITE ${table}.new "#include \"cuda/cuda_source.h\"\n${declarations}
const struct tsri_cuda_file tsri_cuda_files[] = {\n${rows}    {0},\n};\n")
  configure_file(${table}.new ${table} COPYONLY) # written only when it changes
  target_sources(${target} PRIVATE ${table})
endfunction()
