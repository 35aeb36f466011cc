# SPDX-License-Identifier: Apache-2.0
# What Debian requires in every package besides the installed files: copyright and changelog in the package's folder,
# and compressed man pages. CPack runs this after staging and before packing. Each component is staged in a folder with
# its name.
set(copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Tessera

Files: *
Copyright: 2026 the Tessera contributors
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # or $SOURCE_DATE_EPOCH
set(changelog "${CPACK_PACKAGE_NAME} (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=low

  * Version ${CPACK_PACKAGE_VERSION}.

 -- ${CPACK_DEBIAN_PACKAGE_MAINTAINER}  ${date}
")

foreach(component ${CPACK_COMPONENTS_ALL})
  set(staged ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX})
  string(TOUPPER ${component} COMPONENT)
  set(folder ${staged}/share/doc/${CPACK_DEBIAN_${COMPONENT}_PACKAGE_NAME})
  if(component STREQUAL library)
    file(REMOVE_RECURSE ${staged}/share/doc) # the copyright file replaces LICENSE
  endif()
  file(WRITE ${folder}/copyright "${copyright}")
  file(WRITE ${folder}/changelog.Debian "${changelog}")
  file(GLOB pages ${staged}/share/man/man*/*)
  execute_process(COMMAND gzip -9n ${folder}/changelog.Debian ${pages} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
