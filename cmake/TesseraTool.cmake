# SPDX-License-Identifier: Apache-2.0
# libtessera_model (src/model: files of tensors) and the command `tessera` (tool/). Both need Jansson and use only the
# library's public headers. All of the tool except main is a separate static library, so that tests can link it.
file(GLOB model_sources CONFIGURE_DEPENDS src/model/*.c)
file(GLOB_RECURSE tool_sources CONFIGURE_DEPENDS tool/*.c)
list(REMOVE_ITEM tool_sources ${PROJECT_SOURCE_DIR}/tool/main.c)

find_package(Jansson QUIET)
if(NOT Jansson_FOUND)
  message(STATUS "Jansson not found: building the library alone, without the tessera command "
                 "and its tests (Debian: apt install libjansson-dev, or run: make setup)")
  return()
endif()

if(model_sources)
  tessera_library(tessera_model STATIC tessera_model ${model_sources})
  target_include_directories(tessera_model PRIVATE src)
  # Its users choose tessera::tessera or tessera::tessera_static in addition to tessera::tessera_model.
  target_link_libraries(tessera_model PRIVATE tessera::jansson m)
endif()

if(tool_sources)
  add_library(tessera_tool_parts STATIC ${tool_sources})
  tessera_flags(tessera_tool_parts)
  target_include_directories(tessera_tool_parts PUBLIC tool)
  if(TESSERA_SANITIZE AND NOT TESSERA_FUZZ) # they would take a fifth of the verification time
    file(GLOB_RECURSE bound_sources CONFIGURE_DEPENDS tool/specs/*_bound.c)
    set_source_files_properties(${bound_sources} PROPERTIES COMPILE_OPTIONS -O2)
  endif()
  if(TARGET tessera_model)
    target_link_libraries(tessera_tool_parts PUBLIC tessera_model)
  endif()
  target_link_libraries(tessera_tool_parts PUBLIC tessera_static tessera::jansson Threads::Threads m)

  # tessera history stores runs in SQLite; without it the command reports that.
  find_package(SQLite 3.25 QUIET) # the first with window functions
  if(SQLite_FOUND)
    target_compile_definitions(tessera_tool_parts PRIVATE TSR_TOOL_HAS_SQLITE)
    target_link_libraries(tessera_tool_parts PRIVATE tessera::sqlite Threads::Threads ${CMAKE_DL_LIBS} m)
  else()
    message(STATUS "SQLite 3.25 not found: the command has no history (Debian: apt install libsqlite3-dev)")
  endif()

  # The report draws its charts with Chart.js; without it they are only pictures.
  include(EmbedFile)
  find_file(TESSERA_CHART_JS NAMES chart.min.js Chart.min.js
            PATHS /usr/share/javascript/chart.js /usr/share/nodejs/chart.js/dist)
  mark_as_advanced(TESSERA_CHART_JS)
  set(chart_js "")
  if(TESSERA_CHART_JS)
    set(chart_js ${TESSERA_CHART_JS})
  else()
    message(STATUS "Chart.js not found: reports have pictures in place of live charts "
                   "(Debian: apt install libjs-chart.js)")
  endif()
  tessera_embed_file(tessera_tool_parts embedded_chart_js "${chart_js}")
  foreach(part page.html page.css page.js early.js)
    string(REPLACE . _ symbol embedded_report_${part})
    tessera_embed_file(tessera_tool_parts ${symbol} ${PROJECT_SOURCE_DIR}/tool/report/${part})
  endforeach()
  foreach(shell bash zsh)
    tessera_embed_file(tessera_tool_parts embedded_completion_${shell}
                       ${PROJECT_SOURCE_DIR}/tool/completion/${shell}.sh)
  endforeach()
  # bench --peer torch and triton: scripts that the tool passes to Python, and the path of the shared library.
  foreach(script peer_torch peer_torch_matmul peer_torch_moe peer_torch_rows peer_library peer_cpu peer_device
          peer_triton)
    tessera_embed_file(tessera_tool_parts embedded_${script} ${PROJECT_SOURCE_DIR}/bench/${script}.py)
  endforeach()
  file(RELATIVE_PATH to_libraries ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  target_compile_definitions(tessera_tool_parts PRIVATE TSR_TOOL_TO_LIBRARIES="${to_libraries}")
  target_link_libraries(tessera_tool_parts PUBLIC ${CMAKE_DL_LIBS})
endif()

if(TESSERA_TOOL AND EXISTS ${PROJECT_SOURCE_DIR}/tool/main.c)
  add_executable(tessera_command tool/main.c)
  tessera_flags(tessera_command)
  set_target_properties(tessera_command PROPERTIES OUTPUT_NAME tessera
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(tessera_command PRIVATE tessera_tool_parts)
endif()
