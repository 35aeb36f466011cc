# SPDX-License-Identifier: Apache-2.0
# Headers, libraries, tool, the CMake package (find_package(tessera CONFIG)) and the pkg-config files.
# All paths inside them are relative to where they lie, so that an installed tree can be moved.
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
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET tessera_command)
  install(TARGETS tessera_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir})
configure_package_config_file(cmake/tesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the ABI.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake
  ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake cmake/FindJansson.cmake DESTINATION ${package_dir})

# ${pcfiledir} is where the .pc file lies: libdir/pkgconfig.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
file(RELATIVE_PATH pc_libdir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_LIBDIR})
file(RELATIVE_PATH pc_includedir ${CMAKE_INSTALL_PREFIX} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(has_model)
  configure_file(cmake/tessera_model.pc.in ${PROJECT_BINARY_DIR}/tessera_model.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tessera_model.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
