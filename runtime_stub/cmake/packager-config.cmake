# find_package(packager CONFIG REQUIRED)
# target_link_libraries(host PRIVATE packager::packager)
#
# The target has the folder of packager.h and the library of dlopen; bundles are opened when the program runs.
if(NOT TARGET packager::packager)
  get_filename_component(_packager_include "${CMAKE_CURRENT_LIST_DIR}/../include" ABSOLUTE)
  add_library(packager::packager INTERFACE IMPORTED)
  set_target_properties(packager::packager PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_packager_include}"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}")
  unset(_packager_include)
endif()
