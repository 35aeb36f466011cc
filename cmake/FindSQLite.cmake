# SPDX-License-Identifier: Apache-2.0
# Finds SQLite, preferably the static library, so that programs with it can be copied to another machine. Defines
# tessera::sqlite.
find_path(SQLITE_INCLUDE_DIR sqlite3.h)
find_library(SQLITE_LIBRARY NAMES libsqlite3.a sqlite3)
if(SQLITE_INCLUDE_DIR)
  file(STRINGS ${SQLITE_INCLUDE_DIR}/sqlite3.h SQLite_VERSION REGEX "^#define SQLITE_VERSION +\"")
  string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" SQLite_VERSION "${SQLite_VERSION}")
endif()
mark_as_advanced(SQLITE_INCLUDE_DIR SQLITE_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SQLite REQUIRED_VARS SQLITE_LIBRARY SQLITE_INCLUDE_DIR
                                  VERSION_VAR SQLite_VERSION)

if(SQLite_FOUND AND NOT TARGET tessera::sqlite)
  add_library(tessera::sqlite UNKNOWN IMPORTED)
  set_target_properties(tessera::sqlite PROPERTIES IMPORTED_LOCATION ${SQLITE_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${SQLITE_INCLUDE_DIR})
endif()
