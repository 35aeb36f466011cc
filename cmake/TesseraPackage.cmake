# SPDX-License-Identifier: Apache-2.0
# Debian packages of the installed components, by CPack: libtessera<abi> (the shared library), libtessera-dev (headers,
# static libraries, CMake package, pkg-config files) and tessera (the command). `make deb` builds them for /usr. The
# maintainer is $DEBFULLNAME <$DEBEMAIL> from the environment of CMake, as with Debian's own tools.
if(NOT TARGET tessera OR NOT TARGET tessera_command)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR Tessera)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
    GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL library development tool)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/DebianFiles.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(maintainer "Tessera maintainers")
set(address tessera@localhost)
if(DEFINED ENV{DEBFULLNAME})
  set(maintainer $ENV{DEBFULLNAME})
endif()
if(DEFINED ENV{DEBEMAIL})
  set(address $ENV{DEBEMAIL})
endif()
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${maintainer} <${address}>")

# dpkg-shlibdeps (from dpkg-dev) finds a binary's dependencies. Without it the C library is named without a version.
find_program(TESSERA_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(TESSERA_SHLIBDEPS)
foreach(component LIBRARY TOOL)
  if(TESSERA_SHLIBDEPS)
    set(CPACK_DEBIAN_${component}_PACKAGE_SHLIBDEPS ON)
  else()
    set(CPACK_DEBIAN_${component}_PACKAGE_DEPENDS libc6)
  endif()
endforeach()

set(library_package libtessera${tessera_abi})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library_package})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
file(WRITE ${PROJECT_BINARY_DIR}/debian/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/triggers)
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "fused transformer kernels behind one C API
Tessera computes the operations of transformers, forward and backward, on
processors (AVX-512, AVX2, portable C) and NVIDIA GPUs. One library carries
every kernel and picks at run time; a GPU is used where a driver is found.

This package has the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
    "${library_package} (= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}), libjansson-dev")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "fused transformer kernels - headers and archives
Tessera computes the operations of transformers, forward and backward, on
processors (AVX-512, AVX2, portable C) and NVIDIA GPUs.

This package has what programs are built with: headers, the shared library's
link, archives, the files of pkg-config and of CMake's find_package.")

set(CPACK_DEBIAN_TOOL_PACKAGE_NAME tessera)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOL_PACKAGE_SUGGESTS "gnuplot-nox, ${library_package}, python3")
set(CPACK_DEBIAN_TOOL_DESCRIPTION "fused transformer kernels, proved and measured on this machine
The command tessera verifies every operation of the library against an oracle
in double precision, measures it, and writes a report of the machine. It also
applies an operation to tensors in safetensors files.

It carries the library itself; beside PyTorch it needs the shared one.")

include(CPack)
