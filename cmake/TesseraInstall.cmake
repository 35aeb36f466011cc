# SPDX-License-Identifier: Apache-2.0
# Headers, libraries, the tool with its man pages and completions, the CMake package (find_package(tessera CONFIG)) and
# the pkg-config files. All paths in these files are relative to their own location, so that an installed tree can be
# moved. Components: library (needed to run programs), development, tool. TesseraPackage.cmake makes packages of them.
include(CMakePackageConfigHelpers)

set(libraries tessera_static)
if(TARGET tessera)
  list(APPEND libraries tessera)
endif()
set(has_model OFF)
if(TARGET tessera_model)
  set(has_model ON)
  list(APPEND libraries tessera_model)
endif()
install(TARGETS ${libraries} EXPORT tesseraTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT library)
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development
  FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT library)

if(TARGET tessera_command)
  install(TARGETS tessera_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
  # The tool writes these files itself from the tables behind --help, so cross compilation omits them.
  if(NOT CMAKE_CROSSCOMPILING)
    set(documents ${PROJECT_BINARY_DIR}/documents)
    add_custom_command(OUTPUT ${documents}/stamp
      COMMAND ${CMAKE_COMMAND} -E rm -rf ${documents}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${documents}/man1
      COMMAND tessera_command manual --output ${documents}/man1
      COMMAND tessera_command completion bash > ${documents}/tessera
      COMMAND tessera_command completion zsh > ${documents}/_tessera
      COMMAND ${CMAKE_COMMAND} -E touch ${documents}/stamp
      DEPENDS tessera_command VERBATIM COMMENT "Writing man pages and completions")
    add_custom_target(tessera_documents ALL DEPENDS ${documents}/stamp)
    install(DIRECTORY ${documents}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT tool)
    install(FILES ${documents}/tessera COMPONENT tool
      DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${documents}/_tessera COMPONENT tool
      DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# The same compatibility as in the SONAME.
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
  COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
  ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake cmake/FindJansson.cmake
  DESTINATION ${package_dir} COMPONENT development)

# ${pcfiledir} is the folder of the .pc file: libdir/pkgconfig.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
  COMPONENT development)
if(has_model)
  configure_file(cmake/tessera_model.pc.in ${PROJECT_BINARY_DIR}/tessera_model.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tessera_model.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
