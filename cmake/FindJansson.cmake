# SPDX-License-Identifier: Apache-2.0
# Finds Jansson, preferably the static library: programs with it can be copied to another machine, and hide Jansson's
# symbols, some of which json-c has too. Defines tessera::jansson.
find_path(JANSSON_INCLUDE_DIR jansson.h)
find_library(JANSSON_LIBRARY NAMES libjansson.a jansson)
mark_as_advanced(JANSSON_INCLUDE_DIR JANSSON_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Jansson REQUIRED_VARS JANSSON_LIBRARY JANSSON_INCLUDE_DIR)

if(Jansson_FOUND AND NOT TARGET tessera::jansson)
  add_library(tessera::jansson UNKNOWN IMPORTED)
  set_target_properties(tessera::jansson PROPERTIES IMPORTED_LOCATION ${JANSSON_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${JANSSON_INCLUDE_DIR})
endif()
